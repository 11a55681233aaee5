//! Images that are made here, good and bad, unpacked.

mod attacks;
mod choosing;
mod layout;
mod places;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tar::EntryType;
use tempfile::TempDir;

use super::bounds::Bounds;
use super::{ImageError, Unpacked, unpack, unpack_within};
use layout::{GZIP, Layout, MODIFIED, Made, TAR, ZSTD, gzip, tar};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// An image of these layers, unpacked.
fn unpacked(layers: &[&[(&str, Made<'_>)]]) -> Result<(TempDir, Unpacked), ImageError> {
    unpacked_within(layers, Bounds::default())
}

fn unpacked_within(layers: &[&[(&str, Made<'_>)]], bounds: Bounds) -> Result<(TempDir, Unpacked), ImageError> {
    let mut layout = Layout::new();
    let layers: Vec<(&str, Vec<u8>)> = layers.iter().map(|entries| (TAR, tar(entries))).collect();
    layout.add_image(&layers);
    let cache = tempfile::tempdir().unwrap();
    let unpacked = unpack_within(layout.path(), cache.path(), bounds)?;
    Ok((cache, unpacked))
}

/// All that is beneath a directory, in order: `path` of directories, `path=content` of files, `path>target` of links.
fn all(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                found.push(name.to_string());
                walk(root, &path, found);
            } else if kind.is_symlink() {
                found.push(format!("{name}>{}", fs::read_link(&path).unwrap().display()));
            } else {
                found.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}

#[test]
fn layers_are_laid_over_each_other() {
    let mut layout = Layout::new();
    let lower = tar(&[
        ("./", Made::Directory(0o755)),
        ("usr/bin/", Made::Directory(0o2755)),
        ("bin", Made::Link("usr/bin")),
        ("usr/bin/su", Made::File(0o4755, "lower")),
        ("closed/", Made::Directory(0)),
        ("closed/secret", Made::File(0o600, "s")),
        ("shut/", Made::Directory(0)),
        ("file", Made::File(0o644, "lower")),
        ("second", Made::Hard("file")),
        ("becomes/a/directory", Made::File(0o644, "no")),
    ]);
    let upper = tar(&[
        ("bin/sh", Made::File(0o755, "through a link")),
        ("file", Made::File(0o640, "upper")),
        ("becomes", Made::File(0o644, "a file")),
        ("closed", Made::Directory(0o1777)),
        ("dev/null", Made::Other(EntryType::Char)),
        ("dev/sda", Made::Other(EntryType::Block)),
        ("pipe", Made::Other(EntryType::Fifo)),
    ]);
    let top = tar(&[("top", Made::File(0o644, "of all"))]);
    let top = compress_to_vec(&top[..], CompressionLevel::Fastest);
    layout.add_image(&[(TAR, lower), (GZIP, gzip(&upper)), (ZSTD, top)]);
    for image in [layout.path().to_owned(), layout.archive("./"), layout.archive("")] {
        let cache = tempfile::tempdir().unwrap();
        let Unpacked { root, environment } = unpack(&image, cache.path()).unwrap();
        let expected = [
            "becomes=a file",
            "bin>usr/bin",
            "closed",
            "closed/secret=s",
            "file=upper",
            "second=lower",
            "shut",
            "top=of all",
            "usr",
            "usr/bin",
            "usr/bin/sh=through a link",
            "usr/bin/su=lower",
        ];
        assert_eq!(all(&root), expected);
        let modes = ["", "usr/bin", "usr/bin/su", "closed", "closed/secret", "file", "usr", "shut"]
            .map(|path| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777);
        assert_eq!(modes, [0o755, 0o755, 0o755, 0o1777, 0o600, 0o640, 0o755, 0o700]);
        assert_eq!(fs::metadata(root.join("file")).unwrap().mtime(), MODIFIED);
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(environment, [("GREETING", "hello"), ("PATH", "/opt/bin:/bin")]);
    }
}

#[test]
fn what_a_layer_takes_away_is_gone() {
    let lower: &[(&str, Made<'_>)] = &[
        ("a/gone", Made::File(0o644, "")),
        ("a/stays", Made::File(0o644, "")),
        ("directory/below/file", Made::File(0o644, "")),
        ("opaque/lower", Made::File(0o644, "")),
        ("opaque/kept/lower", Made::File(0o644, "")),
        ("opaque/deep/er/lower", Made::File(0o644, "")),
        ("late/lower", Made::File(0o644, "")),
        ("late/both", Made::File(0o644, "lower")),
        ("link", Made::Link("a")),
    ];
    let upper: &[(&str, Made<'_>)] = &[
        ("a/.wh.gone", Made::File(0o644, "")),
        (".wh.directory", Made::File(0o644, "")),
        ("nowhere/.wh.nothing", Made::File(0o644, "")),
        (".wh.link", Made::File(0o644, "")),
        (".wh..wh.plnk", Made::Directory(0o700)),
        ("opaque/.wh..wh..opq", Made::File(0o644, "")),
        ("opaque/upper", Made::File(0o644, "")),
        ("opaque/kept/upper", Made::File(0o644, "")),
        // Of its own layer nothing is taken away, in whatever order it comes.
        ("late/upper", Made::File(0o644, "")),
        ("late/both", Made::File(0o644, "upper")),
        ("late/deep/er/upper", Made::File(0o644, "")),
        ("late/.wh..wh..opq", Made::File(0o644, "")),
        ("own", Made::File(0o644, "")),
        (".wh.own", Made::File(0o644, "")),
    ];
    let (_cache, Unpacked { root, .. }) = unpacked(&[lower, upper]).unwrap();
    let expected = [
        "a",
        "a/stays=",
        "late",
        "late/both=upper",
        "late/deep",
        "late/deep/er",
        "late/deep/er/upper=",
        "late/upper=",
        "opaque",
        "opaque/kept",
        "opaque/kept/upper=",
        "opaque/upper=",
        "own=",
    ];
    assert_eq!(all(&root), expected);
}
