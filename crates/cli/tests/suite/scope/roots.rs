//! What sandboxes are shown of the host: nothing outside of the allowed roots, whoever exchanges names meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringfence_testkit::Who;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use super::desk::{Desk, run};
use crate::everyone::for_everyone;
use crate::server::Server;

/// Without any that wait ready: each session is made when it is asked for.
const NO_POOL: &str = "[sessions.pool]\npython = 0\nnode = 0\nbash = 0\n";

#[test]
fn a_volume_outside_of_the_roots_is_refused_at_the_start() {
    for_everyone("a_volume_outside_of_the_roots_is_refused_at_the_start", |who| {
        let desk = Desk::of(who);
        symlink(desk.path("outside"), desk.path("root/link")).expect("a link");
        fs::create_dir(desk.path("rooted")).expect("a directory");
        let scope = desk.scope(&json!({}));
        for (outside, reason) in [
            ("outside", "it lies in none of the allowed roots"),
            ("rooted", "it lies in none of the allowed roots"),
            ("root/link", "the path contains a symbolic link"),
            ("root/missing", "the path does not exist"),
        ] {
            let said = desk.refusal(&["--scope", &scope, &desk.volume(outside, "ro")]);
            assert!(said.contains(reason) && said.contains("hint: "), "{outside}: {said}");
        }
        let server = desk.serve(&json!({}), &[&desk.volume("root/project", "ro")]);
        assert_eq!(run(&server, "bash", "cat /shown/content")["stdout"], "inside");
    });
}

