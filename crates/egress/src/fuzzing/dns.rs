//! Queries of a hostile guest to the resolver.

use std::sync::Arc;

use crate::context::Context;
use crate::decision::DecisionLog;
use crate::resolver::{Resolver, encoding};
use crate::rules::Policy;

/// Sends a sequence of messages to one resolver. Each starts with a byte for its length; the last one takes the rest.
pub fn egress_dns(data: &[u8]) {
    let policy = Policy::parse(["a.test", "*.b.test:8443", "db+private"]).expect("rules");
    let context = Arc::new(Context::new(policy, DecisionLog::bounded(1).0));
    let resolver = Resolver::new(Arc::clone(&context));
    let mut rest = data;
    while let [length, after @ ..] = rest {
        let (message, after) = after.split_at(after.len().min((*length).into()));
        check(&context, &resolver, message);
        rest = after;
    }
}

fn check(context: &Context, resolver: &Resolver, message: &[u8]) {
    let Some(response) = resolver.respond(message) else {
        assert!(message.len() < 12 || message[2] & 0x80 != 0, "a query has a response");
        return;
    };
    let response = encoding::parse_response(message, &response);
    let Some(address) = response.address.filter(|address| !address.is_loopback()) else { return };
    let name = context.names.name_of(address).expect("the name of the address");
    let name = name.as_str();
    assert!(name == "a.test" || name == "db" || name.ends_with(".b.test"), "{name} is not allowed");
    // The question has this name and no other.
    let question = String::from_utf8_lossy(&message[12..]).to_ascii_lowercase();
    for label in name.split('.') {
        assert!(question.contains(label));
    }
}
