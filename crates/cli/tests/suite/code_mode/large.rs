//! Nothing has a size at which it breaks.

use super::endpoint::Endpoint;

/// What one large answer may cost the host: itself, once, and what was there before.
const BOUND: u64 = 128 << 20;

#[test]
fn results_arrive_whole_and_the_host_stays_small() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with("len(await mcp_tools.make_text(bytes=100_000))", &["tools"]);
    assert_eq!(ran.text(), "100000", "{ran:?}");
    let ran = endpoint.run(
        "text = await mcp_tools.make_text(bytes=50_000_000)\n\
         print(len(text), set(text))\n\
         del text",
    );
    assert_eq!(ran.stdout(), "50000000 {'x'}", "{ran:?}");
    let peak = endpoint.server.peak_bytes();
    assert!(peak < BOUND, "{peak}");
    // Over the bound of any message; the session and the server go on.
    let ran = endpoint.run(
        "try:\n\
         \x20   await mcp_tools.make_text(bytes=68_000_000)\n\
         except Exception as error:\n\
         \x20   print(type(error).__name__, error.kind)\n\
         print(await mcp_tools.echo(message='still here'))",
    );
    assert_eq!(ran.stdout(), "MCPError limit\nstill here", "{ran:?}");
    assert!(endpoint.server.peak_bytes() < BOUND);
}

#[test]
fn several_large_ones_at_once_arrive_too() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with(
        "import asyncio\n\
         texts = await asyncio.gather(*(mcp_tools.make_text(bytes=5_000_000 + n) for n in range(12)))\n\
         print([len(text) - 5_000_000 for text in texts] == list(range(12)))",
        &["tools"],
    );
    assert_eq!(ran.stdout(), "True", "{ran:?}");
}

#[test]
fn a_long_print_leaves_the_next_call_in_step() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with(
        "print('y' * 100_000)\n\
         print(await mcp_tools.echo(message='a'))\n\
         print('z' * 100_000)\n\
         print(await mcp_tools.echo(message='b'))",
        &["tools"],
    );
    assert!(!ran.is_error(), "{ran:?}");
    assert_eq!(endpoint.run("await mcp_tools.echo(message='in step')").text(), "'in step'");
    let large = endpoint.run("print(len(await mcp_tools.echo(message='m' * 3_000_000)))");
    assert_eq!(large.stdout(), "3000000", "{large:?}");
}
