//! The official conformance suite of MCP, against a real server, in both protocol eras.
//!
//! The suite expects a server with its own fixtures: tools, prompts and resources of certain names. What fails
//! for want of them is listed in `tests/conformance/expected.txt`, and nothing else may fail, nor anything
//! listed pass.

mod known;
mod run;

use crate::clients::cache;
use crate::server::Server;

pub(crate) use known::judge;
pub(crate) use run::{Check, Era, NEWER, OLDER, run};

#[test]
fn the_older_era_conforms() {
    conform("the_older_era_conforms", OLDER);
}

#[test]
fn the_newer_era_conforms() {
    conform("the_newer_era_conforms", NEWER);
}

fn conform(test: &str, era: Era) {
    let Some(cache) = cache(test) else { return };
    let server = Server::start(&[], &[]);
    let checks = run(&cache, &format!("http://{}/mcp", server.address), era);
    judge(&checks, "expected.txt", era);
}
