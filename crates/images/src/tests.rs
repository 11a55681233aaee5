//! Tests that unpack valid, invalid and hostile images.

mod cache;
mod fixture;
mod hostile_images;
mod selection;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tar::EntryType;
use tempfile::TempDir;

use super::limits::Limits;
use super::{ImageError, UnpackedImage, unpack, unpack_with_limits};
use fixture::{Entry, GZIP, LayoutFixture, MODIFIED, TAR, ZSTD, gzip, tar};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Builds an image of these layers and unpacks it.
fn unpack_layers(layers: &[&[(&str, Entry<'_>)]]) -> Result<(TempDir, UnpackedImage), ImageError> {
    unpack_layers_with_limits(layers, Limits::default())
}

fn unpack_layers_with_limits(
    layers: &[&[(&str, Entry<'_>)]],
    limits: Limits,
) -> Result<(TempDir, UnpackedImage), ImageError> {
    let mut layout = LayoutFixture::new();
    let layers: Vec<(&str, Vec<u8>)> = layers.iter().map(|entries| (TAR, tar(entries))).collect();
    layout.add_image(&layers);
    let cache = tempfile::tempdir().unwrap();
    let unpacked = unpack_with_limits(layout.path(), cache.path(), limits)?;
    Ok((cache, unpacked))
}

/// Lists everything below a directory, sorted: `path` for directories, `path=content` for files, `path>target` for links.
fn list(root: &Path) -> Vec<String> {
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
fn layers_are_applied_in_order() {
    let mut layout = LayoutFixture::new();
    let lower = tar(&[
        ("./", Entry::Directory(0o755)),
        ("usr/bin/", Entry::Directory(0o2755)),
        ("bin", Entry::Symlink("usr/bin")),
        ("usr/bin/su", Entry::File(0o4755, "lower")),
        ("closed/", Entry::Directory(0)),
        ("closed/secret", Entry::File(0o600, "s")),
        ("shut/", Entry::Directory(0)),
        ("file", Entry::File(0o644, "lower")),
        ("second", Entry::HardLink("file")),
        ("becomes/a/directory", Entry::File(0o644, "no")),
    ]);
    let upper = tar(&[
        ("bin/sh", Entry::File(0o755, "through a link")),
        ("file", Entry::File(0o640, "upper")),
        ("becomes", Entry::File(0o644, "a file")),
        ("closed", Entry::Directory(0o1777)),
        ("dev/null", Entry::Other(EntryType::Char)),
        ("dev/sda", Entry::Other(EntryType::Block)),
        ("pipe", Entry::Other(EntryType::Fifo)),
    ]);
    let top = tar(&[("top", Entry::File(0o644, "of all"))]);
    let top = compress_to_vec(&top[..], CompressionLevel::Fastest);
    layout.add_image(&[(TAR, lower), (GZIP, gzip(&upper)), (ZSTD, top)]);
    for image in [layout.path().to_owned(), layout.create_archive("./"), layout.create_archive("")] {
        let cache = tempfile::tempdir().unwrap();
        let UnpackedImage { root, environment } = unpack(&image, cache.path()).unwrap();
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
        assert_eq!(list(&root), expected);
        let modes = ["", "usr/bin", "usr/bin/su", "closed", "closed/secret", "file", "usr", "shut"]
            .map(|path| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777);
        assert_eq!(modes, [0o755, 0o755, 0o755, 0o1777, 0o600, 0o640, 0o755, 0o700]);
        assert_eq!(fs::metadata(root.join("file")).unwrap().mtime(), MODIFIED);
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(environment, [("GREETING", "hello"), ("PATH", "/opt/bin:/bin")]);
    }
}

#[test]
fn whiteouts_hide_files_of_lower_layers() {
    let lower: &[(&str, Entry<'_>)] = &[
        ("a/gone", Entry::File(0o644, "")),
        ("a/stays", Entry::File(0o644, "")),
        ("directory/below/file", Entry::File(0o644, "")),
        ("opaque/lower", Entry::File(0o644, "")),
        ("opaque/kept/lower", Entry::File(0o644, "")),
        ("opaque/deep/er/lower", Entry::File(0o644, "")),
        ("late/lower", Entry::File(0o644, "")),
        ("late/both", Entry::File(0o644, "lower")),
        ("link", Entry::Symlink("a")),
    ];
    let upper: &[(&str, Entry<'_>)] = &[
        ("a/.wh.gone", Entry::File(0o644, "")),
        (".wh.directory", Entry::File(0o644, "")),
        ("nowhere/.wh.nothing", Entry::File(0o644, "")),
        (".wh.link", Entry::File(0o644, "")),
        (".wh..wh.plnk", Entry::Directory(0o700)),
        ("opaque/.wh..wh..opq", Entry::File(0o644, "")),
        ("opaque/upper", Entry::File(0o644, "")),
        ("opaque/kept/upper", Entry::File(0o644, "")),
        // Whiteouts do not hide files of their own layer, in whatever order the entries come.
        ("late/upper", Entry::File(0o644, "")),
        ("late/both", Entry::File(0o644, "upper")),
        ("late/deep/er/upper", Entry::File(0o644, "")),
        ("late/.wh..wh..opq", Entry::File(0o644, "")),
        ("own", Entry::File(0o644, "")),
        (".wh.own", Entry::File(0o644, "")),
    ];
    let (_cache, UnpackedImage { root, .. }) = unpack_layers(&[lower, upper]).unwrap();
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
    assert_eq!(list(&root), expected);
}
