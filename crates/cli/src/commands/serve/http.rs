//! Serves over HTTP: where connections come from, who may connect, and the notifications of the service manager.

use std::net::SocketAddr;

use ringfence_config::Configuration;
use ringfence_gateway::{
    AuthenticationOptions, Gateway, MIN_TOKEN_BYTES, Token, check_listen_address, serve_http, short_token,
};
use ringfence_mcp::handover::{HandedConnections, WorkerSetup};
use ringfence_mcp::http::{HttpOptions, Incoming};
use ringfence_supervisor::Listen;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::arguments::Arguments;
use super::readiness::Readiness;
use crate::failure::Failure;
use crate::inherited_socket::InheritedSocket;
use crate::service_manager::ServiceManager;

/// An HTTP server that has not opened its socket yet.
pub(super) struct Http {
    authentication: AuthenticationOptions,
    pub(super) options: HttpOptions,
    source: Source,
}

/// The source of connections.
enum Source {
    Listen(Listen),
    Supervisor(WorkerSetup),
}

impl Http {
    /// Fails if it is not safe to serve on the address.
    pub(super) fn new(
        arguments: &Arguments,
        configuration: &Configuration,
        inherited: Option<InheritedSocket>,
    ) -> Result<Self, Failure> {
        let source = match inherited {
            Some(InheritedSocket::Supervisor(setup)) => Source::Supervisor(setup),
            Some(InheritedSocket::Listener(listener)) => Source::Listen(Listen::Socket(listener)),
            None => Source::Listen(listen(configuration, None)),
        };
        let address = match &source {
            Source::Supervisor(setup) => setup.address(),
            Source::Listen(listen) => listen.address().map_err(|error| no_address(&error))?,
        };
        let (authentication, options) = http_options(arguments, configuration, address)?;
        Ok(Self { authentication, options, source })
    }

    /// Serves until `shutdown`.
    pub(super) async fn serve(
        self,
        gateway: Gateway,
        readiness: Readiness,
        shutdown: CancellationToken,
    ) -> Result<(), Failure> {
        let Self { source, authentication, options } = self;
        let incoming = open(source).await?;
        let bound = incoming.address().map_err(|error| no_address(&error))?;
        let manager = ServiceManager::find();
        let drain = options.drain.clone();
        let announce = async {
            let ready = async {
                readiness.wait(format!("at http://{bound}/mcp")).await;
                let serving = format!("serving MCP at http://{bound}/mcp");
                tracing::info!("{serving}");
                manager.notify_ready(&serving);
            };
            tokio::select! { () = ready => {}, () = shutdown.cancelled() => {}, () = drain.cancelled() => {} }
        };
        let announce_end = async {
            tokio::select! { () = shutdown.cancelled() => {}, () = drain.cancelled() => {} }
            manager.notify_stopping();
        };
        let serving = serve_http(incoming, gateway, authentication, options, shutdown.clone());
        let (served, (), (), ()) = tokio::join!(
            async {
                let served = serving.await;
                shutdown.cancel();
                served
            },
            announce,
            manager.feed_watchdog(&shutdown),
            announce_end
        );
        served.map_err(|error| Failure::new("the HTTP server failed").caused_by(&error))
    }
}

/// Returns the inherited listener, or the configured address if there is none.
pub(in crate::commands) fn listen(configuration: &Configuration, inherited: Option<std::net::TcpListener>) -> Listen {
    let server = &configuration.server;
    inherited.map_or_else(|| Listen::Address((server.host, server.port).into()), Listen::Socket)
}

/// Returns the options for serving on an address. Fails if that is not safe.
pub(in crate::commands) fn http_options(
    arguments: &Arguments,
    configuration: &Configuration,
    address: SocketAddr,
) -> Result<(AuthenticationOptions, HttpOptions), Failure> {
    let server = &configuration.server;
    let tokens = configuration.tokens()?.into_iter();
    let authentication = AuthenticationOptions {
        tokens: tokens.map(|token| Token { principal: token.name, secret: token.secret.expose().to_owned() }).collect(),
        insecure_no_auth: arguments.insecure_no_auth,
        allow_local_users: server.allow_local_users,
    };
    let options = HttpOptions {
        allowed_hosts: server.allowed_hosts.clone(),
        enable_cors: server.enable_cors,
        max_requests: server.max_concurrent_requests,
        max_connections: server.max_connections,
        drain_timeout: server.timeouts.drain,
        ..HttpOptions::default()
    };
    check_listen_address(address, &authentication)
        .map_err(|error| Failure::new(error.to_string()).hint(error.hint()))?;
    if let Some(token) = short_token(&authentication.tokens) {
        tracing::warn!("the token of {:?} has fewer than {MIN_TOKEN_BYTES} bytes and may be guessed", token.principal);
    }
    Ok((authentication, options))
}

async fn open(source: Source) -> Result<Incoming, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot serve the inherited socket").caused_by(&error);
    match source {
        Source::Listen(Listen::Address(address)) => {
            let bound = TcpListener::bind(address).await.map_err(|error| {
                Failure::new(format!("cannot listen on {address}"))
                    .caused_by(&error)
                    .hint("choose another --port, or 0 for any free port")
            });
            bound.map(Incoming::from)
        }
        Source::Listen(Listen::Socket(listener)) => {
            let opened = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            opened.map(Incoming::from).map_err(failed)
        }
        Source::Supervisor(setup) => {
            HandedConnections::new(setup).map(|handed| Incoming::Handed(Box::new(handed))).map_err(failed)
        }
    }
}

/// Makes a failure of a socket whose address cannot be determined.
pub(in crate::commands) fn no_address(error: &std::io::Error) -> Failure {
    Failure::new("cannot determine the address of the listening socket").caused_by(error)
}
