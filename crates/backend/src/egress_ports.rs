//! Opens ports for transparent connections in a running instance.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ringfence_sandbox::{Control, EgressPortError};

use crate::native::EgressListeners;

/// Far more time than an init needs for a request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens ports of one instance while another task owns it. Cheap to clone.
#[derive(Clone)]
pub struct EgressPorts {
    control: Arc<Control>,
    platform: Platform,
}

#[derive(Clone)]
enum Platform {
    Native(EgressListeners),
}

impl EgressPorts {
    pub(crate) fn native(control: Arc<Control>, listeners: EgressListeners) -> Self {
        Self { control, platform: Platform::Native(listeners) }
    }

    /// Opens a listener for connections of the guest to this port of any address. The instance must have egress.
    ///
    /// A server that adopts the instance gets the listener with [`crate::Adopted::egress`].
    pub async fn open(&self, port: u16) -> Result<TcpListener, EgressPortError> {
        let control = Arc::clone(&self.control);
        let opening = tokio::task::spawn_blocking(move || control.open_egress_port(port, OPEN_TIMEOUT));
        let listener = opening.await.map_err(|_| EgressPortError::SandboxLost)??;
        let Platform::Native(listeners) = &self.platform;
        // A listener that cannot be stored works until this server ends.
        if let Ok(pending) = listeners.store(&listener) {
            let _ = pending.confirm().await;
        }
        Ok(listener)
    }
}
