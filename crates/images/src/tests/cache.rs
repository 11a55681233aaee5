//! The state of the cache after successful, failed, killed and concurrent runs.

use super::*;

fn image(content: &str) -> LayoutFixture {
    let mut layout = LayoutFixture::new();
    layout.add_image(&[(TAR, tar(&[("file", Entry::File(0o644, content))]))]);
    layout
}

#[test]
fn image_is_unpacked_once() {
    let (layout, cache) = (image("first"), tempfile::tempdir().unwrap());
    let first = unpack(layout.path(), cache.path()).unwrap();
    fs::write(first.root.join("mark"), "").unwrap();
    let again = unpack(&layout.create_archive(""), cache.path()).unwrap();
    assert_eq!(again, first);
    assert_eq!(list(&again.root), ["file=first", "mark="]);
    let other = unpack(image("second").path(), cache.path()).unwrap();
    assert_eq!(list(&other.root), ["file=second"]);
    assert!(list(&cache.path().join("images/new")).is_empty());
    let images = fs::metadata(cache.path().join("images")).unwrap();
    assert_eq!(images.permissions().mode() & 0o777, 0o700, "other users of the host must not enter");
}

#[test]
fn failed_runs_leave_nothing_and_killed_runs_are_cleaned_up() {
    let cache = tempfile::tempdir().unwrap();
    let mut bad = LayoutFixture::new();
    bad.add_image(&[(TAR, tar(&[("file", Entry::File(0o644, "")), ("../file", Entry::File(0o644, ""))]))]);
    assert!(unpack(bad.path(), cache.path()).is_err());
    for part in ["ready", "new"] {
        assert!(list(&cache.path().join("images").join(part)).is_empty(), "{part}");
    }
    // Killed processes left two directories: one of another image and one of the same image.
    let layout = image("whole");
    let name = unpack(layout.path(), cache.path()).unwrap().root;
    let new = cache.path().join("images/new");
    fs::rename(&name, new.join(name.file_name().unwrap())).unwrap();
    fs::write(new.join(name.file_name().unwrap()).join("half"), "").unwrap();
    fs::create_dir_all(new.join("other/below")).unwrap();
    assert_eq!(list(&unpack(layout.path(), cache.path()).unwrap().root), ["file=whole"]);
    assert!(list(&new).is_empty());
}

#[test]
fn concurrent_runs_unpack_once() {
    let (layout, cache) = (image("same"), tempfile::tempdir().unwrap());
    let (image, cache) = (layout.path(), cache.path());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| unpack(image, cache).unwrap())).collect();
        let images: Vec<UnpackedImage> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(images.iter().all(|image| *image == images[0]));
    });
    assert!(list(&cache.join("images/new")).is_empty());
}
