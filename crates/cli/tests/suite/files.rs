//! The file tools of sessions, with guests that try to make them read or write other files.

use ringfence_testkit::{Server, User, for_each_user};
use serde_json::{Value, json};

/// A session of a server.
struct Session<'server> {
    server: &'server Server,
    id: Value,
}

impl<'server> Session<'server> {
    fn start(server: &'server Server) -> Self {
        let response = server.call("execute_command", &json!({"command": "true"}));
        let id = response["result"]["structuredContent"]["session_id"].clone();
        assert!(id.is_string(), "{response}");
        Self { server, id }
    }

    /// Runs a shell command that must succeed; returns its standard output.
    fn run(&self, command: &str) -> String {
        let response = self.server.call("execute_command", &json!({"command": command, "session_id": self.id}));
        let fields = &response["result"]["structuredContent"];
        assert_eq!(fields["exit_code"], 0, "{command}: {response}");
        fields["stdout"].as_str().expect("a string").to_owned()
    }

    /// Calls a tool; returns the structured content, or the error message.
    fn call(&self, tool: &str, arguments: &Value) -> Result<Value, String> {
        let mut arguments = arguments.clone();
        arguments["session_id"] = self.id.clone();
        let response = self.server.call(tool, &arguments);
        match response["error"]["message"].as_str() {
            Some(message) => Err(message.to_owned()),
            None => Ok(response["result"]["structuredContent"].clone()),
        }
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let fields = self.call("read_file", &json!({"path": path}))?;
        Ok(fields["content"].as_str().expect("a string").to_owned())
    }

    fn write(&self, path: &str, content: &str) -> Result<Value, String> {
        self.call("write_file", &json!({"path": path, "content": content}))
    }

    fn list(&self, path: &str) -> Result<Value, String> {
        self.call("list_files", &json!({"path": path}))
    }
}

fn for_each_server(test: &str, check: impl Fn(User, &Server)) {
    for_each_user(test, |who| check(who, &Server::start_as(who, &[], &[])));
}

#[test]
fn files_are_written_read_and_listed() {
    for_each_server("files_are_written_read_and_listed", |who, server| {
        let session = Session::start(server);
        session.write("a/b/c.txt", "hello\n").expect("write the file");
        // The file belongs to the guest, whichever user runs the server.
        assert_eq!(session.run("stat -c '%u %g %a' a/b/c.txt; id -u; echo more >> a/b/c.txt"), "1000 1000 644\n1000\n");
        assert_eq!(session.read("/workspace/a/b/c.txt").as_deref(), Ok("hello\nmore\n"), "{who:?}");
        session.write("a/b/c.txt", "less").expect("replace the file");
        assert_eq!(session.run("cat a/b/c.txt"), "less");

        // Files that only the guest may read can be read.
        session.run("mkdir -m 700 secret; (umask 077; printf 0123456789 > secret/file); ln -s file secret/link");
        assert_eq!(session.read("secret/file").as_deref(), Ok("0123456789"), "{who:?}");
        let part = session
            .call("read_file", &json!({"path": "secret/file", "offset": 3, "length": 4}))
            .expect("read a part of the file");
        assert_eq!((&part["content"], &part["size"], &part["offset"]), (&json!("3456"), &json!(10), &json!(3)));
        let listed = session.list("secret").expect("list the directory");
        let shown: Vec<_> = listed["entries"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|e| (&e["name"], &e["kind"], &e["size"]))
            .collect();
        assert_eq!(shown, [(&json!("file"), &json!("file"), &json!(10)), (&json!("link"), &json!("link"), &json!(4))]);

        let bytes = session.call("write_file", &json!({"path": "bytes", "content": "AP/+gA==", "encoding": "base64"}));
        assert_eq!(bytes.expect("write the file")["size"], 4);
        assert_eq!(session.run("od -An -tx1 bytes"), " 00 ff fe 80\n");
        let read = session.call("read_file", &json!({"path": "bytes"})).expect("read the file");
        assert_eq!((&read["encoding"], &read["content"]), (&json!("base64"), &json!("AP/+gA==")));
    });
}

#[test]
fn largest_file_is_written_completely() {
    let server = Server::start(&[], &[]);
    let session = Session::start(&server);
    let content = "eHh4".repeat((16 << 20) / 3) + "eA==";
    let written = session.call("write_file", &json!({"path": "large", "content": content, "encoding": "base64"}));
    assert_eq!(written.map(|fields| fields["size"].clone()), Ok(json!(16 << 20)));
    assert_eq!(session.run("tr -d x <large | wc -c; wc -c <large"), "0\n16777216\n");
}

