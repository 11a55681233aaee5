//! `conformance-server --port PORT | --stdio`: the fixture server as a program. It says on standard error where it
//! listens; port 0 is any that is free.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use ringfence_testkit::fixture::{serve_http, serve_stdio};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let served = match words[..] {
        ["--stdio"] => serve_stdio().await,
        ["--port", port] => listen(port).await,
        _ => Err(std::io::Error::other("usage: conformance-server --port PORT | --stdio")),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn listen(port: &str) -> std::io::Result<()> {
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    say(&format!("serving MCP at http://{}/mcp", listener.local_addr()?));
    serve_http(listener).await
}

#[allow(clippy::print_stderr)] // whoever started it reads it there
fn say(text: &str) {
    eprintln!("{text}");
}
