//! The protected names, as data.
//!
//! A name is on this list if a program on the host executes it, reads it as settings, or reads credentials from it.

use ringfence_core::PLACEHOLDER;

/// The directories in which a name is protected, and in which its creation is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// At the top of every read-write volume, and in home directories. Its creation is reported.
    Project,
    /// Like `Project`, but its creation is reported in home directories only.
    Home,
    /// In home directories only: elsewhere it is an ordinary name.
    HomeOnly,
    /// Like `Project`, but its creation is not reported.
    Existing,
}

/// The placeholder that a strict volume creates for a missing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Directory,
    File(&'static str),
    /// A directory, or a file with the path of one; see [`super::git`].
    Git,
}

/// A protected name.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) path: &'static str,
    pub(crate) form: Form,
    pub(crate) scope: Scope,
}

const TEXT: Form = Form::File(PLACEHOLDER);
const JSON: Form = Form::File("{}\n");
const DIRECTORY: Form = Form::Directory;

const fn project(path: &'static str, form: Form) -> Name {
    Name { path, form, scope: Scope::Project }
}

const fn home(path: &'static str, form: Form) -> Name {
    Name { path, form, scope: Scope::Home }
}

pub(crate) const NAMES: &[Name] = &[
    // git executes hooks, and programs from its settings.
    project(".git", Form::Git),
    project(".husky", DIRECTORY),
    project(".githooks", DIRECTORY),
    home(".gitconfig", TEXT),
    home(".config/git", DIRECTORY),
    home(".git-credentials", TEXT),
    // MCP clients and editors start servers and tasks from these.
    project(".mcp.json", JSON),
    project(".vscode", DIRECTORY),
    project(".cursor", DIRECTORY),
    project(".claude", DIRECTORY),
    project(".gemini", DIRECTORY),
    project(".codex", DIRECTORY),
    project(".agents", DIRECTORY),
    project(".amp", DIRECTORY),
    project(".continue", DIRECTORY),
    project(".idea", DIRECTORY),
    project(".kiro", DIRECTORY),
    project(".roo", DIRECTORY),
    project(".trae", DIRECTORY),
    project(".zed", DIRECTORY),
    home(".claude.json", JSON),
    home(".cline", DIRECTORY),
    home(".codeium", DIRECTORY),
    home(".copilot", DIRECTORY),
    home(".lmstudio", DIRECTORY),
    home(".vscode-server", DIRECTORY),
    home(".config/Claude", DIRECTORY),
    home(".config/Code", DIRECTORY),
    home(".config/Cursor", DIRECTORY),
    home(".config/goose", DIRECTORY),
    home(".config/opencode", DIRECTORY),
    home(".config/zed", DIRECTORY),
    // Programs on the host execute commands from these when a project is opened or entered.
    project(".envrc", TEXT),
    project(".devcontainer", DIRECTORY),
    project(".devcontainer.json", JSON),
    project("ringfence.toml", TEXT),
    // Package managers read from these which programs to execute and which hosts to fetch from.
    project(".npmrc", TEXT),
    project(".yarnrc", TEXT),
    project(".yarnrc.yml", TEXT),
    project(".cargo/config.toml", TEXT),
    project(".cargo/config", TEXT),
    home(".cargo/credentials.toml", TEXT),
    home(".config/pip", DIRECTORY),
    home(".pip", DIRECTORY),
    home(".pypirc", TEXT),
    home(".condarc", TEXT),
    home(".config/uv", DIRECTORY),
    home(".gradle/init.d", DIRECTORY),
    home(".gradle/init.gradle", TEXT),
    home(".m2/settings.xml", TEXT),
    // Shells read these when they start or end.
    home(".bashrc", TEXT),
    home(".bash_profile", TEXT),
    home(".bash_login", TEXT),
    home(".bash_logout", TEXT),
    home(".bash_aliases", TEXT),
    home(".profile", TEXT),
    home(".zshrc", TEXT),
    home(".zshenv", TEXT),
    home(".zprofile", TEXT),
    home(".zlogin", TEXT),
    home(".zlogout", TEXT),
    home(".kshrc", TEXT),
    home(".cshrc", TEXT),
    home(".tcshrc", TEXT),
    home(".login", TEXT),
    home(".inputrc", TEXT),
    home(".config/fish", DIRECTORY),
    // Logins and desktops read these, and start programs from them.
    home(".config/environment.d", DIRECTORY),
    home(".pam_environment", TEXT),
    home(".xprofile", TEXT),
    home(".xinitrc", TEXT),
    home(".xsession", TEXT),
    home(".xsessionrc", TEXT),
    home(".config/systemd", DIRECTORY),
    home(".config/autostart", DIRECTORY),
    home(".config/plasma-workspace", DIRECTORY),
    home(".local/share/applications", DIRECTORY),
    home(".local/share/dbus-1", DIRECTORY),
    home(".local/share/systemd", DIRECTORY),
    // On the search path of programs or of interpreters.
    home(".local/bin", DIRECTORY),
    home(".local/lib", DIRECTORY),
    home(".cargo/bin", DIRECTORY),
    home(".cargo/env", TEXT),
    home(".rustup/toolchains", DIRECTORY),
    home(".bun/bin", DIRECTORY),
    home(".deno/bin", DIRECTORY),
    home(".nvm", DIRECTORY),
    home(".pyenv", DIRECTORY),
    Name { path: "bin", form: DIRECTORY, scope: Scope::HomeOnly },
    Name { path: "go/bin", form: DIRECTORY, scope: Scope::HomeOnly },
    Name { path: ".venv", form: DIRECTORY, scope: Scope::Existing },
    Name { path: "venv", form: DIRECTORY, scope: Scope::Existing },
    // Programs execute these when they start.
    home(".vimrc", Form::File("")),
    home(".vim", DIRECTORY),
    home(".config/nvim", DIRECTORY),
    home(".emacs", Form::File("")),
    home(".emacs.d", DIRECTORY),
    home(".gdbinit", TEXT),
    home(".ipython", DIRECTORY),
    home(".pdbrc", TEXT),
    home(".tmux.conf", TEXT),
    home(".screenrc", TEXT),
    // Keys and credentials, and programs that fetch them.
    home(".ssh", DIRECTORY),
    home(".gnupg", DIRECTORY),
    home(".netrc", TEXT),
    home(".aws", DIRECTORY),
    home(".azure", DIRECTORY),
    home(".config/gcloud", DIRECTORY),
    home(".config/gh", DIRECTORY),
    home(".config/containers", DIRECTORY),
    home(".docker", DIRECTORY),
    home(".kube", DIRECTORY),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Component, Path};

    use super::*;

    #[test]
    fn names_are_relative_and_occur_once() {
        let mut seen = BTreeSet::new();
        for name in NAMES {
            assert!(
                Path::new(name.path).components().all(|part| matches!(part, Component::Normal(_))),
                "{}",
                name.path
            );
            assert!(seen.insert(name.path), "{} occurs twice", name.path);
        }
    }
}
