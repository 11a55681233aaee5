//! Entry point of the fuzz target `init_frames`.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::control::{Control, Event, ExitStatus, fuzzing};
use crate::guest_path::GuestPath;
use crate::protocol::{Channel, InitReport};

/// Less than the buffer of a socket, so that the single thread never blocks.
const MAX_BYTES: usize = 32 << 10;

/// If this bit of the first byte is set, each line becomes a frame with a valid length.
const LINES: u8 = 0x80;

/// Reads frames of a hostile init. The first byte selects the reader, the second the number of passed descriptors.
pub fn init_frames(data: &[u8]) {
    let [reader, passed, bytes @ ..] = data else { return };
    let bytes = &bytes[..bytes.len().min(MAX_BYTES / 4)];
    let frames = if reader & LINES == 0 { bytes.to_vec() } else { framed(bytes) };
    match reader % 4 {
        0 => events(&frames, *passed),
        1 => reports(&frames, *passed),
        2 => fuzzing::file_replies(|| channel(&frames, *passed), &frames),
        _ => path(bytes),
    }
}

fn framed(lines: &[u8]) -> Vec<u8> {
    let frame = |line: &[u8]| [&u32::try_from(line.len()).expect("short").to_be_bytes(), line].concat();
    lines.split(|byte| *byte == b'\n').flat_map(frame).collect()
}

/// Returns the host's end of a channel after an init has sent these bytes and descriptors and closed its end.
fn channel(bytes: &[u8], passed: u8) -> Channel {
    let (host, init) = Channel::pair().expect("a socket pair");
    let file = empty_file();
    let descriptors: Vec<BorrowedFd<'_>> = (0..passed % 4).map(|_| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    if !bytes.is_empty() {
        let sent = sendmsg(&init, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT).expect("buffer space");
        assert_eq!(sent, bytes.len());
    }
    host
}

fn empty_file() -> OwnedFd {
    rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory")
}

fn events(frames: &[u8], passed: u8) {
    let control = Control::new(channel(frames, passed));
    // The shortest frame has four bytes of length and two of JSON.
    for _ in 0..=frames.len() / 6 {
        match control.next_event() {
            Event::Lost => return,
            Event::Ended { status: ExitStatus::Exited(code), .. } => assert!((0..=255).contains(&code)),
            Event::Ended { status: ExitStatus::Killed(signal), .. } => assert!((1..=64).contains(&signal)),
            Event::Started { .. } | Event::StartFailed { .. } => {}
        }
    }
    panic!("more events than frames");
}

fn reports(frames: &[u8], passed: u8) {
    let channel = channel(frames, passed);
    while let Ok(Some((report, descriptors))) = channel.receive::<InitReport>() {
        assert!(descriptors.len() <= 3);
        let encoded = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(serde_json::from_slice::<InitReport>(&encoded).expect("the same report"), report);
    }
}

fn path(bytes: &[u8]) {
    let Ok(path) = GuestPath::parse(OsStr::from_bytes(bytes)) else { return };
    assert!(path.components().iter().all(|name| GuestPath::is_name(name)));
    let joined = path.components().join(OsStr::new("/"));
    assert_eq!(GuestPath::parse(&joined).expect("a path"), path);
}
