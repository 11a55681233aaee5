//! The list of all cases, and those about processes, streams, files, usage and the end of an instance.

use std::ffi::OsStr;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::pin::Pin;
use std::time::Duration;

use ringfence_backend::{
    Backend, CreateError, Event, ExitStatus, FileAccess, FileError, GuestPath, Instance, InstanceRequest, Process,
    SignalTarget,
};
use ringfence_core::{Command, Flavors, Spec, Templates, WORKSPACE};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Constructor;
use super::adoption::{
    credentials_of_an_instance_are_returned_to_its_next_server, instance_is_adopted_after_its_server_died,
    orphan_is_adopted_by_one_server_only, servers_of_other_owners_adopt_nothing,
};
use super::egress::{
    egress_connections_have_the_dialled_address, egress_ports_are_opened_in_a_running_instance,
    egress_sockets_work_after_their_server_died, guest_gets_no_socket_and_no_port_of_egress,
    image_has_the_name_resolution_of_the_sandbox, names_are_resolved_by_the_host, nothing_is_reachable_if_not_served,
    nothing_is_reachable_without_egress,
};
use super::egress_rules::{egress_rules_apply_after_the_server_died, egress_rules_apply_to_the_guest};
use super::growth::repeated_instances_leave_nothing;
use super::isolation::{guest_has_no_host_files_and_no_network, instances_do_not_see_each_other};
use super::limits::{cpu_limit_is_enforced, process_limit_is_enforced, workspace_limits_are_enforced};

type Case = fn(Constructor) -> Pin<Box<dyn Future<Output = ()>>>;

/// Timeout for everything that a case waits for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for a whole case.
const CASE_TIMEOUT: Duration = Duration::from_mins(4);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const ALL: &[(&str, Case)] = &[$((stringify!($name), |backend| Box::pin($name(backend)))),*];
    };
}

cases![
    process_runs_and_its_output_and_exit_code_are_reported,
    missing_program_is_reported,
    ends_of_commands_are_reported_to_their_callers,
    signals_reach_processes,
    streams_are_attached_in_both_directions,
    interpreter_has_a_socket,
    files_are_written_read_and_listed,
    limits_and_usage_are_reported,
    memory_limit_is_enforced,
    process_limit_is_enforced,
    cpu_limit_is_enforced,
    workspace_limits_are_enforced,
    guest_has_no_host_files_and_no_network,
    stopped_instance_leaves_no_process,
    dropped_instance_ends,
    ended_backend_creates_nothing,
    instances_do_not_see_each_other,
    instance_is_adopted_after_its_server_died,
    credentials_of_an_instance_are_returned_to_its_next_server,
    orphan_is_adopted_by_one_server_only,
    servers_of_other_owners_adopt_nothing,
    repeated_instances_leave_nothing,
    egress_connections_have_the_dialled_address,
    names_are_resolved_by_the_host,
    image_has_the_name_resolution_of_the_sandbox,
    nothing_is_reachable_without_egress,
    nothing_is_reachable_if_not_served,
    guest_gets_no_socket_and_no_port_of_egress,
    egress_ports_are_opened_in_a_running_instance,
    egress_sockets_work_after_their_server_died,
    egress_rules_apply_to_the_guest,
    egress_rules_apply_after_the_server_died,
];

/// Runs a case with its own runtime.
pub(super) fn run(constructor: Constructor, case: Case) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async { tokio::time::timeout(CASE_TIMEOUT, case(constructor)).await.expect("the case ends") });
}

/// Whether an argument is the name of a test: neither a flag nor the value of one.
pub(super) fn is_filter(argument: &str, all: &[String]) -> bool {
    let value_of_format = all.windows(2).any(|pair| pair[0] == "--format" && pair[1] == argument);
    !argument.starts_with('-') && !value_of_format
}

pub(super) fn spec() -> Spec {
    let (templates, flavors) = (Templates::default(), Flavors::default());
    let (template, flavor) = (templates.find("bash").expect("template"), flavors.find("small").expect("flavor"));
    let mut spec = template.spec(flavor, Vec::new());
    spec.command = None;
    spec.accept = ringfence_core::default_accepted_weaknesses();
    spec
}

pub(super) async fn create(backend: &Backend) -> Instance {
    backend.create(InstanceRequest::new(spec())).await.expect("create an instance").instance
}

async fn next_event(instance: &Instance) -> Event {
    tokio::time::timeout(TIMEOUT, instance.event()).await.expect("an event in time")
}

