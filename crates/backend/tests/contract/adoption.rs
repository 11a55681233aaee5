//! Adoption of instances whose server has died.
#![allow(clippy::print_stdout)] // for the process that starts this one as a server

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_backend::{
    Adopted, Backend, Created, InstanceRequest, Orphan, Persistence, SUPERVISOR_ID_VARIABLE, SupervisorId,
};
use tempfile::TempDir;

use super::Constructor;
use super::cases::shell;
use super::egress::{LIVE_PORT, PORT_OF_SPEC, egress_spec};

/// The first argument of this program in the role of a server that dies. The others are the backend, the directory and
/// the tag of the scope, which may be empty.
pub(super) const SERVER_ROLE: &str = "contract-server";

/// The time that instances live without a server.
const LEASE: Duration = Duration::from_secs(20);

/// The servers that may adopt each other's instances.
#[derive(Debug, Clone, Default)]
pub(super) struct Owner {
    scope_tag: Option<String>,
    supervisor: Option<SupervisorId>,
}

impl Owner {
    fn of_scope(tag: &str) -> Self {
        Self { scope_tag: Some(tag.into()).filter(|tag: &String| !tag.is_empty()), ..Self::default() }
    }

    fn of_supervisor(supervisor: SupervisorId) -> Self {
        Self { supervisor: Some(supervisor), ..Self::default() }
    }

    fn backend(&self, constructor: Constructor, directory: &Path) -> Backend {
        let Self { scope_tag, supervisor } = self.clone();
        constructor(Some(Persistence { directory: directory.to_owned(), scope_tag, supervisor, lease: LEASE }))
    }
}

/// Runs this process as a server: creates an instance, prints its address, and waits to be killed.
pub(super) fn serve_until_killed(constructor: Constructor, directory: &Path, scope_tag: &str) -> ! {
    let owner = Owner { supervisor: SupervisorId::of_this_process(), ..Owner::of_scope(scope_tag) };
    let backend = owner.backend(constructor, directory);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        let created = backend.create(InstanceRequest::new(egress_spec([PORT_OF_SPEC]))).await;
        let Created { instance, egress, .. } = created.expect("create an instance");
        let opened_later = instance.open_egress_port(LIVE_PORT).await.expect("open a port");
        shell(&instance, "echo survives > file").await;
        let stored = instance.store_credentials(&credentials()).expect("store the credentials");
        stored.confirm().await.expect("the credentials are stored");
        println!("{}", instance.address());
        std::future::pending::<()>().await;
        drop((egress, opened_later));
        unreachable!("the process is killed")
    })
}

/// Another process of this program, with one instance.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(constructor: Constructor, directory: &Path, owner: &Owner) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("find this program"));
        command.args([SERVER_ROLE, constructor(None).name()]).arg(directory);
        command.arg(owner.scope_tag.as_deref().unwrap_or_default());
        command.envs(owner.supervisor.map(|id| (SUPERVISOR_ID_VARIABLE, id.to_string())));
        let mut process = command.stdout(Stdio::piped()).spawn().expect("start a server");
        let mut address = String::new();
        std::io::BufReader::new(process.stdout.take().expect("its output")).read_line(&mut address).expect("read");
        Self { process, address: address.trim_end().into() }
    }

    /// Kills the server, and returns the address of its instance.
    fn kill(mut self) -> String {
        self.process.kill().expect("kill the server");
        self.process.wait().expect("wait for the server");
        self.address
    }
}

/// A record that is longer than a frame of the launcher.
fn credentials() -> String {
    "x".repeat(600 << 10)
}

/// Finds the instance of a dead server. `None` if this backend may not adopt it.
async fn find_orphan(backend: &Backend, address: &str) -> Option<Orphan> {
    let mut orphans = backend.find_orphans().await;
    let found = orphans.instances.iter().position(|orphan| orphan.address() == address);
    assert!(found.is_some() || orphans.is_in_use(address), "the instance lives");
    found.map(|index| orphans.instances.remove(index))
}

