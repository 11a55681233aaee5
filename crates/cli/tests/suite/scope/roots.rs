//! Volumes within a scope: sandboxes see no file outside of the allowed roots, even if paths are swapped concurrently.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringfence_testkit::{Server, User, for_each_user};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use super::fixture::{Fixture, run};

/// Disables the pools, so that each sandbox is created on request.
const NO_POOL: &str = "[sessions.pool]\npython = 0\nnode = 0\nbash = 0\n";

#[test]
fn volume_outside_of_the_allowed_roots_is_refused_at_start() {
    for_each_user("volume_outside_of_the_allowed_roots_is_refused_at_start", |user| {
        let fixture = Fixture::new(user);
        symlink(fixture.path("outside"), fixture.path("root/link")).expect("symbolic link is created");
        fs::create_dir(fixture.path("rooted")).expect("directory is created");
        let scope = fixture.scope(&json!({}));
        for (outside, reason) in [
            ("outside", "it lies in none of the allowed roots"),
            ("rooted", "it lies in none of the allowed roots"),
            ("root/link", "the path contains a symbolic link"),
            ("root/missing", "the path does not exist"),
        ] {
            let stderr = fixture.failed_serve(&["--scope", &scope, &fixture.volume(outside, "ro")]);
            assert!(stderr.contains(reason) && stderr.contains("hint: "), "{outside}: {stderr}");
        }
        let server = fixture.serve(&json!({}), &[&fixture.volume("root/project", "ro")]);
        assert_eq!(run(&server, "bash", "cat /shown/content")["stdout"], "inside");
    });
}

/// Exchanges two paths repeatedly until it is dropped.
struct Swapper {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn start(one: &Path, other: &Path) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (one, other, stop) = (one.to_owned(), other.to_owned(), Arc::clone(&is_stopped));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("both paths exist");
            }
        });
        Self { is_stopped, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let result = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(result, Some(Ok(()))), "the paths were not exchanged");
    }
}

/// Creates sessions while `name` is repeatedly swapped with a symbolic link to a directory outside of the root. Each session
/// must see the content inside of the root or be refused, and both must happen. Then checks each state without the swaps:
/// the link is refused, the directory is mounted.
fn race(fixture: &Fixture, server: &Server, name: &str) {
    const MIN_SESSIONS: usize = 40;
    const MAX_SESSIONS: usize = 2000;
    let (name, link) = (fixture.path(name), fixture.path("root/link"));
    let read_content = || server.call("execute_code", &json!({"code": "cat /shown/content", "template": "bash"}));
    let is_refused = |response: &Value| response["error"]["data"]["category"] == "sandbox";
    let (mut shown, mut refused) = (0, 0);
    let swapper = Swapper::start(&name, &link);
    for count in 0..MAX_SESSIONS {
        if count >= MIN_SESSIONS && shown > 0 && refused > 0 {
            break;
        }
        let response = read_content();
        assert!(!response.to_string().contains("secret"), "{response}");
        if response["result"]["structuredContent"]["stdout"] == "inside" {
            shown += 1;
        } else {
            assert!(is_refused(&response), "{response}");
            refused += 1;
        }
    }
    drop(swapper);
    assert!(shown > 0 && refused > 0, "both outcomes must occur: {shown} shown, {refused} refused");
    let exchange = || renameat_with(CWD, &name, CWD, &link, RenameFlags::EXCHANGE).expect("both paths exist");
    if !fs::symlink_metadata(&name).expect("file exists").is_symlink() {
        exchange();
    }
    let response = read_content();
    assert!(is_refused(&response) && response.to_string().contains("the path contains a symbolic link"), "{response}");
    exchange();
    assert_eq!(read_content()["result"]["structuredContent"]["stdout"], "inside");
}

#[test]
fn symlink_swapped_with_a_volume_is_not_followed() {
    for_each_user("symlink_swapped_with_a_volume_is_not_followed", |user| {
        let fixture = Fixture::new(user);
        symlink(fixture.path("outside"), fixture.path("root/link")).expect("symbolic link is created");
        let config = fixture.config(NO_POOL);
        let server = fixture.serve(&json!({}), &["--config", &config, &fixture.volume("root/project", "ro")]);
        race(&fixture, &server, "root/project");
    });
}

