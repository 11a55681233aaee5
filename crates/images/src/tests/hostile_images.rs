//! Hostile images: escapes from the root file system, and excessive sizes.

use tar::Header;

use super::*;

fn unpack_error(layers: &[&[(&str, Entry<'_>)]]) -> String {
    unpack_layers(layers).map(|(_, image)| list(&image.root)).unwrap_err().to_string()
}

/// Creates a directory with a file that no image may touch.
fn outside_directory() -> (TempDir, String) {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("canary"), "alive").unwrap();
    let path = outside.path().to_str().unwrap().to_owned();
    (outside, path)
}

#[test]
fn paths_with_parent_components_are_refused() {
    for path in ["../up", "a/../../up", "a/..", "..", "/../up", ".wh...", "a/.wh...", "a/../.wh.b"] {
        let error = unpack_error(&[&[("a/b", Entry::File(0o644, ""))], &[(path, Entry::File(0o644, "bad"))]]);
        assert!(error.contains("contains `..`") || error.contains("the whiteout names no file"), "{path}: {error}");
    }
    let error = unpack_error(&[&[("link", Entry::HardLink("../../../../../../../../etc/passwd"))]]);
    assert!(error.contains("contains `..`"), "{error}");
}

#[test]
fn absolute_paths_start_at_the_root_file_system() {
    let (_outside, path) = outside_directory();
    let target = format!("{path}/created");
    let (_cache, UnpackedImage { root, .. }) = unpack_layers(&[&[(&*target, Entry::File(0o644, "inside"))]]).unwrap();
    assert!(!Path::new(&target).exists());
    assert_eq!(fs::read_to_string(root.join(target.trim_start_matches('/'))).unwrap(), "inside");
}

#[test]
fn links_of_earlier_entries_do_not_lead_outside() {
    let (outside, path) = outside_directory();
    let up = format!("../../../../../../../../..{path}");
    let canary = format!("{path}/canary");
    for target in [&path, &up] {
        let links: &[(&str, Entry<'_>)] = &[
            (path.trim_start_matches('/'), Entry::Directory(0o755)),
            ("way", Entry::Symlink(target)),
            ("end", Entry::Symlink(&canary)),
            ("hard", Entry::HardLink("end")),
        ];
        let attack: &[(&str, Entry<'_>)] = &[
            ("way/planted", Entry::File(0o644, "bad")),
            ("way/.wh.canary", Entry::File(0o644, "")),
            ("way/.wh..wh..opq", Entry::File(0o644, "")),
            ("way/made/below", Entry::Directory(0o777)),
            // Links with the name of an entry are replaced, not followed.
            ("end", Entry::File(0o666, "bad")),
            ("hard", Entry::File(0o666, "bad")),
        ];
        let (_cache, UnpackedImage { root, .. }) = unpack_layers(&[links, attack]).unwrap();
        assert_eq!(list(outside.path()), ["canary=alive"], "{target}");
        assert_eq!(fs::read_to_string(root.join(&path[1..]).join("planted")).unwrap(), "bad");
        assert_eq!(fs::read_to_string(root.join("end")).unwrap(), "bad");
    }
}

#[test]
fn hard_link_to_file_outside_is_refused() {
    let (_outside, path) = outside_directory();
    let canary = format!("{path}/canary");
    let links: [&[(&str, Entry<'_>)]; 2] = [
        &[("hard", Entry::HardLink(&canary))],
        &[("way", Entry::Symlink(&path)), ("hard", Entry::HardLink("way/canary"))],
    ];
    for entries in links {
        let error = unpack_error(&[entries]);
        assert!(error.contains("hard from the image: No such file or directory"), "{error}");
    }
    // A hard link to a symbolic link is a second name of that link.
    let (_cache, UnpackedImage { root, .. }) =
        unpack_layers(&[&[("end", Entry::Symlink(&canary)), ("hard", Entry::HardLink("end"))]]).unwrap();
    assert_eq!(list(&root), [format!("end>{canary}"), format!("hard>{canary}")]);
}

#[test]
fn nothing_is_written_through_a_hard_link() {
    let layers: [&[(&str, Entry<'_>)]; 2] = [
        &[("one", Entry::File(0o644, "first")), ("other", Entry::HardLink("one"))],
        &[("other", Entry::File(0o600, "second"))],
    ];
    let (_cache, UnpackedImage { root, .. }) = unpack_layers(&layers).unwrap();
    assert_eq!(list(&root), ["one=first", "other=second"]);
}

#[test]
fn decompression_bombs_exceed_limits() {
    let limits = |bytes, entries| Limits { bytes, entries, visits: 100 };
    let zeros = "\0".repeat(1 << 20);
    let files = [("a", Entry::File(0o644, &zeros)), ("b", Entry::File(0o644, &zeros))];
    // Two megabytes of zeros are a few kilobytes when compressed.
    let mut layout = LayoutFixture::new();
    layout.add_image(&[(GZIP, gzip(&tar(&files[..1]))), (GZIP, gzip(&tar(&files[1..])))]);
    let cache = tempfile::tempdir().unwrap();
    assert!(unpack_with_limits(layout.path(), cache.path(), limits(3 << 20, 10)).is_ok());
    let cache = tempfile::tempdir().unwrap();
    let error = unpack_with_limits(layout.path(), cache.path(), limits(3 << 19, 10)).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge(_)), "{error}");

    let error = unpack_layers_with_limits(&[&files], limits(8 << 20, 1)).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge(_)), "{error}");
    // Directories that no entry describes count too.
    let deep = [("a/b/c/d", Entry::File(0o644, ""))];
    assert!(unpack_layers_with_limits(&[&deep], limits(8 << 20, 4)).is_ok());
    let error = unpack_layers_with_limits(&[&deep], limits(8 << 20, 3)).unwrap_err().to_string();
    assert!(error.contains("too many directories"), "{error}");
}

#[test]
fn work_for_whiteouts_is_limited() {
    let names: Vec<String> = (0..50).map(|number| format!("d/{number}")).collect();
    let mut layer: Vec<(&str, Entry<'_>)> = names.iter().map(|name| (&**name, Entry::File(0o644, ""))).collect();
    layer.push(("d/.wh..wh..opq", Entry::File(0o644, "")));
    let limits = Limits { visits: 150, ..Limits::default() };
    assert!(unpack_layers_with_limits(&[&layer], limits).is_ok());
    layer.extend([("d/.wh..wh..opq", Entry::File(0o644, "")), ("d/.wh..wh..opq", Entry::File(0o644, ""))]);
    assert!(unpack_layers_with_limits(&[&layer], limits).is_err());
}

#[test]
fn top_level_names_and_layers_are_limited() {
    let names: Vec<String> = (0..513).map(|number| format!("{number}")).collect();
    let files: Vec<(&str, Entry<'_>)> = names.iter().map(|name| (&**name, Entry::File(0o644, ""))).collect();
    assert!(unpack_layers(&[&files[..512]]).is_ok());
    assert!(matches!(unpack_layers(&[&files]), Err(ImageError::TooLarge(_))));
    let mut layout = LayoutFixture::new();
    layout.add_image(&vec![(GZIP, gzip(&tar(&[]))); 513]);
    let cache = tempfile::tempdir().unwrap();
    assert!(matches!(unpack(layout.path(), cache.path()), Err(ImageError::TooLarge(_))));
}

#[test]
fn links_do_not_exceed_directory_depth() {
    let down = "d/".repeat(40);
    let mut layers = Vec::new();
    for (link, below) in [("a", ""), ("b", "a/"), ("c", "b/"), ("e", "c/")] {
        layers.push([(format!("{below}{down}"), None), (link.to_owned(), Some(format!("{below}{down}")))]);
    }
    let layers: Vec<Vec<(&str, Entry<'_>)>> = layers
        .iter()
        .map(|layer| {
            let entry = |target: &'_ Option<String>| match target {
                Some(target) => Entry::Symlink(Box::leak(target.clone().into_boxed_str())),
                None => Entry::Directory(0o755),
            };
            layer.iter().map(|(path, target)| (&**path, entry(target))).collect()
        })
        .collect();
    let layers: Vec<&[(&str, Entry<'_>)]> = layers.iter().map(Vec::as_slice).collect();
    assert!(unpack_layers(&layers[..3]).is_ok());
    let error = unpack_error(&layers);
    assert!(error.contains("nested more than 128 levels deep"), "{error}");
}

#[test]
fn size_of_tar_extensions_is_checked_before_reading() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(8 << 30);
        header.set_mode(0o644);
        header.set_cksum();
        let mut layout = LayoutFixture::new();
        layout.add_image(&[(TAR, [header.as_bytes().as_slice(), &[b'a'; 4096]].concat())]);
        let error = unpack(layout.path(), tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
        assert!(error.contains("longer than 1 MiB"), "{kind:?}: {error}");
    }
}

#[test]
fn pax_attributes_set_long_names_but_not_other_sizes() {
    let long = format!("{}/{}", "n".repeat(200), "m".repeat(200));
    let image = |attributes: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_pax_extensions(attributes.iter().copied()).unwrap();
        let mut content = archive.into_inner().unwrap();
        content.truncate(content.len() - 1024);
        content.extend(tar(&[("short", Entry::File(0o644, "12345"))]));
        let mut layout = LayoutFixture::new();
        layout.add_image(&[(TAR, content)]);
        let cache = tempfile::tempdir().unwrap();
        unpack(layout.path(), cache.path()).map(|image| list(&image.root).pop().unwrap())
    };
    let capability: (&str, &[u8]) = ("SCHILY.xattr.security.capability", b"\x01\n\n\0=\n");
    assert_eq!(image(&[capability, ("path", long.as_bytes()), ("size", b"5")]).unwrap(), format!("{long}=12345"));
    for (name, value) in [("size", &b"4"[..]), ("size", b"x"), ("path", b"a/../../b"), ("path", b"nul\0nul")] {
        assert!(image(&[(name, value)]).is_err(), "{name}={}", value.escape_ascii());
    }
    assert!(image(&[("path", "p/".repeat(3000).as_bytes())]).unwrap_err().to_string().contains("the path is too long"));
}
