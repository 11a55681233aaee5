//! `ringfence run`: the command, its options and its exit code.

mod isolation;
mod limits;
mod streams;
mod volumes;

use ringfence_testkit::{for_each_user, run_as};

#[test]
fn command_output_is_returned() {
    for_each_user("command_output_is_returned", |user| {
        let outcome = run_as(user, &[], &["python3", "-c", "print(1+1)"]);
        assert_eq!((outcome.code, outcome.text(), outcome.stderr), (0, "2\n".into(), String::new()), "{user:?}");
    });
}

#[test]
fn every_template_has_its_interpreter() {
    for_each_user("every_template_has_its_interpreter", |user| {
        for (template, command) in [
            ("python", ["python3", "-c", "print('here')"].as_slice()),
            ("node", &["node", "-e", "console.log('here')"]),
            ("bash", &["bash", "-c", "echo here"]),
            ("shell", &["sh", "-c", "echo here"]),
        ] {
            let outcome = run_as(user, &["--template", template], command);
            assert_eq!(outcome.text(), "here\n", "{user:?} {template}: {}", outcome.stderr);
        }
    });
}

#[test]
fn exit_code_is_passed_on() {
    for_each_user("exit_code_is_passed_on", |user| {
        let code = |options: &[&str], command: &[&str]| run_as(user, options, command).code;
        assert_eq!(code(&[], &["sh", "-c", "exit 0"]), 0, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "exit 42"]), 42, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -TERM $$"]), 128 + 15, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -KILL $$"]), 128 + 9, "{user:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sleep", "60"]), 124, "{user:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sh", "-c", "trap '' TERM; sleep 60"]), 124, "{user:?}");
    });
}

#[test]
fn options_apply_to_the_command() {
    for_each_user("options_apply_to_the_command", |user| {
        let script = "pwd; echo $A $HOST_SECRET; ulimit -n; cat /proc/self/limits | grep -c 'Max processes *77 '";
        let options =
            ["--workdir", "/tmp", "--env", "A=b=c", "--env", "HOST_SECRET", "--nofile", "333", "--pids", "77"];
        let outcome = run_as(user, &options, &["sh", "-c", script]);
        assert_eq!(outcome.text(), "/tmp\nb=c a-secret-of-the-host\n333\n1\n", "{user:?}: {}", outcome.stderr);
    });
}