pub(super) async fn exit_of(instance: &Instance, number: u32) -> ExitStatus {
    loop {
        match next_event(instance).await {
            Event::Ended { process, status } if process == number => return status,
            Event::Started { .. } => {}
            event => panic!("unexpected event {event:?}"),
        }
    }
}

pub(super) async fn output_of(process: &mut Process) -> String {
    let mut output = String::new();
    tokio::time::timeout(TIMEOUT, process.stdout.read_to_string(&mut output)).await.expect("in time").expect("output");
    output
}

/// Runs a shell command and returns its exit status and standard output.
pub(super) async fn shell(instance: &Instance, command: &str) -> (ExitStatus, String) {
    let mut process = instance.spawn(["bash", "-c", command].map(Into::into).to_vec()).expect("start bash");
    let status = exit_of(instance, process.number).await;
    let output = output_of(&mut process).await;
    instance.release(process).await;
    (status, output)
}

async fn process_runs_and_its_output_and_exit_code_are_reported(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    assert_eq!(shell(&instance, "echo hello; exit 3").await, (ExitStatus::Exited(3), "hello\n".into()));
    assert_eq!(shell(&instance, "pwd").await.1, format!("{WORKSPACE}\n"));
    assert!(instance.is_alive());
    backend.end().await;
}

async fn missing_program_is_reported(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let process = instance.spawn(vec!["/missing".into()]).expect("send the request");
    let event = next_event(&instance).await;
    assert!(matches!(event, Event::StartFailed { process: number, .. } if number == process.number), "{event:?}");
    backend.end().await;
}

async fn ends_of_commands_are_reported_to_their_callers(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let shell = |code: &str| ["bash", "-c", code].map(Into::into).to_vec();
    let (_first, mut first_end) = instance.spawn_command(shell("sleep 60")).expect("start bash");
    let (mut second, mut second_end) = instance.spawn_command(shell("echo hello; exit 3")).expect("start bash");
    let process = instance.spawn(shell("exit 4")).expect("start bash");
    assert_eq!(exit_of(&instance, process.number).await, ExitStatus::Exited(4));
    let ended = loop {
        tokio::select! {
            event = second_end.wait() => break event,
            event = next_event(&instance) => assert!(matches!(event, Event::Started { .. }), "{event:?}"),
        }
    };
    assert_eq!(ended, Event::Ended { process: second.number, status: ExitStatus::Exited(3) });
    assert_eq!(output_of(&mut second).await, "hello\n");
    instance.kill();
    while next_event(&instance).await != Event::Lost {}
    assert_eq!(first_end.wait().await, Event::Lost);
    backend.end().await;
}

async fn signals_reach_processes(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    for (signal, target) in [(Signal::TERM, SignalTarget::ProcessGroup), (Signal::KILL, SignalTarget::ProcessTree)] {
        let process = instance.spawn(["sleep", "60"].map(Into::into).to_vec()).expect("start sleep");
        assert!(matches!(next_event(&instance).await, Event::Started { .. }));
        instance.signal(process.number, signal, target);
        assert_eq!(exit_of(&instance, process.number).await, ExitStatus::Killed(signal.as_raw()));
    }
    assert!(!instance.kill_if_stuck().await);
    backend.end().await;
}

async fn streams_are_attached_in_both_directions(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let command = Command { argv: vec!["cat".into()], workdir: WORKSPACE.into() };
    let mut piped = instance.spawn_piped(1, &command, &spec().environment).expect("start cat");
    piped.stdin.write_all(b"through the pipes\n").await.expect("write");
    drop(piped.stdin);
    assert_eq!(exit_of(&instance, 1).await, ExitStatus::Exited(0));
    let mut output = String::new();
    piped.stdout.read_to_string(&mut output).await.expect("read");
    assert_eq!(output, "through the pipes\n");
    backend.end().await;
}

async fn interpreter_has_a_socket(backend: Constructor) {
    let argv: Vec<_> = ["bash", "-c", "read line <&3; echo got $line >&3"].map(Into::into).to_vec();
    let backend = backend(None);
    let request = InstanceRequest { interpreter: Some(argv.clone()), ..InstanceRequest::new(spec()) };
    let created = backend.create(request).await.expect("create an instance");
    let instance = created.instance;
    let with_instance = created.interpreter.expect("the interpreter");
    let started_later = instance.start_interpreter(argv).expect("start an interpreter");
    assert_ne!(with_instance.process.number, started_later.process.number);
    for interpreter in [with_instance, started_later] {
        assert_eq!(interpreter.socket.try_send(b"code\n"), 5);
        let mut buffer = ringfence_guest::KernelBuffer::default();
        let received = tokio::time::timeout(TIMEOUT, interpreter.socket.receive(&mut buffer)).await;
        received.expect("in time").expect("receive");
        assert_eq!(buffer.unread(), b"got code\n");
    }
    backend.end().await;
}