#[test]
fn errors_name_exceeded_limits() {
    for_each_server("errors_name_exceeded_limits", |_, server| {
        let session = Session::start(server);
        session.run(
            "truncate -s 16777217 large; head -c 16777216 /dev/zero | tr '\\0' x > fits; mkdir many; cd many; seq 1 1500 | xargs touch",
        );
        let refusal = session.read("large").expect_err("the file is too large");
        assert!(refusal.contains("16777217 bytes, more than the limit of 16 MiB"), "{refusal}");
        let fits = session.call("read_file", &json!({"path": "fits"})).expect("read the start of the file");
        assert_eq!(
            (&fits["size"], &fits["truncated"], &fits["content"]),
            (&json!(16 << 20), &json!(true), &Value::Null)
        );
        let read = server.request("resources/read", &json!({"uri": fits["resource"]}));
        assert_eq!(read["result"]["contents"][0]["text"].as_str().map(str::len), Some(16 << 20));
        let end = session
            .call("read_file", &json!({"path": "large", "offset": 16_777_216}))
            .expect("read the end of the file");
        assert_eq!((&end["encoding"], &end["content"]), (&json!("base64"), &json!("AA==")));
        let listed = session.list("many").expect("list the directory");
        assert_eq!((listed["entries"].as_array().map(Vec::len), &listed["truncated"]), (Some(1000), &json!(true)));
        // The first entries by name, independent of their order in the directory.
        let ends = (&listed["entries"][0]["name"], &listed["entries"][999]["name"], &listed["total"]);
        assert_eq!(ends, (&json!("1"), &json!("548"), &json!(1500)));
        let refusal = session.write("many/", "x").expect_err("the path is a directory");
        assert!(refusal.contains("is the path of a directory"), "{refusal}");
        let refusal = session.call("write_file", &json!({"path": "full", "content": "x"})).and_then(|_| {
            session.run("head -c 600M /dev/zero > /tmp/fill 2>/dev/null; true");
            session.write("full", &"x".repeat(1 << 20))
        });
        assert!(refusal.as_ref().is_err_and(|message| message.contains("the workspace is full")), "{refusal:?}");
    });
}

/// Case 35: the guest replaces files and directories by links while calls run. Only files of the guest are read.
#[test]
fn swapped_links_are_never_followed() {
    const SWAP: &str = "
import os, shutil
def attempt(function, *names):
    try: function(*names)
    except OSError: pass  # the host creates and opens the same names
while not os.path.exists('stop'):
    open('x', 'w').write('guest'); os.rename('x', 'file')
    os.symlink('/etc/passwd', 'l'); os.rename('l', 'file')
    for target in '/etc', '/tmp':
        shutil.rmtree('directory', ignore_errors=True)
        attempt(os.symlink, target, 'directory')
        attempt(os.unlink, 'directory')
        attempt(os.mkdir, 'directory')
        attempt(os.rename, 'directory', 'moved')
        shutil.rmtree('moved', ignore_errors=True)
";
    for_each_server("swapped_links_are_never_followed", |who, server| {
        let session = Session::start(server);
        std::thread::scope(|scope| {
            let swapping = scope.spawn(|| {
                server.call("execute_code", &json!({"code": SWAP, "session_id": session.id, "timeout": 100}))
            });
            let (mut files, mut links, mut written) = (0, 0, 0);
            for _ in 0..4_000 {
                match session.read("file") {
                    Ok(content) => {
                        assert!(matches!(content.as_str(), "guest" | ""), "{who:?}: {content}");
                        files += 1;
                    }
                    Err(message) if message.contains("symbolic link") => links += 1,
                    Err(message) => assert!(message.contains("no such file"), "{who:?}: {message}"),
                }
                if let Ok(content) = session.read("directory/passwd") {
                    panic!("{who:?}: a file outside of the workspace was read: {content}");
                }
                written += u32::from(session.write("directory/written", "by the host").is_ok());
                if files > 20 && links > 20 && written > 20 {
                    break;
                }
            }
            session.write("stop", "").expect("write the file");
            let response = swapping.join().expect("join the caller");
            assert!(files > 0 && links > 0 && written > 0, "{who:?}: {files} {links} {written}: {response}");
        });
        assert_eq!(session.run("ls /tmp"), "", "{who:?}: a link to a directory was followed");
    });
}