async fn adopt(orphan: Orphan) -> Adopted {
    let environment = BTreeMap::from([("PATH".to_owned(), ringfence_core::PATH.to_owned())]);
    orphan.adopt(environment).await.expect("adopt the instance")
}

pub(super) async fn credentials_of_an_instance_are_returned_to_its_next_server(backend: Constructor) {
    let directory = tempfile::tempdir().expect("a directory");
    let address = Server::start(backend, directory.path(), &Owner::default()).kill();
    let second = Owner::default().backend(backend, directory.path());
    let without = second.create(InstanceRequest::new(egress_spec([PORT_OF_SPEC]))).await.expect("create an instance");
    let orphan = find_orphan(&second, &address).await.expect("the instance is found");
    // The record stays until the instance ends: a server may die during an adoption.
    for _ in 0..2 {
        let record = orphan.credentials().await.expect("read the record").expect("the record was stored");
        assert!(*record == credentials());
    }
    assert!(without.instance.store_credentials(&"x".repeat(2 << 20)).is_err(), "the record is too long");
    drop(adopt(orphan).await);
    second.end().await;
}

/// Starts a server with an instance, kills it, and adopts the instance.
pub(super) async fn adopt_after_death(backend: Constructor) -> (Backend, Adopted, TempDir) {
    let (directory, owner) = (tempfile::tempdir().expect("a directory"), Owner::default());
    let (first, second) = (Server::start(backend, directory.path(), &owner), owner.backend(backend, directory.path()));
    assert!(find_orphan(&second, &first.address).await.is_none(), "its server lives");
    let orphan = find_orphan(&second, &first.kill()).await;
    let adopted = adopt(orphan.expect("the instance is found")).await;
    (second, adopted, directory)
}

pub(super) async fn instance_is_adopted_after_its_server_died(backend: Constructor) {
    let (second, adopted, _directory) = adopt_after_death(backend).await;
    let instance = adopted.instance;
    assert_eq!(shell(&instance, "cat file").await.1, "survives\n");
    instance.stop().await;
    second.end().await;
}

pub(super) async fn orphan_is_adopted_by_one_server_only(backend: Constructor) {
    let (directory, owner) = (tempfile::tempdir().expect("a directory"), Owner::default());
    let address = Server::start(backend, directory.path(), &owner).kill();
    let [second, third] = [(); 2].map(|()| owner.backend(backend, directory.path()));
    let orphan = find_orphan(&second, &address).await.expect("the instance is found");
    assert!(find_orphan(&third, &address).await.is_none(), "the second server has found it");
    let instance = adopt(orphan).await.instance;
    assert!(find_orphan(&third, &address).await.is_none(), "the second server owns it");
    assert_eq!(shell(&instance, "cat file").await.1, "survives\n");
    third.end().await;
    assert!(instance.is_alive(), "the third server does not end it");
    instance.stop().await;
    second.end().await;
}

pub(super) async fn servers_of_other_owners_adopt_nothing(backend: Constructor) {
    let supervisors = [SupervisorId::unique(), SupervisorId::unique()];
    for (owner, others) in [
        (Owner::of_scope("0a"), [Owner::of_scope("0b"), Owner::default()]),
        (Owner::default(), [Owner::of_scope("0a"), Owner::of_scope("0b")]),
        (Owner::of_supervisor(supervisors[0]), [Owner::of_supervisor(supervisors[1]), Owner::default()]),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let address = Server::start(backend, directory.path(), &owner).kill();
        for other in others {
            let server = other.backend(backend, directory.path());
            assert!(find_orphan(&server, &address).await.is_none(), "{other:?} adopts an instance of {owner:?}");
            server.end().await;
        }
        let own = owner.backend(backend, directory.path());
        let instance = adopt(find_orphan(&own, &address).await.expect("the instance is found")).await.instance;
        assert_eq!(shell(&instance, "cat file").await.1, "survives\n");
        instance.stop().await;
        own.end().await;
    }
}
