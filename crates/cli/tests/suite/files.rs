//! Files moved in and out of sessions, with a guest that does all it can to have others moved.

use ringfence_testkit::{Server, User, for_each_user};
use serde_json::{Value, json};

/// One session of one server.
struct Session<'server> {
    server: &'server Server,
    id: Value,
}

impl<'server> Session<'server> {
    fn start(server: &'server Server) -> Self {
        let answer = server.call("execute_command", &json!({"command": "true"}));
        let id = answer["result"]["structuredContent"]["session_id"].clone();
        assert!(id.is_string(), "{answer}");
        Self { server, id }
    }

    /// Runs a shell line that must succeed, and gives what it printed.
    fn run(&self, command: &str) -> String {
        let answer = self.server.call("execute_command", &json!({"command": command, "session_id": self.id}));
        let fields = &answer["result"]["structuredContent"];
        assert_eq!(fields["exit_code"], 0, "{command}: {answer}");
        fields["stdout"].as_str().expect("text").to_owned()
    }

    /// The fields of the answer, or the message of the refusal.
    fn ask(&self, tool: &str, arguments: &Value) -> Result<Value, String> {
        let mut arguments = arguments.clone();
        arguments["session_id"] = self.id.clone();
        let answer = self.server.call(tool, &arguments);
        match answer["error"]["message"].as_str() {
            Some(message) => Err(message.to_owned()),
            None => Ok(answer["result"]["structuredContent"].clone()),
        }
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let fields = self.ask("read_file", &json!({"path": path}))?;
        Ok(fields["content"].as_str().expect("text").to_owned())
    }

    fn write(&self, path: &str, content: &str) -> Result<Value, String> {
        self.ask("write_file", &json!({"path": path, "content": content}))
    }

    fn list(&self, path: &str) -> Result<Value, String> {
        self.ask("list_files", &json!({"path": path}))
    }
}

fn for_every_server(test: &str, check: impl Fn(User, &Server)) {
    for_each_user(test, |who| check(who, &Server::start_as(who, &[], &[])));
}

#[test]
fn files_go_in_and_out() {
    for_every_server("files_go_in_and_out", |who, server| {
        let session = Session::start(server);
        session.write("a/b/c.txt", "hello\n").expect("it is written");
        // Whoever runs the server, the file is the guest's own.
        assert_eq!(session.run("stat -c '%u %g %a' a/b/c.txt; id -u; echo more >> a/b/c.txt"), "1000 1000 644\n1000\n");
        assert_eq!(session.read("/workspace/a/b/c.txt").as_deref(), Ok("hello\nmore\n"), "{who:?}");
        session.write("a/b/c.txt", "less").expect("it is replaced");
        assert_eq!(session.run("cat a/b/c.txt"), "less");

        // What the guest shows to nobody else is still its own.
        session.run("mkdir -m 700 secret; (umask 077; printf 0123456789 > secret/file); ln -s file secret/link");
        assert_eq!(session.read("secret/file").as_deref(), Ok("0123456789"), "{who:?}");
        let part = session.ask("read_file", &json!({"path": "secret/file", "offset": 3, "length": 4})).expect("a part");
        assert_eq!((&part["content"], &part["size"], &part["offset"]), (&json!("3456"), &json!(10), &json!(3)));
        let listed = session.list("secret").expect("it is listed");
        let shown: Vec<_> = listed["entries"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|e| (&e["name"], &e["kind"], &e["size"]))
            .collect();
        assert_eq!(shown, [(&json!("file"), &json!("file"), &json!(10)), (&json!("link"), &json!("link"), &json!(4))]);

        let bytes = session.ask("write_file", &json!({"path": "bytes", "content": "AP/+gA==", "encoding": "base64"}));
        assert_eq!(bytes.expect("it is written")["size"], 4);
        assert_eq!(session.run("od -An -tx1 bytes"), " 00 ff fe 80\n");
        let read = session.ask("read_file", &json!({"path": "bytes"})).expect("it is read");
        assert_eq!((&read["encoding"], &read["content"]), (&json!("base64"), &json!("AP/+gA==")));
    });
}

#[test]
fn the_largest_file_goes_in_and_out_whole() {
    let server = Server::start(&[], &[]);
    let session = Session::start(&server);
    let content = "eHh4".repeat((16 << 20) / 3) + "eA==";
    let written = session.ask("write_file", &json!({"path": "large", "content": content, "encoding": "base64"}));
    assert_eq!(written.map(|fields| fields["size"].clone()), Ok(json!(16 << 20)));
    assert_eq!(session.run("tr -d x <large | wc -c; wc -c <large"), "0\n16777216\n");
}