#[test]
fn symlink_swapped_with_the_parent_of_a_volume_is_not_followed() {
    for_each_user("symlink_swapped_with_the_parent_of_a_volume_is_not_followed", |user| {
        let fixture = Fixture::new(user);
        for (directory, content) in [("root/project/work", "inside"), ("outside/work", "secret")] {
            fs::create_dir_all(fixture.path(directory)).expect("directory is created");
            fs::write(fixture.path(directory).join("content"), content).expect("file is written");
        }
        symlink(fixture.path("outside"), fixture.path("root/link")).expect("symbolic link is created");
        let config = fixture.config(NO_POOL);
        let server = fixture.serve(&json!({}), &["--config", &config, &fixture.volume("root/project/work", "ro")]);
        race(&fixture, &server, "root/project");
    });
}

#[test]
fn symlink_swapped_with_a_worker_directory_is_not_followed() {
    for_each_user("symlink_swapped_with_a_worker_directory_is_not_followed", |user| {
        let fixture = Fixture::new(user);
        symlink(fixture.path("outside"), fixture.path("root/link")).expect("symbolic link is created");
        let config = fixture.config(NO_POOL);
        let scope = json!({"parallel_worker": true, "worker_artifact_dir": fixture.path("root/project")});
        let server = fixture.serve(&scope, &["--config", &config, &fixture.volume("root/project", "rw")]);
        race(&fixture, &server, "root/project");
        assert_eq!(fs::read_to_string(fixture.path("outside/content")).expect("file exists"), "secret");
    });
}

/// An earlier run may have left the link in a root.
#[test]
fn symlink_as_worker_directory_is_refused_at_start() {
    let fixture = Fixture::new(User::Root);
    symlink(fixture.path("root/other"), fixture.path("root/project/link")).expect("symbolic link is created");
    let artifacts = fixture.path("root/project/link");
    let scope = fixture.scope(&json!({"parallel_worker": true, "worker_artifact_dir": artifacts}));
    let stderr = fixture.failed_serve(&["--scope", &scope]);
    assert!(stderr.contains("the path contains a symbolic link"), "{stderr}");
}

#[test]
fn replaced_root_directory_is_refused() {
    for_each_user("replaced_root_directory_is_refused", |user| {
        let fixture = Fixture::new(user);
        let config = fixture.config(NO_POOL);
        let server = fixture.serve(&json!({}), &["--config", &config, &fixture.volume("root/project", "ro")]);
        fs::rename(fixture.path("root"), fixture.path("moved")).expect("directory is moved");
        fs::create_dir_all(fixture.path("root/project")).expect("directory is created");
        let refused = server.call("execute_code", &json!({"code": "ls /shown", "template": "bash"}));
        assert!(refused.to_string().contains("was replaced by another directory"), "{refused}");
    });
}

#[test]
fn parallel_worker_writes_only_in_its_artifact_directory() {
    for_each_user("parallel_worker_writes_only_in_its_artifact_directory", |user| {
        let fixture = Fixture::new(user);
        let scope = json!({"parallel_worker": true, "worker_artifact_dir": fixture.path("root/project/work")});
        let other = format!("--volume={}:/other:rw", fixture.path("root/other").display());
        let server = fixture.serve(&scope, &[&fixture.volume("root/project", "rw"), &other]);
        let result = run(
            &server,
            "bash",
            "for directory in /shown /other /shown/work; do (echo mine > $directory/made) 2>/dev/null && echo $directory; done; \
             mv /shown/work/made /shown/moved 2>/dev/null; ln /shown/content /shown/work/linked 2>/dev/null; true",
        );
        assert_eq!(result["stdout"], "/shown/work\n", "{result}");
        assert_eq!(fs::read_to_string(fixture.path("root/project/work/made")).expect("file is on the host"), "mine\n");
        for path in ["root/project/made", "root/project/moved", "root/other/made", "root/project/work/linked"] {
            assert!(!fixture.path(path).exists(), "{path}");
        }
        drop(server);
        // If no volume contains the directory, it is mounted in the workspace.
        let server = fixture.serve(&scope, &[]);
        run(&server, "bash", "echo again > artifacts/again");
        assert_eq!(
            fs::read_to_string(fixture.path("root/project/work/again")).expect("file is on the host"),
            "again\n"
        );
    });
}
