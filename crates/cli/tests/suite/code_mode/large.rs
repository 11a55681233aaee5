//! Large results, arguments and outputs of tool calls.

use super::endpoint::Endpoint;

/// Maximum peak memory of the server: one copy of a large result, and what it uses anyway.
const MAX_SERVER_BYTES: u64 = 128 << 20;

#[test]
fn large_results_arrive_complete_and_server_memory_is_bounded() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with("len(await mcp_tools.make_text(bytes=100_000))", &["tools"]);
    assert_eq!(result.text(), "100000", "{result:?}");
    let result = endpoint.run(
        "text = await mcp_tools.make_text(bytes=50_000_000)\n\
         print(len(text), set(text))\n\
         del text",
    );
    assert_eq!(result.stdout(), "50000000 {'x'}", "{result:?}");
    let peak = endpoint.server.peak_bytes();
    assert!(peak < MAX_SERVER_BYTES, "{peak}");
    // Larger than the maximum size of a message: the call fails; the session and the server still work.
    let result = endpoint.run(
        "try:\n\
         \x20   await mcp_tools.make_text(bytes=68_000_000)\n\
         except Exception as error:\n\
         \x20   print(type(error).__name__, error.kind)\n\
         print(await mcp_tools.echo(message='still here'))",
    );
    assert_eq!(result.stdout(), "MCPError limit\nstill here", "{result:?}");
    assert!(endpoint.server.peak_bytes() < MAX_SERVER_BYTES);
}

#[test]
fn parallel_large_results_arrive_complete() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import asyncio\n\
         texts = await asyncio.gather(*(mcp_tools.make_text(bytes=5_000_000 + n) for n in range(12)))\n\
         print([len(text) - 5_000_000 for text in texts] == list(range(12)))",
        &["tools"],
    );
    assert_eq!(result.stdout(), "True", "{result:?}");
}

#[test]
fn long_output_does_not_desynchronize_calls() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "print('y' * 100_000)\n\
         print(await mcp_tools.echo(message='a'))\n\
         print('z' * 100_000)\n\
         print(await mcp_tools.echo(message='b'))",
        &["tools"],
    );
    assert!(!result.is_error(), "{result:?}");
    assert_eq!(endpoint.run("await mcp_tools.echo(message='synchronized')").text(), "'synchronized'");
    let result = endpoint.run("print(len(await mcp_tools.echo(message='m' * 3_000_000)))");
    assert_eq!(result.stdout(), "3000000", "{result:?}");
}