/// Cases 36, 37, 39: links of every kind, and special files.
#[test]
fn links_and_special_files_are_refused_without_blocking() {
    const CREATE: &str = "
import os, socket, threading
for name, target in [('passwd', '/etc/passwd'), ('environ', '/proc/self/environ'), ('self', '/proc/self/root/etc/passwd'),
                     ('null', '/dev/null'), ('zero', '/dev/zero'), ('etc', '/etc'), ('root', '/proc/self/root'), ('loop', 'loop')]:
    os.symlink(target, name)
os.mkfifo('fifo'); os.mkfifo('open_fifo')
open_fifo = os.open('open_fifo', os.O_RDWR)
server = socket.socket(socket.AF_UNIX); server.bind('socket')
os.mkdir('sub'); open('sub/file', 'w').write('guest'); os.link('sub/file', 'hard')
try:
    os.link('/etc/passwd', 'stolen'); print('linked')
except OSError:
    print('no link')
try:
    os.mknod('device', 0o020666, os.makedev(1, 5)); print('device')
except OSError:
    print('no device')
";
    for_each_server("links_and_special_files_are_refused_without_blocking", |who, server| {
        let session = Session::start(server);
        let created = server.call("execute_code", &json!({"code": CREATE, "session_id": session.id}));
        assert_eq!(created["result"]["structuredContent"]["stdout"], "no link\nno device\n", "{created}");
        for path in ["passwd", "environ", "self", "null", "zero", "loop"] {
            let refusal = session.read(path).expect_err(path);
            assert!(refusal.contains("symbolic link"), "{who:?}: {path}: {refusal}");
            session.write(path, "x").expect_err(path);
        }
        for path in ["etc/passwd", "root/etc/passwd", "sub/file/x", "etc", "root"] {
            session.read(path).expect_err(path);
            session.list(path).expect_err(path);
        }
        for path in ["fifo", "open_fifo", "socket", "sub", "."] {
            session.read(path).expect_err(path);
            session.write(path, "x").expect_err(path);
        }
        assert_eq!(session.read("hard").as_deref(), Ok("guest"));
        let kinds = session.list(".").expect("list the directory");
        let kind = |name: &str| {
            kinds["entries"]
                .as_array()
                .expect("an array")
                .iter()
                .find(|entry| entry["name"] == name)
                .map(|e| e["kind"].clone())
        };
        assert_eq!(
            (kind("fifo"), kind("socket"), kind("etc")),
            (Some(json!("other")), Some(json!("other")), Some(json!("link")))
        );
        // None of these calls has blocked the sandbox.
        assert_eq!(session.run("echo alive"), "alive\n", "{who:?}");
    });
}

/// Cases 38, 40: names with a special meaning for shells, terminals or other programs.
#[test]
fn unusual_names_work_or_are_refused() {
    for_each_server("unusual_names_work_or_are_refused", |who, server| {
        let session = Session::start(server);
        for path in [
            "..",
            "../etc/passwd",
            "a/../../etc/passwd",
            "/etc/passwd",
            "/workspace/../etc/passwd",
            "a\0b",
            "/proc/1/environ",
            "/",
        ] {
            let refusal = session.read(path).expect_err(path);
            assert!(refusal.contains("the path "), "{who:?}: {refusal}");
            session.write(path, "x").expect_err(path);
            session.list(path).expect_err(path);
        }
        for name in ["a\nb", "...", " ", "-rf", "ä", "$(id)", "\u{1b}[31m", "a\\b"] {
            let path = format!("odd/{name}");
            session.write(&path, name).unwrap_or_else(|message| panic!("{name:?}: {message}"));
            assert_eq!(session.read(&path).as_deref(), Ok(name));
        }
        assert_eq!(session.run("ls -A odd | wc -l; ls -Ab odd | wc -l"), "9\n8\n");
        session.run("mkdir bytes; touch \"bytes/$(printf 'x\\377')\"");
        let listed = session.list("bytes").expect("list the directory");
        assert_eq!(
            (&listed["entries"][0]["name"], &listed["entries"][0]["name_base64"]),
            (&json!("x\u{fffd}"), &json!("eP8="))
        );
    });
}

/// Case 43: a session does not see the files of other sessions, not even after they have ended.
#[test]
fn session_cannot_access_files_of_other_sessions() {
    for_each_server("session_cannot_access_files_of_other_sessions", |who, server| {
        let (first, second) = (Session::start(server), Session::start(server));
        first.write("file", "of the first").expect("write the file");
        assert!(second.read("file").expect_err("the file does not exist").contains("no such file"), "{who:?}");
        assert_eq!(second.list(".").expect("list the directory")["entries"], json!([]), "{who:?}");
        let stopped = first.call("stop_session", &json!({}));
        assert!(stopped.is_ok(), "{stopped:?}");
        assert!(first.read("file").expect_err("the session has ended").contains("session not found"), "{who:?}");
        assert_eq!(Session::start(server).list(".").expect("list the directory")["entries"], json!([]), "{who:?}");
    });
}

