//! What sandboxes are shown of the host: nothing outside of the allowed roots, whoever exchanges names meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use super::desk::{Desk, run};
use crate::everyone::for_everyone;

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
            ("root/link", "a link is on the way to it"),
            ("root/missing", "it is not there"),
        ] {
            let said = desk.refusal(&["--scope", &scope, &desk.volume(outside, "ro")]);
            assert!(said.contains(reason) && said.contains("hint: "), "{outside}: {said}");
        }
        let server = desk.serve(&json!({}), &[&desk.volume("root/project", "ro")]);
        assert_eq!(run(&server, "bash", "cat /shown/content")["stdout"], "inside");
    });
}

/// Each session is made while a name on its way is, now and then, a link that leads out.
#[test]
fn a_link_that_is_exchanged_meanwhile_leads_nowhere() {
    const SESSIONS: usize = 40;
    for_everyone("a_link_that_is_exchanged_meanwhile_leads_nowhere", |who| {
        let desk = Desk::of(who);
        symlink(desk.path("outside"), desk.path("root/link")).expect("a link");
        let config = desk.config(NO_POOL);
        let server = desk.serve(&json!({}), &["--config", &config, &desk.volume("root/project", "ro")]);
        let (project, link) = (desk.path("root/project"), desk.path("root/link"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &project, CWD, &link, RenameFlags::EXCHANGE).expect("both are there");
                }
            });
            for _ in 0..SESSIONS {
                let answer = server.call("execute_code", &json!({"code": "cat /shown/content", "template": "bash"}));
                let (said, shown) = (answer.to_string(), &answer["result"]["structuredContent"]["stdout"]);
                assert!(!said.contains("secret"), "{said}");
                assert!(shown == "inside" || answer["error"]["data"]["category"] == "sandbox", "{said}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        // Left as a link it is refused; put right again it is shown.
        if !fs::symlink_metadata(&project).expect("it is there").is_symlink() {
            renameat_with(CWD, &project, CWD, &link, RenameFlags::EXCHANGE).expect("both are there");
        }
        let refused = server.call("execute_code", &json!({"code": "cat /shown/content", "template": "bash"}));
        assert_eq!(refused["error"]["data"]["category"], "sandbox", "{refused}");
        renameat_with(CWD, &project, CWD, &link, RenameFlags::EXCHANGE).expect("both are there");
        assert_eq!(run(&server, "bash", "cat /shown/content")["stdout"], "inside");
    });
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
        assert!(refused.to_string().contains("no longer the directory that it was"), "{refused}");
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
