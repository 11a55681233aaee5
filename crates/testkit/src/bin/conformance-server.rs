//! `conformance-server --port PORT | --stdio`: the conformance server as a program. It logs its address to standard
//! error; port 0 selects a free port.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use ringfence_testkit::conformance_server::{serve_http, serve_stdio};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["--stdio"] => serve_stdio().await,
        ["--port", port] => listen(port).await,
        _ => Err(std::io::Error::other("usage: conformance-server --port PORT | --stdio")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn listen(port: &str) -> std::io::Result<()> {
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    log(&format!("serving MCP at http://{}/mcp", listener.local_addr()?));
    serve_http(listener).await
}

#[allow(clippy::print_stderr)] // the log of this program
fn log(text: &str) {
    eprintln!("{text}");
}