/// Volumes in the workspace belong to the host, so the file tools neither read nor write them.
#[test]
fn file_tools_refuse_paths_in_volumes() {
    for_each_user("file_tools_refuse_paths_in_volumes", |who| {
        let volume = who.directory();
        std::fs::write(volume.path().join("file"), "of the host").expect("write the file");
        let option = format!("{}:/workspace/data:rw", volume.path().display());
        let server = Server::start_as(who, &["--volume", &option], &[]);
        let session = Session::start(&server);
        assert_eq!(session.run("cat data/file"), "of the host");
        let refusals = [
            session.read("data/file").map(Value::from),
            session.write("data/new", "x"),
            session.write("data/sub/new", "x"),
            session.list("data"),
        ];
        for refusal in refusals {
            assert!(
                refusal.as_ref().is_err_and(|message| message.contains("another file system")),
                "{who:?}: {refusal:?}"
            );
        }
        assert!(!volume.path().join("new").exists() && !volume.path().join("sub").exists(), "{who:?}");
    });
}

#[test]
fn failed_write_leaves_file_unchanged() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let write = |content: &str| {
        server.call("write_file", &json!({"session_id": session, "path": "file.txt", "content": content}))
    };
    assert!(write("precious")["result"].is_object());
    let fill = json!({"command": "cat /dev/zero > fill", "session_id": session});
    assert_ne!(server.call("execute_command", &fill)["result"]["structuredContent"]["exit_code"], 0);
    let refused = write(&"y".repeat(100_000));
    assert_eq!(refused["error"]["data"]["error_code"], "RESOURCE_LIMIT_EXCEEDED", "{refused}");
    let read = server.call("read_file", &json!({"session_id": session, "path": "file.txt"}));
    assert_eq!(read["result"]["structuredContent"]["content"], "precious", "{read}");
    // Shorter content replaces the whole file.
    assert!(write("less")["result"].is_object());
    let read = server.call("read_file", &json!({"session_id": session, "path": "file.txt"}));
    assert_eq!(read["result"]["structuredContent"]["content"], "less");
    server.call("execute_command", &json!({"command": "rm fill", "session_id": session}));
    let wrapped = json!({"session_id": session, "path": "wrapped", "content": "aGVs\nbG8=\n", "encoding": "base64"});
    assert_eq!(server.call("write_file", &wrapped)["result"]["structuredContent"]["size"], 5);
}

#[test]
fn picture_is_an_image_and_long_text_is_read_in_parts() {
    let server = Server::start(&[], &[]);
    let session = Session::start(&server);
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    session
        .call("write_file", &json!({"path": "a b.png", "content": png, "encoding": "base64"}))
        .expect("write the picture");
    let response = server.call("read_file", &json!({"path": "a b.png", "session_id": session.id}));
    let content = &response["result"]["content"];
    // Some clients use only the first item.
    assert_eq!(content[0], json!({"type": "image", "data": png, "mimeType": "image/png"}), "{response}");
    assert_eq!(content[1]["text"], "[/workspace/a b.png: 70 bytes, image/png]", "{response}");
    let fields = &response["result"]["structuredContent"];
    assert_eq!((&fields["content"], &fields["mime_type"]), (&Value::Null, &json!("image/png")));
    let read = server.request("resources/read", &json!({"uri": fields["resource"]}));
    let contents = &read["result"]["contents"][0];
    assert_eq!((&contents["blob"], &contents["mimeType"]), (&json!(png), &json!("image/png")), "{read}");

    session.run("seq 1 10000 > long");
    let (mut offset, mut text) = (0, String::new());
    let size = loop {
        let arguments = json!({"path": "long", "offset": offset, "session_id": session.id});
        let response = server.call("read_file", &arguments);
        let block = response["result"]["content"][0]["text"].as_str().expect("a text").to_owned();
        let size = response["result"]["structuredContent"]["size"].as_u64().expect("a size");
        let Some((part, note)) = block.rsplit_once("\n[… ") else {
            text.push_str(&block);
            break size;
        };
        assert!(part.len() <= 16 << 10, "{note}");
        text.push_str(part);
        let next = note.split("offset ").nth(1).and_then(|rest| rest.split(' ').next());
        offset = next.and_then(|next| next.parse::<u64>().ok()).unwrap_or_else(|| panic!("{note}"));
    };
    assert_eq!((text.len() as u64, text.lines().count(), text.lines().last()), (size, 10_000, Some("10000")));
}
