//! Creates instances, and finds those that a dead server has left.

use std::collections::BTreeMap;
use std::ffi::OsString;

use ringfence_core::{EgressSockets, Spec};
use zeroize::Zeroizing;

use crate::config::BackendConfig;
use crate::error::CreateError;
use crate::instance::{Instance, Platform};
use crate::kernel_socket::KernelSocket;
use crate::native::{self, Native};
use crate::process::{InterpreterProcess, Process};

/// A kind of isolation, and the instances that it has created. Cheap to clone; clones are the same backend.
#[derive(Clone)]
pub enum Backend {
    /// Linux namespaces on this host.
    Native(Native),
}

/// An instance to create.
pub struct InstanceRequest {
    pub spec: Spec,
    /// Whether to fork the instance from a warm Python interpreter, if there is one.
    pub warm: bool,
    /// The command of an interpreter to start in the instance, which is faster than to start it afterwards. A warm
    /// instance forks its own interpreter instead.
    pub interpreter: Option<Vec<OsString>>,
}

impl InstanceRequest {
    /// A cold instance without an interpreter.
    pub fn new(spec: Spec) -> Self {
        Self { spec, warm: false, interpreter: None }
    }
}

/// A new instance.
pub struct Created {
    pub instance: Instance,
    /// The interpreter that was requested.
    pub interpreter: Option<InterpreterProcess>,
    /// The sockets inside the instance that the host must serve, if the spec has egress.
    pub egress: Option<EgressSockets>,
}

/// The instances that servers before this one have left.
pub struct Orphans {
    pub instances: Vec<Orphan>,
    address_prefixes_in_use: Vec<String>,
}

impl Orphans {
    /// Whether another server owns the instance of this address, or may own it.
    pub fn is_in_use(&self, address: &str) -> bool {
        self.address_prefixes_in_use.iter().any(|prefix| address.starts_with(prefix))
    }
}

/// A running instance without an owner.
pub struct Orphan(native::Orphan);

/// An orphan that this server owns now.
pub struct Adopted {
    pub instance: Instance,
    /// The interpreter, if one was running, in whatever state the last server left it.
    pub interpreter: Option<(Process, KernelSocket)>,
    /// See [`Created::egress`].
    pub egress: Option<EgressSockets>,
    /// The number of previous owners.
    pub previous_owners: u32,
}

impl Backend {
    /// The backend that needs nothing but Linux.
    pub fn native(config: BackendConfig) -> Self {
        Self::Native(Native::new(config))
    }

    /// The name that users see.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Native(_) => "native",
        }
    }

    /// Creates an instance.
    pub async fn create(&self, request: InstanceRequest) -> Result<Created, CreateError> {
        let InstanceRequest { spec, warm, interpreter } = request;
        let environment = spec.environment.clone();
        match self {
            Self::Native(native) => {
                let interpreter = interpreter.map(|argv| (argv, environment.clone()));
                let created = native.create(spec, warm, interpreter).await?;
                let platform = Platform::Native(created.instance);
                let mut instance = Instance::new(platform, created.control, environment, created.is_warm)?;
                if let Some(interpreter) = &created.interpreter {
                    instance.number_processes_after(interpreter.process.number);
                }
                let (interpreter, egress) = (created.interpreter, created.egress);
                Ok(Created { instance, interpreter, egress })
            }
        }
    }

    /// Waits until instances can be created warm; `false` if they cannot.
    pub async fn warm_up(&self) -> bool {
        match self {
            Self::Native(native) => native.warm_up().await,
        }
    }

    /// Returns the instances of servers that have died. The backend then owns these instances. Those that are not
    /// adopted end together with the backend.
    /// Without [`crate::Persistence`] there are none.
    pub async fn find_orphans(&self) -> Orphans {
        match self {
            Self::Native(native) => {
                let native::Orphans { instances, address_prefixes_in_use } = native.find_orphans().await;
                Orphans { instances: instances.into_iter().map(Orphan).collect(), address_prefixes_in_use }
            }
        }
    }

    /// Ends every instance that this backend has created. Later requests fail.
    pub async fn end(&self) {
        match self {
            Self::Native(native) => native.end().await,
        }
    }
}

impl Orphan {
    /// See [`Instance::address`].
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Returns the record of [`Instance::store_credentials`]. `None` if the last server has stored none.
    pub async fn credentials(&self) -> Result<Option<Zeroizing<String>>, String> {
        self.0.credentials().await
    }

    /// Makes this server the owner of the orphan. Processes that are started from now on have the variables of
    /// `environment`. Returns `None` if the instance has ended, or was killed because this process could not use its
    /// control socket.
    pub async fn adopt(self, environment: BTreeMap<String, String>) -> Option<Adopted> {
        let adopted = self.0.adopt().await?;
        let platform = Platform::Native(adopted.instance);
        let mut instance = Instance::new(platform, adopted.control, environment, adopted.is_warm).ok()?;
        instance.number_processes_of_owner(adopted.previous_owners);
        instance.resume_background_output(adopted.background_streams);
        Some(Adopted {
            instance,
            interpreter: adopted.interpreter,
            egress: adopted.egress,
            previous_owners: adopted.previous_owners,
        })
    }
}
