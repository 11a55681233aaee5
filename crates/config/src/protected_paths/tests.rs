use super::*;

fn volume(host: &Path, access: Access) -> Volume {
    Volume { host: host.to_owned(), guest: "/shown".into(), access, allowed_root: None }
}

#[test]
fn directories_of_ringfence_are_hidden_in_volumes_and_refused_as_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().canonicalize().unwrap();
    let (state, config) = (home.join(".local/state/ringfence"), home.join("project/ringfence.toml"));
    std::fs::create_dir(home.join("project")).unwrap();
    let protected = ProtectedPaths::new(vec![state.clone()], vec![config.clone()]);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert_eq!(protected.protect(&[volume(&home, access)]), Ok(vec![state.clone()]));
        assert!(state.is_dir(), "created, so that no guest can create it");
        for inside in [&state, &state.join("launchers")] {
            assert!(protected.protect(&[volume(inside, access)]).is_err(), "{}", inside.display());
        }
        assert_eq!(protected.protect(&[volume(&home.join("other"), access)]), Ok(vec![]));
    }
    std::fs::write(&config, "").unwrap();
    let project = home.join("project");
    assert_eq!(protected.protect(&[volume(&project, Access::ReadWrite)]), Ok(vec![config.clone()]));
    assert_eq!(protected.protect(&[volume(&project, Access::ReadOnly)]), Ok(vec![]));
    assert!(protected.protect(&[volume(&config, Access::ReadWrite)]).is_err());
    assert!(protected.overlaps(&home) && protected.overlaps(&state.join("x")) && !protected.overlaps(&project));
}

#[test]
fn no_directory_is_created_for_root_of_host() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let protected = ProtectedPaths::new(vec![state.clone()], Vec::new());
    assert_eq!(protected.protect(&[volume(Path::new("/"), Access::ReadWrite)]), Ok(vec![]));
    assert!(!state.exists());
}

#[test]
fn volume_in_which_guests_could_create_settings_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    let project = base.join("project");
    std::fs::create_dir(&project).unwrap();
    let config = project.join("ringfence.toml");
    let settings = |file: &Path| ProtectedPaths {
        settings: vec![file.into()],
        ..ProtectedPaths::new(Vec::new(), vec![file.into()])
    };
    // At the top of a volume, the creation of the file is detected.
    assert_eq!(settings(&config).protect(&[volume(&project, Access::ReadWrite)]), Ok(vec![]));
    let refusal = settings(&config).protect(&[volume(&base, Access::ReadWrite)]).unwrap_err();
    assert!(refusal.to_string().contains("guests could create"), "{refusal}");
    assert!(settings(&project.join("servers.json")).protect(&[volume(&project, Access::ReadWrite)]).is_err());
    assert_eq!(settings(&config).protect(&[volume(&base, Access::ReadOnly)]), Ok(vec![]));
    std::fs::write(&config, "").unwrap();
    assert_eq!(settings(&config).protect(&[volume(&base, Access::ReadWrite)]), Ok(vec![config]));
}

#[test]
fn files_in_hidden_directory_need_no_protection() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().canonicalize().unwrap();
    let config = home.join(".config/ringfence");
    let file = config.join("ringfence.toml");
    let protected = ProtectedPaths {
        settings: vec![file.clone()],
        ..ProtectedPaths::new(vec![config.clone()], vec![file.clone()])
    };
    assert_eq!(protected.protect(&[volume(&home, Access::ReadWrite)]), Ok(vec![config.clone()]), "the file is missing");
    std::fs::write(&file, "").unwrap();
    assert_eq!(protected.protect(&[volume(&home, Access::ReadWrite)]), Ok(vec![config]));
}

#[test]
fn root_file_system_must_not_be_writable_by_guests() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    for name in ["image", "data/image", "state"] {
        std::fs::create_dir_all(base.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/", base.join("everything")).unwrap();
    std::os::unix::fs::symlink("image", base.join("named")).unwrap();
    let protected = ProtectedPaths::new(vec![base.join("state")], Vec::new());
    let volumes = [volume(&base.join("data"), Access::ReadWrite), volume(&base, Access::ReadOnly)];
    let writable = GuestWritable::from_volumes(&volumes);
    assert_eq!(protected.check_root(&base.join("named"), &writable), Ok(base.join("image")), "links are resolved");
    for (bad, reason) in [
        (Path::new("/").to_owned(), "the root directory of the host"),
        (base.join("everything"), "the root directory of the host"),
        (base.clone(), "a directory of ringfence"),
        (base.join("state"), "a directory of ringfence"),
        (base.join("data/image"), "guests may write"),
        (base.join("missing"), "cannot use"),
    ] {
        let error = protected.check_root(&bad, &writable).unwrap_err();
        assert!(error.contains(reason), "{}: {error}", bad.display());
    }
}

#[test]
fn symbolic_links_and_their_targets_are_protected() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    for name in ["shown", "elsewhere"] {
        std::fs::create_dir(base.join(name)).unwrap();
    }
    let (link, file) = (base.join("shown/ringfence.toml"), base.join("elsewhere/real.toml"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let protected = ProtectedPaths::new(Vec::new(), vec![link]);
    let (shown, elsewhere) = (base.join("shown"), base.join("elsewhere"));
    assert!(protected.protect(&[volume(&shown, Access::ReadWrite)]).is_err(), "guests could replace the link");
    assert_eq!(protected.protect(&[volume(&elsewhere, Access::ReadWrite)]), Ok(vec![file]));
    assert!(protected.find_writable_file(&[volume(&shown, Access::ReadOnly)]).is_none());
    assert!(protected.find_writable_file(&[volume(&elsewhere, Access::ReadWrite)]).is_some());
}
