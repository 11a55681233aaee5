//! Images that mean harm.

use tar::Header;

use super::*;

fn problem(layers: &[&[(&str, Made<'_>)]]) -> String {
    unpacked(layers).map(|(_, unpacked)| all(&unpacked.root)).unwrap_err().to_string()
}

/// A directory with a file that is none of an image's business.
fn outside() -> (TempDir, String) {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("canary"), "alive").unwrap();
    let path = outside.path().to_str().unwrap().to_owned();
    (outside, path)
}

#[test]
fn a_path_that_goes_up_is_refused() {
    for path in ["../up", "a/../../up", "a/..", "..", "/../up", ".wh...", "a/.wh...", "a/../.wh.b"] {
        let said = problem(&[&[("a/b", Made::File(0o644, ""))], &[(path, Made::File(0o644, "bad"))]]);
        assert!(said.contains("leaves the root") || said.contains("takes away no name"), "{path}: {said}");
    }
    let said = problem(&[&[("link", Made::Hard("../../../../../../../../etc/passwd"))]]);
    assert!(said.contains("leaves the root"), "{said}");
}

#[test]
fn an_absolute_path_is_meant_from_the_root() {
    let (_outside, path) = outside();
    let target = format!("{path}/made");
    let (_cache, Unpacked { root, .. }) = unpacked(&[&[(&*target, Made::File(0o644, "inside"))]]).unwrap();
    assert!(!Path::new(&target).exists());
    assert_eq!(fs::read_to_string(root.join(target.trim_start_matches('/'))).unwrap(), "inside");
}

#[test]
fn links_of_earlier_entries_lead_nowhere_outside() {
    let (outside, path) = outside();
    let up = format!("../../../../../../../../..{path}");
    let canary = format!("{path}/canary");
    for target in [&path, &up] {
        let links: &[(&str, Made<'_>)] = &[
            (path.trim_start_matches('/'), Made::Directory(0o755)),
            ("way", Made::Link(target)),
            ("end", Made::Link(&canary)),
            ("hard", Made::Hard("end")),
        ];
        let attack: &[(&str, Made<'_>)] = &[
            ("way/planted", Made::File(0o644, "bad")),
            ("way/.wh.canary", Made::File(0o644, "")),
            ("way/.wh..wh..opq", Made::File(0o644, "")),
            ("way/made/below", Made::Directory(0o777)),
            // Those that are an entry themselves are replaced, and not followed.
            ("end", Made::File(0o666, "bad")),
            ("hard", Made::File(0o666, "bad")),
        ];
        let (_cache, Unpacked { root, .. }) = unpacked(&[links, attack]).unwrap();
        assert_eq!(all(outside.path()), ["canary=alive"], "{target}");
        assert_eq!(fs::read_to_string(root.join(&path[1..]).join("planted")).unwrap(), "bad");
        assert_eq!(fs::read_to_string(root.join("end")).unwrap(), "bad");
    }
}

#[test]
fn a_hard_link_to_a_file_outside_is_refused() {
    let (_outside, path) = outside();
    let canary = format!("{path}/canary");
    let links: [&[(&str, Made<'_>)]; 2] =
        [&[("hard", Made::Hard(&canary))], &[("way", Made::Link(&path)), ("hard", Made::Hard("way/canary"))]];
    for entries in links {
        let said = problem(&[entries]);
        assert!(said.contains("hard: No such file or directory"), "{said}");
    }
    // One to a link is that link once more.
    let (_cache, Unpacked { root, .. }) =
        unpacked(&[&[("end", Made::Link(&canary)), ("hard", Made::Hard("end"))]]).unwrap();
    assert_eq!(all(&root), [format!("end>{canary}"), format!("hard>{canary}")]);
}

#[test]
fn nothing_is_written_through_a_hard_link() {
    let layers: [&[(&str, Made<'_>)]; 2] = [
        &[("one", Made::File(0o644, "first")), ("other", Made::Hard("one"))],
        &[("other", Made::File(0o600, "second"))],
    ];
    let (_cache, Unpacked { root, .. }) = unpacked(&layers).unwrap();
    assert_eq!(all(&root), ["one=first", "other=second"]);
}

#[test]
fn bombs_are_stopped_by_the_bounds() {
    let bounds = |bytes, entries| Bounds { bytes, entries, visits: 100 };
    let zeros = "\0".repeat(1 << 20);
    let files = [("a", Made::File(0o644, &zeros)), ("b", Made::File(0o644, &zeros))];
    // Compressed, two megabytes are a few kilobytes.
    let mut layout = Layout::new();
    layout.add_image(&[(GZIP, gzip(&tar(&files[..1]))), (GZIP, gzip(&tar(&files[1..])))]);
    let cache = tempfile::tempdir().unwrap();
    assert!(unpack_within(layout.path(), cache.path(), bounds(3 << 20, 10)).is_ok());
    let cache = tempfile::tempdir().unwrap();
    let said = unpack_within(layout.path(), cache.path(), bounds(3 << 19, 10)).unwrap_err();
    assert!(matches!(said, ImageError::TooLarge(_)), "{said}");

    let said = unpacked_within(&[&files], bounds(8 << 20, 1)).unwrap_err();
    assert!(matches!(said, ImageError::TooLarge(_)), "{said}");
    // Directories that no entry describes count as well.
    let deep = [("a/b/c/d", Made::File(0o644, ""))];
    assert!(unpacked_within(&[&deep], bounds(8 << 20, 4)).is_ok());
    let said = unpacked_within(&[&deep], bounds(8 << 20, 3)).unwrap_err().to_string();
    assert!(said.contains("too many directories"), "{said}");
}

#[test]
fn work_that_whiteouts_make_is_bounded() {
    let names: Vec<String> = (0..50).map(|number| format!("d/{number}")).collect();
    let mut layer: Vec<(&str, Made<'_>)> = names.iter().map(|name| (&**name, Made::File(0o644, ""))).collect();
    layer.push(("d/.wh..wh..opq", Made::File(0o644, "")));
    let bounds = Bounds { visits: 150, ..Bounds::default() };
    assert!(unpacked_within(&[&layer], bounds).is_ok());
    layer.extend([("d/.wh..wh..opq", Made::File(0o644, "")), ("d/.wh..wh..opq", Made::File(0o644, ""))]);
    assert!(unpacked_within(&[&layer], bounds).is_err());
}

#[test]
fn what_every_sandbox_would_pay_for_is_bounded() {
    let names: Vec<String> = (0..513).map(|number| format!("{number}")).collect();
    let files: Vec<(&str, Made<'_>)> = names.iter().map(|name| (&**name, Made::File(0o644, ""))).collect();
    assert!(unpacked(&[&files[..512]]).is_ok());
    assert!(matches!(unpacked(&[&files]), Err(ImageError::TooLarge(_))));
    let mut layout = Layout::new();
    layout.add_image(&vec![(GZIP, gzip(&tar(&[]))); 513]);
    let cache = tempfile::tempdir().unwrap();
    assert!(matches!(unpack(layout.path(), cache.path()), Err(ImageError::TooLarge(_))));
}

#[test]
fn links_lead_to_no_tree_that_nobody_could_remove() {
    let down = "d/".repeat(40);
    let mut layers = Vec::new();
    for (link, below) in [("a", ""), ("b", "a/"), ("c", "b/"), ("e", "c/")] {
        layers.push([(format!("{below}{down}"), None), (link.to_owned(), Some(format!("{below}{down}")))]);
    }
    let layers: Vec<Vec<(&str, Made<'_>)>> = layers
        .iter()
        .map(|layer| {
            let made = |target: &'_ Option<String>| match target {
                Some(target) => Made::Link(Box::leak(target.clone().into_boxed_str())),
                None => Made::Directory(0o755),
            };
            layer.iter().map(|(path, target)| (&**path, made(target))).collect()
        })
        .collect();
    let layers: Vec<&[(&str, Made<'_>)]> = layers.iter().map(Vec::as_slice).collect();
    assert!(unpacked(&layers[..3]).is_ok());
    let said = problem(&layers);
    assert!(said.contains("more than 128 directories"), "{said}");
}

#[test]
fn names_have_a_bound_before_they_are_read() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(8 << 30);
        header.set_mode(0o644);
        header.set_cksum();
        let mut layout = Layout::new();
        layout.add_image(&[(TAR, [header.as_bytes().as_slice(), &[b'a'; 4096]].concat())]);
        let said = unpack(layout.path(), tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
        assert!(said.contains("longer than 1 MiB"), "{kind:?}: {said}");
    }
}

#[test]
fn attributes_give_long_names_and_no_other_sizes() {
    let long = format!("{}/{}", "n".repeat(200), "m".repeat(200));
    let image = |attributes: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_pax_extensions(attributes.iter().copied()).unwrap();
        let mut content = archive.into_inner().unwrap();
        content.truncate(content.len() - 1024);
        content.extend(tar(&[("short", Made::File(0o644, "12345"))]));
        let mut layout = Layout::new();
        layout.add_image(&[(TAR, content)]);
        let cache = tempfile::tempdir().unwrap();
        unpack(layout.path(), cache.path()).map(|unpacked| all(&unpacked.root).pop().unwrap())
    };
    let capability: (&str, &[u8]) = ("SCHILY.xattr.security.capability", b"\x01\n\n\0=\n");
    assert_eq!(image(&[capability, ("path", long.as_bytes()), ("size", b"5")]).unwrap(), format!("{long}=12345"));
    for (name, value) in [("size", &b"4"[..]), ("size", b"x"), ("path", b"a/../../b"), ("path", b"nul\0nul")] {
        assert!(image(&[(name, value)]).is_err(), "{name}={}", value.escape_ascii());
    }
    assert!(image(&[("path", "p/".repeat(3000).as_bytes())]).unwrap_err().to_string().contains("too long"));
}