#[test]
fn limits_are_named() {
    for_every_server("limits_are_named", |_, server| {
        let session = Session::start(server);
        session.run(
            "truncate -s 16777217 large; head -c 16777216 /dev/zero | tr '\\0' x > fits; mkdir many; cd many; seq 1 1500 | xargs touch",
        );
        let refusal = session.read("large").expect_err("it is too large");
        assert!(refusal.contains("16777217 bytes, more than the limit of 16 MiB"), "{refusal}");
        assert_eq!(session.read("fits").map(|text| text.len()), Ok(16 << 20));
        let end = session.ask("read_file", &json!({"path": "large", "offset": 16_777_216})).expect("the end is read");
        assert_eq!((&end["encoding"], &end["content"]), (&json!("base64"), &json!("AA==")));
        let listed = session.list("many").expect("it is listed");
        assert_eq!((listed["entries"].as_array().map(Vec::len), &listed["truncated"]), (Some(1000), &json!(true)));
        // The first by name, whatever the order in which the directory has them.
        let ends = (&listed["entries"][0]["name"], &listed["entries"][999]["name"], &listed["total"]);
        assert_eq!(ends, (&json!("1"), &json!("548"), &json!(1500)));
        let refusal = session.write("many/", "x").expect_err("the path of a directory");
        assert!(refusal.contains("is the path of a directory"), "{refusal}");
        let refusal = session.ask("write_file", &json!({"path": "full", "content": "x"})).and_then(|_| {
            session.run("head -c 600M /dev/zero > /tmp/fill 2>/dev/null; true");
            session.write("full", &"x".repeat(1 << 20))
        });
        assert!(refusal.as_ref().is_err_and(|message| message.contains("the workspace is full")), "{refusal:?}");
    });
}

/// 35: what a name means changes all the time, while a call runs; read is the guest's own file or nothing.
#[test]
fn swapped_links_are_never_followed() {
    const SWAP: &str = "
import os, shutil
def attempt(what, *names):
    try: what(*names)
    except OSError: pass  # the host makes and opens the same names
while not os.path.exists('stop'):
    open('x', 'w').write('own'); os.rename('x', 'file')
    os.symlink('/etc/passwd', 'l'); os.rename('l', 'file')
    for target in '/etc', '/tmp':
        shutil.rmtree('directory', ignore_errors=True)
        attempt(os.symlink, target, 'directory')
        attempt(os.unlink, 'directory')
        attempt(os.mkdir, 'directory')
        attempt(os.rename, 'directory', 'moved')
        shutil.rmtree('moved', ignore_errors=True)
";
    for_every_server("swapped_links_are_never_followed", |who, server| {
        let session = Session::start(server);
        std::thread::scope(|scope| {
            let swapping = scope.spawn(|| {
                server.call("execute_code", &json!({"code": SWAP, "session_id": session.id, "timeout": 100}))
            });
            let (mut own, mut links, mut written) = (0, 0, 0);
            for _ in 0..4_000 {
                match session.read("file") {
                    Ok(content) => {
                        assert!(matches!(content.as_str(), "own" | ""), "{who:?}: {content}");
                        own += 1;
                    }
                    Err(why) if why.contains("symbolic link") => links += 1,
                    Err(why) => assert!(why.contains("no such file"), "{who:?}: {why}"),
                }
                if let Ok(content) = session.read("directory/passwd") {
                    panic!("{who:?}: a file outside was read: {content}");
                }
                written += u32::from(session.write("directory/written", "by the host").is_ok());
                if own > 20 && links > 20 && written > 20 {
                    break;
                }
            }
            session.write("stop", "").expect("it is written");
            let answer = swapping.join().expect("the call ends");
            assert!(own > 0 && links > 0 && written > 0, "{who:?}: {own} {links} {written}: {answer}");
        });
        assert_eq!(session.run("ls /tmp"), "", "{who:?}: a link to a directory was followed");
    });
}

/// 36, 37, 39: links of every kind, and things that are no files.
#[test]
fn what_is_no_file_is_refused_and_never_waited_for() {
    const MADE: &str = "
import os, socket, threading
for name, target in [('passwd', '/etc/passwd'), ('environ', '/proc/self/environ'), ('self', '/proc/self/root/etc/passwd'),
                     ('null', '/dev/null'), ('zero', '/dev/zero'), ('etc', '/etc'), ('root', '/proc/self/root'), ('loop', 'loop')]:
    os.symlink(target, name)
os.mkfifo('fifo'); os.mkfifo('held')
held = os.open('held', os.O_RDWR)
server = socket.socket(socket.AF_UNIX); server.bind('socket')
os.mkdir('sub'); open('sub/own', 'w').write('own'); os.link('sub/own', 'hard')
try:
    os.link('/etc/passwd', 'stolen'); print('linked')
except OSError:
    print('no link')
try:
    os.mknod('device', 0o020666, os.makedev(1, 5)); print('made')
except OSError:
    print('no device')
";
    for_every_server("what_is_no_file_is_refused_and_never_waited_for", |who, server| {
        let session = Session::start(server);
        let made = server.call("execute_code", &json!({"code": MADE, "session_id": session.id}));
        assert_eq!(made["result"]["structuredContent"]["stdout"], "no link\nno device\n", "{made}");
        for path in ["passwd", "environ", "self", "null", "zero", "loop"] {
            let refusal = session.read(path).expect_err(path);
            assert!(refusal.contains("symbolic link"), "{who:?}: {path}: {refusal}");
            session.write(path, "x").expect_err(path);
        }
        for path in ["etc/passwd", "root/etc/passwd", "sub/own/x", "etc", "root"] {
            session.read(path).expect_err(path);
            session.list(path).expect_err(path);
        }
        for path in ["fifo", "held", "socket", "sub", "."] {
            session.read(path).expect_err(path);
            session.write(path, "x").expect_err(path);
        }
        assert_eq!(session.read("hard").as_deref(), Ok("own"));
        let kinds = session.list(".").expect("it is listed");
        let kind = |name: &str| {
            kinds["entries"]
                .as_array()
                .expect("a list")
                .iter()
                .find(|entry| entry["name"] == name)
                .map(|e| e["kind"].clone())
        };
        assert_eq!(
            (kind("fifo"), kind("socket"), kind("etc")),
            (Some(json!("other")), Some(json!("other")), Some(json!("link")))
        );
        // Nothing of all this has made the sandbox wait.
        assert_eq!(session.run("echo alive"), "alive\n", "{who:?}");
    });
}

