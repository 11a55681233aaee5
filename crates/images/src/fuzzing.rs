//! Entry point of the fuzz target `tar_layers`.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tar::{EntryType, Header};

use crate::compression::ZstdReader;
use crate::layer::apply_tar;
use crate::limits::{Limits, MAX_DEPTH};
use crate::rootfs::Rootfs;

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 64, visits: 2000 };

/// A byte that is replaced with the path of the directory outside of the image.
const OUTSIDE: u8 = 1;

const KINDS: [EntryType; 8] = [
    EntryType::Regular,
    EntryType::Directory,
    EntryType::Symlink,
    EntryType::Link,
    EntryType::GNULongName,
    EntryType::XHeader,
    EntryType::GNULongLink,
    EntryType::Fifo,
];

/// Unpacks hostile layers. The first byte selects the form: raw tar, gzip, zstd, or a list of entries from which
/// valid tar archives are built.
pub fn tar_layers(data: &[u8]) {
    let [form, rest @ ..] = data else { return };
    let outside = tempfile::tempdir().expect("a directory");
    let root = outside.path().join("root");
    fs::create_dir(&root).expect("a directory");
    fs::write(outside.path().join("canary"), "alive").expect("a file");
    {
        let mut rootfs = Rootfs::open(&root, LIMITS).expect("a root file system");
        let _ = match form % 4 {
            0 => apply_tar(rest, LIMITS.bytes, &mut rootfs),
            1 => apply_tar(MultiGzDecoder::new(rest), LIMITS.bytes, &mut rootfs),
            2 => apply_tar(ZstdReader::new(rest), LIMITS.bytes, &mut rootfs),
            _ => {
                let mut layers = build_layers(rest, outside.path()).into_iter();
                layers.try_fold(LIMITS.bytes, |bytes_left, layer| apply_tar(layer.as_slice(), bytes_left, &mut rootfs))
            }
        };
    }
    assert_confined(outside.path(), &root);
}

/// Builds archives of the entries that the bytes describe: kind and flags, mode, name, target, content.
fn build_layers(mut bytes: &[u8], outside: &Path) -> Vec<Vec<u8>> {
    let mut layers = vec![Vec::new()];
    while let Some((kind, mode)) = read_byte(&mut bytes).zip(read_byte(&mut bytes)) {
        let (Some(name), Some(target), Some(content)) =
            (read_text(&mut bytes, outside), read_text(&mut bytes, outside), read_text(&mut bytes, outside))
        else {
            break;
        };
        if kind & 0x80 != 0 {
            layers.push(Vec::new());
        }
        let mut header = if kind & 0x40 != 0 { Header::new_gnu() } else { Header::new_ustar() };
        header.set_entry_type(KINDS[usize::from(kind) % KINDS.len()]);
        header.set_mode(u32::from(mode) << 4 | 0o7);
        header.set_size(content.len() as u64);
        copy_into(&mut header.as_old_mut().name, &name);
        copy_into(&mut header.as_old_mut().linkname, &target);
        header.set_cksum();
        let layer = layers.last_mut().expect("a layer");
        layer.extend_from_slice(header.as_bytes());
        layer.extend_from_slice(&content);
        layer.resize(layer.len().next_multiple_of(512), 0);
    }
    layers
}

fn read_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn read_text(bytes: &mut &[u8], outside: &Path) -> Option<Vec<u8>> {
    let length = usize::from(read_byte(bytes)?);
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let expand = |byte: &u8| if *byte == OUTSIDE { outside.as_os_str().as_bytes().to_vec() } else { vec![*byte] };
    Some(text.iter().flat_map(expand).collect())
}

fn copy_into(field: &mut [u8; 100], text: &[u8]) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
}

/// Asserts that nothing changed outside of the root, and that the contents of the root are within the limits.
fn assert_confined(outside: &Path, root: &Path) {
    let mut names: Vec<_> =
        fs::read_dir(outside).expect("names").map(|entry| entry.expect("a name").file_name()).collect();
    names.sort();
    assert_eq!(names, ["canary", "root"]);
    let canary = outside.join("canary");
    assert_eq!(fs::read(&canary).expect("the canary"), b"alive");
    assert_eq!(fs::symlink_metadata(&canary).expect("the canary").permissions().mode() & 0o022, 0);
    let (mut entries, mut bytes) = (0, 0);
    walk(root, 0, &mut |path, metadata| {
        entries += 1;
        assert_eq!(metadata.permissions().mode() & 0o6000, 0, "{} is setuid or setgid", path.display());
        if metadata.is_file() {
            bytes += metadata.len();
        }
    });
    // Hard links are counted by each of their names.
    assert!(entries <= LIMITS.entries && bytes <= LIMITS.bytes * LIMITS.entries);
}

fn walk(directory: &Path, depth: u32, visit: &mut impl FnMut(&Path, &fs::Metadata)) {
    assert!(depth < MAX_DEPTH, "the tree is too deep");
    for entry in fs::read_dir(directory).expect("names") {
        let path = entry.expect("a name").path();
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        visit(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, depth + 1, visit);
        }
    }
}