/// Exchanges two names again and again, until it is dropped.
struct Swapper {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    fn of(one: &Path, other: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (one, other, over) = (one.to_owned(), other.to_owned(), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("both are there");
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the names were not exchanged");
    }
}

/// Makes sessions while `name` is, now and then, a link that leads out of the root; each is to show the content that
/// lies inside, or nothing. Afterwards it is seen that the link alone is refused, and what is inside is shown.
fn race(desk: &Desk, server: &Server, name: &str) {
    const LEAST: usize = 40;
    const MOST: usize = 2000;
    let (name, link) = (desk.path(name), desk.path("root/link"));
    let look = || server.call("execute_code", &json!({"code": "cat /shown/content", "template": "bash"}));
    let is_refused = |answer: &Value| answer["error"]["data"]["category"] == "sandbox";
    let (mut shown, mut refused) = (0, 0);
    let swapper = Swapper::of(&name, &link);
    for made in 0..MOST {
        if made >= LEAST && shown > 0 && refused > 0 {
            break;
        }
        let answer = look();
        let said = answer.to_string();
        assert!(!said.contains("secret"), "{said}");
        if answer["result"]["structuredContent"]["stdout"] == "inside" {
            shown += 1;
        } else {
            assert!(is_refused(&answer), "{said}");
            refused += 1;
        }
    }
    drop(swapper);
    assert!(shown > 0 && refused > 0, "both were to be met with: {shown} shown, {refused} refused");
    let exchange = || renameat_with(CWD, &name, CWD, &link, RenameFlags::EXCHANGE).expect("both are there");
    if !fs::symlink_metadata(&name).expect("it is there").is_symlink() {
        exchange();
    }
    let answer = look();
    assert!(is_refused(&answer) && answer.to_string().contains("the path contains a symbolic link"), "{answer}");
    exchange();
    assert_eq!(look()["result"]["structuredContent"]["stdout"], "inside");
}

#[test]
fn a_link_that_is_exchanged_meanwhile_leads_nowhere() {
    for_everyone("a_link_that_is_exchanged_meanwhile_leads_nowhere", |who| {
        let desk = Desk::of(who);
        symlink(desk.path("outside"), desk.path("root/link")).expect("a link");
        let config = desk.config(NO_POOL);
        let server = desk.serve(&json!({}), &["--config", &config, &desk.volume("root/project", "ro")]);
        race(&desk, &server, "root/project");
    });
}

#[test]
fn nor_does_one_above_a_volume() {
    for_everyone("nor_does_one_above_a_volume", |who| {
        let desk = Desk::of(who);
        for (directory, content) in [("root/project/work", "inside"), ("outside/work", "secret")] {
            fs::create_dir_all(desk.path(directory)).expect("a directory");
            fs::write(desk.path(directory).join("content"), content).expect("a file");
        }
        symlink(desk.path("outside"), desk.path("root/link")).expect("a link");
        let config = desk.config(NO_POOL);
        let server = desk.serve(&json!({}), &["--config", &config, &desk.volume("root/project/work", "ro")]);
        race(&desk, &server, "root/project");
    });
}

#[test]
fn nor_does_one_in_the_place_of_a_workers_directory() {
    for_everyone("nor_does_one_in_the_place_of_a_workers_directory", |who| {
        let desk = Desk::of(who);
        symlink(desk.path("outside"), desk.path("root/link")).expect("a link");
        let config = desk.config(NO_POOL);
        let scope = json!({"parallel_worker": true, "worker_artifact_dir": desk.path("root/project")});
        let server = desk.serve(&scope, &["--config", &config, &desk.volume("root/project", "rw")]);
        race(&desk, &server, "root/project");
        assert_eq!(fs::read_to_string(desk.path("outside/content")).expect("it is there"), "secret");
    });
}

/// A link that an earlier run has left in a root is not the directory of a worker.
#[test]
fn a_workers_directory_that_is_a_link_is_refused_at_the_start() {
    let desk = Desk::of(Who::Root);
    symlink(desk.path("root/other"), desk.path("root/project/planted")).expect("a link");
    let artifacts = desk.path("root/project/planted");
    let scope = desk.scope(&json!({"parallel_worker": true, "worker_artifact_dir": artifacts}));
    let said = desk.refusal(&["--scope", &scope]);
    assert!(said.contains("the path contains a symbolic link"), "{said}");
}

#[test]
fn another_directory_in_the_place_of_a_root_is_not_it() {
    for_everyone("another_directory_in_the_place_of_a_root_is_not_it", |who| {
        let desk = Desk::of(who);
        let config = desk.config(NO_POOL);
        let server = desk.serve(&json!({}), &["--config", &config, &desk.volume("root/project", "ro")]);
        fs::rename(desk.path("root"), desk.path("before")).expect("it is moved");
        fs::create_dir_all(desk.path("root/project")).expect("a directory");
        let refused = server.call("execute_code", &json!({"code": "ls /shown", "template": "bash"}));
        assert!(refused.to_string().contains("was replaced by another directory"), "{refused}");
    });
}

#[test]
fn a_parallel_worker_writes_only_in_its_own_directory() {
    for_everyone("a_parallel_worker_writes_only_in_its_own_directory", |who| {
        let desk = Desk::of(who);
        let scope = json!({"parallel_worker": true, "worker_artifact_dir": desk.path("root/project/work")});
        let other = format!("--volume={}:/other:rw", desk.path("root/other").display());
        let server = desk.serve(&scope, &[&desk.volume("root/project", "rw"), &other]);
        let wrote = run(
            &server,
            "bash",
            "for at in /shown /other /shown/work; do (echo mine > $at/made) 2>/dev/null && echo $at; done; \
             mv /shown/work/made /shown/moved 2>/dev/null; ln /shown/content /shown/work/linked 2>/dev/null; true",
        );
        assert_eq!(wrote["stdout"], "/shown/work\n", "{wrote}");
        assert_eq!(fs::read_to_string(desk.path("root/project/work/made")).expect("it is on the host"), "mine\n");
        for nowhere in ["root/project/made", "root/project/moved", "root/other/made", "root/project/work/linked"] {
            assert!(!desk.path(nowhere).exists(), "{nowhere}");
        }
        drop(server);
        // Where no volume shows it, it has a place of its own.
        let server = desk.serve(&scope, &[]);
        run(&server, "bash", "echo again > artifacts/again");
        assert_eq!(fs::read_to_string(desk.path("root/project/work/again")).expect("it is on the host"), "again\n");
    });
}