/// 38, 40: names that would mean something to somebody else.
#[test]
fn odd_names_are_names_or_refused() {
    for_every_server("odd_names_are_names_or_refused", |who, server| {
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
            session.write(&path, name).unwrap_or_else(|why| panic!("{name:?}: {why}"));
            assert_eq!(session.read(&path).as_deref(), Ok(name));
        }
        assert_eq!(session.run("ls -A odd | wc -l; ls -Ab odd | wc -l"), "9\n8\n");
        session.run("mkdir bytes; touch \"bytes/$(printf 'x\\377')\"");
        let listed = session.list("bytes").expect("it is listed");
        assert_eq!(
            (&listed["entries"][0]["name"], &listed["entries"][0]["name_base64"]),
            (&json!("x\u{fffd}"), &json!("eP8="))
        );
    });
}

/// 43: one session never sees the files of another, nor its owner those of another principal.
#[test]
fn a_session_has_its_own_files_only() {
    for_every_server("a_session_has_its_own_files_only", |who, server| {
        let (one, other) = (Session::start(server), Session::start(server));
        one.write("file", "of the one").expect("it is written");
        assert!(other.read("file").expect_err("it is not there").contains("no such file"), "{who:?}");
        assert_eq!(other.list(".").expect("it is listed")["entries"], json!([]), "{who:?}");
        let stopped = one.ask("stop_session", &json!({}));
        assert!(stopped.is_ok(), "{stopped:?}");
        assert!(one.read("file").expect_err("it is gone").contains("session not found"), "{who:?}");
        assert_eq!(Session::start(server).list(".").expect("it is listed")["entries"], json!([]), "{who:?}");
    });
}

/// A volume in the workspace is the host's: what may be read and written there is not decided by a path of a call.
#[test]
fn a_volume_is_not_the_sessions_own() {
    for_each_user("a_volume_is_not_the_sessions_own", |who| {
        let volume = who.directory();
        std::fs::write(volume.path().join("file"), "of the host").expect("it is written");
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
            assert!(refusal.as_ref().is_err_and(|why| why.contains("another file system")), "{who:?}: {refusal:?}");
        }
        assert!(!volume.path().join("new").exists() && !volume.path().join("sub").exists(), "{who:?}");
    });
}

#[test]
fn a_file_that_cannot_be_replaced_is_what_it_was() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let write = |content: &str| {
        server.call("write_file", &json!({"session_id": session, "path": "keep.txt", "content": content}))
    };
    assert!(write("precious")["result"].is_object());
    let fill = json!({"command": "cat /dev/zero > fill", "session_id": session});
    assert_ne!(server.call("execute_command", &fill)["result"]["structuredContent"]["exit_code"], 0);
    let refused = write(&"y".repeat(100_000));
    assert_eq!(refused["error"]["data"]["error_code"], "RESOURCE_LIMIT_EXCEEDED", "{refused}");
    let kept = server.call("read_file", &json!({"session_id": session, "path": "keep.txt"}));
    assert_eq!(kept["result"]["structuredContent"]["content"], "precious", "{kept}");
    // What is shorter takes the place of all of it.
    assert!(write("less")["result"].is_object());
    let kept = server.call("read_file", &json!({"session_id": session, "path": "keep.txt"}));
    assert_eq!(kept["result"]["structuredContent"]["content"], "less");
    server.call("execute_command", &json!({"command": "rm fill", "session_id": session}));
    let wrapped = json!({"session_id": session, "path": "wrapped", "content": "aGVs\nbG8=\n", "encoding": "base64"});
    assert_eq!(server.call("write_file", &wrapped)["result"]["structuredContent"]["size"], 5);
}