async fn files_are_written_read_and_listed(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let (files, path) = (instance.files(), GuestPath::parse(OsStr::new("directory/file")).expect("a path"));
    assert_eq!(files.open(&path, FileAccess::Read, TIMEOUT).err(), Some(FileError::NotFound));
    let mut file = files.open(&path, FileAccess::Write { bytes: 7 }, TIMEOUT).expect("create the file");
    file.write_all(b"content").expect("write");
    assert_eq!(shell(&instance, "cat directory/file").await.1, "content");
    assert_eq!(shell(&instance, "echo of the guest > other; ln -s /etc/passwd link").await.0, ExitStatus::Exited(0));
    let mut content = String::new();
    let other = GuestPath::parse(OsStr::new("other")).expect("a path");
    files.open(&other, FileAccess::Read, TIMEOUT).expect("open").read_to_string(&mut content).expect("read");
    assert_eq!(content, "of the guest\n");
    let link = GuestPath::parse(OsStr::new("link")).expect("a path");
    assert_eq!(files.open(&link, FileAccess::Read, TIMEOUT).err(), Some(FileError::SymbolicLink));
    let listing = files.list(&GuestPath::parse(OsStr::new(WORKSPACE)).expect("a path"), 2, TIMEOUT).expect("list");
    assert_eq!((listing.entries.len(), listing.total), (2, 3));
    backend.end().await;
}

async fn limits_and_usage_are_reported(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let before = usage(&instance).await;
    let sleeper = instance.spawn(["sleep", "60"].map(Into::into).to_vec()).expect("start sleep");
    assert!(matches!(next_event(&instance).await, Event::Started { .. }));
    assert_eq!(shell(&instance, "head -c 1000000 /dev/zero > zeros").await.0, ExitStatus::Exited(0));
    let after = usage(&instance).await;
    assert!(after.tasks > before.tasks && after.memory_bytes > Some(0), "{before:?} {after:?}");
    let bytes = |usage: ringfence_backend::Usage| usage.workspace.expect("the workspace").bytes;
    assert!(bytes(after) >= bytes(before) + 1_000_000, "{before:?} {after:?}");
    let enforcement = instance.enforcement();
    assert!(!enforcement.memory.is_empty() && !enforcement.workspace.is_empty());
    instance.signal(sleeper.number, Signal::KILL, SignalTarget::ProcessTree);
    backend.end().await;
}

async fn usage(instance: &Instance) -> ringfence_backend::Usage {
    let meter = instance.meter(1000);
    let measured = tokio::task::spawn_blocking(move || meter.usage(meter.request_workspace(TIMEOUT)));
    measured.await.expect("measure").expect("a live instance")
}

async fn memory_limit_is_enforced(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let mut process =
        instance.spawn(["bash", "-c", "head -c 8G /dev/zero | tail -n 1"].map(Into::into).to_vec()).expect("start");
    let is_lost = loop {
        match next_event(&instance).await {
            Event::Ended { process: number, .. } if number == process.number => break false,
            Event::Lost => break true,
            _ => {}
        }
    };
    assert_eq!(output_of(&mut process).await, "");
    let is_reported = instance.memory_kills() > 0 || (is_lost && instance.has_exceeded_memory().await);
    // Where a limit of each process is enforced instead, `tail` fails by itself.
    assert!(is_reported || instance.enforcement().memory != "cgroup");
    backend.end().await;
}

async fn stopped_instance_leaves_no_process(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    shell(&instance, "setsid sleep 60 > /dev/null 2>&1 & disown").await;
    instance.stop().await;
    assert!(!instance.is_alive());
    assert_eq!(next_event(&instance).await, Event::Lost);
    assert!(instance.spawn(vec!["true".into()]).is_err());
    backend.end().await;
}

async fn dropped_instance_ends(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    let (end_watch, meter) = (instance.end_watch(), instance.meter(10));
    drop(instance);
    end_watch.ended().await;
    assert_eq!(meter.usage(meter.request_workspace(TIMEOUT)), None);
    backend.end().await;
}

async fn ended_backend_creates_nothing(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    backend.end().await;
    assert!(!instance.is_alive());
    let refused = backend.create(InstanceRequest::new(spec())).await.map(drop);
    assert!(matches!(refused, Err(CreateError::ShuttingDown)), "{refused:?}");
}
