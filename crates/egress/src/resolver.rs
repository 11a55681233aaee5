//! The DNS server of one sandbox.
//!
//! A name gets an address of the [`NameTable`](crate::name_table::NameTable) if a rule allows it, or if the user may be
//! asked about it. For any other name the response is that it does not exist. A query of the guest never causes a query
//! of the host: names are resolved when the guest connects. So a guest cannot send data out of the sandbox in names,
//! also if the policy has wildcards. The server has no IPv6 addresses and no other records.

mod message;
mod refused_names;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringfence_core::sync::Mutex;
use tokio::net::UdpSocket;

use crate::context::Context;
use crate::decision::{Decision, Source};
use crate::rules::{DnsName, Host};
#[cfg(any(test, fuzzing))]
pub(crate) use message::encoding;
use message::{Answer, CLASS_IN, Code, Query, QueryError, QuestionName, TYPE_A, TYPE_ANY, TYPE_PTR};
use refused_names::{Recording, RefusedNames};
pub(crate) use tcp::serve_connection;

/// Maximum size of a query in a datagram. Longer ones are malformed.
const MAX_DATAGRAM_BYTES: usize = 1232;
/// Maximum number of datagrams to serve before other work of the sandbox.
const MAX_DATAGRAMS_PER_TURN: usize = 16;

/// The resolver of one sandbox.
#[derive(Debug)]
pub(crate) struct Resolver {
    context: Arc<Context>,
    refused: Mutex<RefusedNames>,
}

impl Resolver {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, refused: Mutex::default() }
    }

    /// Serves the datagrams that have arrived, up to a limit. Fails if the socket fails.
    pub(crate) fn serve_datagrams(&self, socket: &UdpSocket) -> std::io::Result<()> {
        // The buffer is on the stack only while it is used, so that an idle sandbox needs no buffer.
        let mut buffer = [0; MAX_DATAGRAM_BYTES + 1];
        for _ in 0..MAX_DATAGRAMS_PER_TURN {
            match socket.try_recv_from(&mut buffer) {
                Ok((length, guest)) => {
                    if let Some(response) = self.respond(&buffer[..length]) {
                        // A guest whose buffer is full loses the response, as on any network.
                        let _ = socket.try_send_to(&response, guest);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the response to a message; `None` if the message must be ignored.
    pub(crate) fn respond(&self, message: &[u8]) -> Option<Vec<u8>> {
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(QueryError::Ignored) => return None,
            Err(QueryError::Refused { header, code }) => return Some(header.refuse(code)),
        };
        let (code, answer) = match (query.extension, query.class) {
            (Some(1..), _) => (Code::BadVersion, None),
            (_, CLASS_IN) => self.answer(&query),
            _ => (Code::Refused, None),
        };
        Some(query.respond(code, answer.as_ref()))
    }

    fn answer(&self, query: &Query<'_>) -> (Code, Option<Answer>) {
        let name = match &query.name {
            QuestionName::Root => return (Code::NoError, None),
            QuestionName::Host(name) => name,
            QuestionName::Other => {
                self.record_refusal(None, "bad-host");
                return (Code::NoSuchName, None);
            }
        };
        let is_address_query = matches!(query.kind, TYPE_A | TYPE_ANY);
        if is_localhost(name) {
            // RFC 6761, 6.3: this name is always the guest itself, also if a rule names a `localhost` of the host.
            return (Code::NoError, is_address_query.then_some(Answer::Address(Ipv4Addr::LOCALHOST)));
        }
        if is_in_domain(name, "arpa") {
            return self.answer_reverse(name, query.kind);
        }
        let host = Host::Name(name.clone());
        if !self.context.may_resolve(&host) {
            self.record_refusal(Some(&host), "no-rule");
            return (Code::NoSuchName, None);
        }
        if !is_address_query {
            return (Code::NoError, None);
        }
        match self.context.names.address_of(name) {
            Some(address) => (Code::NoError, Some(Answer::Address(address))),
            None => (Code::ServerFailure, None),
        }
    }

    /// Responds to a query for the name of an address. Such queries are not recorded: they name no host.
    fn answer_reverse(&self, name: &DnsName, kind: u16) -> (Code, Option<Answer>) {
        let found = match reverse_address(name) {
            Some(address) if address.is_loopback() => "localhost".parse().ok(),
            Some(address) => self.context.names.name_of(address).map(|name| (*name).clone()),
            None => None,
        };
        match found {
            Some(name) => (Code::NoError, matches!(kind, TYPE_PTR | TYPE_ANY).then_some(Answer::Name(name))),
            None => (Code::NoSuchName, None),
        }
    }

    fn record_refusal(&self, host: Option<&Host>, reason: &'static str) {
        match self.refused.lock().add(host, self.context.report.load(Ordering::Relaxed)) {
            Recording::New => self.context.log.record(Decision {
                source: Source::Resolver,
                host: host.cloned(),
                reason,
                ..Decision::default()
            }),
            Recording::Repeated => {}
            Recording::Dropped => self.context.log.count_dropped(),
        }
    }
}

fn is_localhost(name: &DnsName) -> bool {
    name.as_str() == "localhost" || is_in_domain(name, "localhost")
}

fn is_in_domain(name: &DnsName, domain: &str) -> bool {
    name.as_str().strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the address of a name such as `1.0.18.198.in-addr.arpa`.
fn reverse_address(name: &DnsName) -> Option<Ipv4Addr> {
    let reversed: Ipv4Addr = name.as_str().strip_suffix(".in-addr.arpa")?.parse().ok()?;
    let [a, b, c, d] = reversed.octets();
    Some(Ipv4Addr::new(d, c, b, a))
}
