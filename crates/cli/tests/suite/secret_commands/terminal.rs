//! The prompt for a value on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use ringfence_testkit::User;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::{VALUE, list};

/// Types keys at the prompt; returns what the terminal shows, and whether the command succeeds.
fn type_keys(state: &tempfile::TempDir, keys: &str) -> (String, bool) {
    let controlling = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("open a terminal");
    grantpt(&controlling).and_then(|()| unlockpt(&controlling)).expect("unlock the terminal");
    let name = ptsname(&controlling, Vec::new()).expect("the name of the terminal");
    let name = name.to_str().expect("valid UTF-8");
    let terminal = File::options().read(true).write(true).open(name).expect("open the terminal");
    let mut command = User::Root.ringfence();
    command.args(["secret", "add", "github", "--host", "api.github.com"]);
    command.env("RINGFENCE_STATE_DIR", state.path()).env("HOME", state.path()).current_dir(state.path());
    command.stdin(Stdio::from(terminal.try_clone().expect("copy the descriptor")));
    command.stderr(Stdio::from(terminal.try_clone().expect("copy the descriptor"))).stdout(Stdio::null());
    let mut child = command.spawn().expect("start the command");
    let mut screen = File::from(controlling);
    let mut shown = Vec::new();
    let mut buffer = [0; 1024];
    while !String::from_utf8_lossy(&shown).contains("(not shown): ") {
        let length = screen.read(&mut buffer).expect("read from the terminal");
        shown.extend_from_slice(&buffer[..length]);
    }
    screen.write_all(keys.as_bytes()).expect("type");
    let status = child.wait().expect("the command ends");
    let modes = tcgetattr(&terminal).expect("the mode of the terminal").local_modes;
    assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "the terminal is restored");
    // The last descriptor of the terminal is closed, so that reading ends with an error.
    drop((terminal, command));
    while let Ok(length @ 1..) = screen.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..length]);
    }
    (String::from_utf8_lossy(&shown).into_owned(), status.success())
}

#[test]
fn prompt_shows_no_key_and_restores_the_terminal() {
    let state = User::Root.directory();
    let (shown, is_added) = type_keys(&state, "abandoned\x03");
    assert!(!is_added && shown.contains("cancelled") && !shown.contains("abandoned"), "{shown}");
    assert_eq!(list(User::Root, &state).len(), 0);
    // Longer than a line that a terminal edits itself.
    let long = format!("{VALUE}{}", "x".repeat(5000));
    let (shown, is_added) = type_keys(&state, &format!("wrong\x15{long}\r"));
    assert!(is_added && !shown.contains("wrong") && !shown.contains(VALUE), "{shown}");
    let stored = std::fs::read_to_string(state.path().join("secrets.json")).expect("read the file");
    assert!(stored.contains(&format!("\"{long}\"")));
}
