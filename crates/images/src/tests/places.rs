//! What is left in the cache, and by whom.

use super::*;

fn image(content: &str) -> Layout {
    let mut layout = Layout::new();
    layout.add_image(&[(TAR, tar(&[("file", Made::File(0o644, content))]))]);
    layout
}

#[test]
fn an_image_is_unpacked_once() {
    let (layout, cache) = (image("first"), tempfile::tempdir().unwrap());
    let first = unpack(layout.path(), cache.path()).unwrap();
    fs::write(first.root.join("mark"), "").unwrap();
    let again = unpack(&layout.archive(""), cache.path()).unwrap();
    assert_eq!(again, first);
    assert_eq!(all(&again.root), ["file=first", "mark="]);
    let other = unpack(image("second").path(), cache.path()).unwrap();
    assert_eq!(all(&other.root), ["file=second"]);
    assert!(all(&cache.path().join("images/new")).is_empty());
    let images = fs::metadata(cache.path().join("images")).unwrap();
    assert_eq!(images.permissions().mode() & 0o777, 0o700, "nobody else of the host may enter");
}

#[test]
fn what_fails_leaves_nothing_and_what_was_killed_is_swept() {
    let cache = tempfile::tempdir().unwrap();
    let mut bad = Layout::new();
    bad.add_image(&[(TAR, tar(&[("file", Made::File(0o644, "")), ("../file", Made::File(0o644, ""))]))]);
    assert!(unpack(bad.path(), cache.path()).is_err());
    for part in ["ready", "new"] {
        assert!(all(&cache.path().join("images").join(part)).is_empty(), "{part}");
    }
    // What two that were killed have left: one of another image, and one of the same.
    let layout = image("whole");
    let name = unpack(layout.path(), cache.path()).unwrap().root;
    let new = cache.path().join("images/new");
    fs::rename(&name, new.join(name.file_name().unwrap())).unwrap();
    fs::write(new.join(name.file_name().unwrap()).join("half"), "").unwrap();
    fs::create_dir_all(new.join("other/below")).unwrap();
    assert_eq!(all(&unpack(layout.path(), cache.path()).unwrap().root), ["file=whole"]);
    assert!(all(&new).is_empty());
}

#[test]
fn of_several_at_once_one_unpacks() {
    let (layout, cache) = (image("same"), tempfile::tempdir().unwrap());
    let (image, cache) = (layout.path(), cache.path());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| unpack(image, cache).unwrap())).collect();
        let all: Vec<Unpacked> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(all.iter().all(|unpacked| *unpacked == all[0]));
    });
    assert!(all(&cache.join("images/new")).is_empty());
}
