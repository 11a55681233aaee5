//! Calls that are under way when the code ends.

use std::time::{Duration, Instant};

use serde_json::json;

use super::endpoint::Endpoint;

#[test]
fn a_timeout_keeps_the_variables_and_names_what_may_have_run() {
    let endpoint = Endpoint::start();
    endpoint.run_with("x = 41", &["tools"]);
    let ran = endpoint.run_for(&json!({
        "code": "import asyncio\nx += 1\nawait mcp_tools.record(value='before')\n\
                 await asyncio.gather(*(mcp_tools.wait(seconds=50) for _ in range(10)))",
        "timeout": 1,
    }));
    assert_eq!((ran.status(), ran.is_error()), ("timeout", true), "{ran:?}");
    let text = ran.text();
    assert!(text.contains("tools.wait") && text.contains("may have run"), "{text}");
    let expected = json!({"may_have_run": ["tools.wait (8)"], "not_started": ["tools.wait (2)"]});
    assert_eq!(*ran.field("unfinished_calls"), expected, "{ran:?}");
    // The server was told, and has its places back.
    let told = "report = await mcp_tools.report()\nprint(x, report['cancelled'], report['recorded'])";
    let deadline = Instant::now() + Duration::from_secs(10);
    while endpoint.run(told).stdout() != "42 8 ['before']" {
        assert!(Instant::now() < deadline, "{:?}", endpoint.run(told));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_code_leaves_behind_is_cancelled_and_told() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with(
        "import asyncio\ntask = asyncio.create_task(mcp_tools.wait(seconds=50))\nawait asyncio.sleep(0.3)",
        &["tools"],
    );
    assert!(!ran.is_error() && ran.text().contains("tools.wait"), "{ran:?}");
    let awaited = endpoint.run("await task");
    assert!(awaited.is_error() && awaited.text().contains("may have run"), "{awaited:?}");
    assert_eq!(endpoint.run("await mcp_tools.echo(message='goes on')").text(), "'goes on'");
}

#[test]
fn code_may_give_a_call_up_itself() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with(
        "import asyncio\n\
         try:\n\
         \x20   await asyncio.wait_for(mcp_tools.wait(seconds=50), 0.2)\n\
         except asyncio.TimeoutError:\n\
         \x20   print('gave up')\n\
         await asyncio.sleep(0.2)\n\
         print((await mcp_tools.report())['cancelled'])",
        &["tools"],
    );
    assert_eq!(ran.stdout(), "gave up\n1", "{ran:?}");
    assert!(!ran.text().contains("may have run"), "{ran:?}");
}

#[test]
fn a_server_that_dies_in_a_call_is_told_and_the_next_call_waits_for_its_return() {
    let program = ringfence_testkit::fixture_path("bad_server.py").display().to_string();
    let more = format!("[servers.frail]\ncommand = \"python3\"\nargs = [{program:?}, \"die-in-call\"]\n");
    let endpoint = Endpoint::with(&more, &[]);
    let ran = endpoint.run_with(
        "from mcp.runtime import MCPError\n\
         try:\n\
         \x20   await mcp_frail.die()\n\
         except MCPError as error:\n\
         \x20   print(error.kind, error.may_have_run)\n\
         print(await mcp_frail.echo(message='back'))",
        &["frail"],
    );
    assert_eq!(ran.stdout(), "lost True\nback", "{ran:?}");
}
