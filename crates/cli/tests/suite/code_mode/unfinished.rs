//! Tool calls that are still running when their code ends, times out or cancels them, or when the MCP server dies.

use std::time::{Duration, Instant};

use serde_json::json;

use super::endpoint::Endpoint;

#[test]
fn timeout_preserves_variables_and_lists_unfinished_calls() {
    let endpoint = Endpoint::start();
    endpoint.run_with("x = 41", &["tools"]);
    let result = endpoint.run_for(&json!({
        "code": "import asyncio\nx += 1\nawait mcp_tools.record(value='before')\n\
                 await asyncio.gather(*(mcp_tools.wait(seconds=50) for _ in range(10)))",
        "timeout": 1,
    }));
    assert_eq!((result.status(), result.is_error()), ("timeout", true), "{result:?}");
    let text = result.text();
    assert!(text.contains("tools.wait") && text.contains("may have run"), "{text}");
    let expected = json!({"may_have_run": ["tools.wait (8)"], "not_started": ["tools.wait (2)"]});
    assert_eq!(*result.field("unfinished_calls"), expected, "{result:?}");
    // The server receives the cancellations and has free call slots again.
    let report = "report = await mcp_tools.report()\nprint(x, report['cancelled'], report['recorded'])";
    let deadline = Instant::now() + Duration::from_secs(10);
    while endpoint.run(report).stdout() != "42 8 ['before']" {
        assert!(Instant::now() < deadline, "{:?}", endpoint.run(report));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn unfinished_calls_are_cancelled_and_reported() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import asyncio\ntask = asyncio.create_task(mcp_tools.wait(seconds=50))\n\
         while (await mcp_tools.report())['peak'] < 2:  # until `wait` and `report` run in parallel\n\
         \x20   await asyncio.sleep(0.01)",
        &["tools"],
    );
    assert!(!result.is_error() && result.text().contains("tools.wait"), "{result:?}");
    let awaited = endpoint.run("await task");
    assert!(awaited.is_error() && awaited.text().contains("may have run"), "{awaited:?}");
    assert_eq!(endpoint.run("await mcp_tools.echo(message='works')").text(), "'works'");
}

#[test]
fn code_can_cancel_its_calls() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import asyncio\n\
         try:\n\
         \x20   await asyncio.wait_for(mcp_tools.wait(seconds=50), 0.2)\n\
         except asyncio.TimeoutError:\n\
         \x20   print('cancelled')\n\
         while not (await mcp_tools.report())['cancelled']:\n\
         \x20   await asyncio.sleep(0.01)\n\
         print((await mcp_tools.report())['cancelled'])",
        &["tools"],
    );
    assert_eq!(result.stdout(), "cancelled\n1", "{result:?}");
    assert!(!result.text().contains("may have run"), "{result:?}");
}

#[test]
fn server_crash_is_reported_and_next_call_waits_for_restart() {
    let program = ringfence_testkit::fixture_path("bad_server.py").display().to_string();
    let more = format!("[servers.crashing]\ncommand = \"python3\"\nargs = [{program:?}, \"die-in-call\"]\n");
    let endpoint = Endpoint::with(&more, &[]);
    let result = endpoint.run_with(
        "from mcp.runtime import MCPError\n\
         try:\n\
         \x20   await mcp_crashing.die()\n\
         except MCPError as error:\n\
         \x20   print(error.kind, error.may_have_run)\n\
         print(await mcp_crashing.echo(message='back'))",
        &["crashing"],
    );
    assert_eq!(result.stdout(), "lost True\nback", "{result:?}");
}
