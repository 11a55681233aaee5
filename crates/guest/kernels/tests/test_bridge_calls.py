"""Calls of the Python bridge: concurrent, cancelled, with late or invalid responses, open at the end of a cell."""

import os
import select

from bridge_host import LATER, RESPONSE_BIT, BridgeTest, Refusal, text_result
from kernel_host import request

GATHER = "import asyncio; await asyncio.gather(*[mcp_plain.echo(n=n) for n in range(%d)])"


class CallTest(BridgeTest):
    def start_calls(self, count, code=None):
        """Runs a cell up to its calls and returns their numbers. The test sends the responses."""
        self.host.start(code or GATHER % count)
        frames = []
        while len(frames) < count:
            call = self.host.next_call()
            if call["method"] == "tools/call":
                frames.append(call)
            else:
                self.host.handle_call(call)
        return [frame["call"] for frame in frames]

    def test_all_calls_of_gather_are_open_at_once(self):
        numbers = self.start_calls(5)
        for number in reversed(numbers):
            self.host.respond(number, text_result(f"result {number}"))
        cell = self.host.finish()
        self.assertEqual(eval(cell.result), [f"result {number}" for number in numbers])

    def test_call_frame_has_exact_names_and_arguments(self):
        self.run_ok("await mcp_plain.echo(n='ü')")
        listing, call = self.host.calls
        self.assertEqual((listing["method"], listing["params"]), ("tools/list", {"server": "plain"}))
        params = {"server": "plain", "tool": "echo", "arguments": {"n": "ü"}}
        self.assertEqual(call, {"type": "call", "id": 101, "call": 2, "method": "tools/call", "params": params})

    def test_call_numbers_grow_across_cells_and_threads(self):
        self.run_ok("import concurrent.futures, mcp.runtime as runtime")
        self.run_ok("with concurrent.futures.ThreadPoolExecutor(8) as pool: list(pool.map(runtime.memory_exists, 'a' * 50))")
        self.run_ok(GATHER % 5)
        numbers = [call["call"] for call in self.host.calls]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_open_calls_are_limited_to_256_and_the_rest_is_queued(self):
        self.run_ok("mcp_plain.echo")
        numbers = self.start_calls(256, GATHER % 1000)
        self.assertEqual(select.select([self.host.socket], [], [], 0.05)[0], [])
        self.host.respond(numbers[0], text_result("first"))
        self.assertEqual(self.host.next_call()["params"]["arguments"], {"n": 256})
        for call in self.host.calls[-256:]:
            self.host.handle_call(call)
        cell = self.host.finish()
        self.assertEqual((cell.status, eval(cell.result)[1:]), ("ok", [{"n": n} for n in range(1, 1000)]))

    def test_large_results_arrive_completely(self):
        self.run_ok("mcp_plain.echo")
        for size in (100_000, 50_000_000):
            with self.subTest(size=size):
                self.state.call = lambda params: text_result("x" * size)
                code = "text = await mcp_plain.echo(); len(text), set(text)"
                self.assertEqual(self.value(code), (size, {"x"}))

    def test_oversized_response_is_skipped(self):
        (number,) = self.start_calls(1, "await mcp_plain.echo()")
        size = (72 << 20) + 1
        self.host.send((RESPONSE_BIT | number).to_bytes(8, "big").ljust(size))
        self.host.respond(number, text_result("small"))
        self.assertEqual(self.host.finish().result, "'small'")

    def test_large_output_between_calls_arrives(self):
        cell = self.run_ok("a = await mcp_plain.echo(n=1); print('x' * 100_000); b = await mcp_plain.echo(n=2); a, b")
        self.assertEqual((cell.result, len(cell.stdout)), ("({'n': 1}, {'n': 2})", 100_001))

    def test_abandoned_call_is_cancelled(self):
        self.host.start(
            """
            import asyncio
            try:
                await asyncio.wait_for(mcp_plain.wait(), 0.01)
            except asyncio.TimeoutError:
                print('late')
            await mcp_plain.echo(n=1)
            """
        )
        self.state.call = lambda params: LATER if params["tool"] == "wait" else text_result("done")
        cell = self.host.finish()
        self.assertEqual((cell.result, cell.stdout, self.host.cancelled), ("'done'", "late\n", [2]))

    def test_failure_of_one_call_can_cancel_another(self):
        def respond(params):
            if params["tool"] == "echo":
                raise Refusal("upstream", "broken", code=-32000, data={"a": 1})
            return LATER

        self.state.call = respond
        cell = self.run_cell(
            """
            import asyncio
            try:
                waiting = asyncio.ensure_future(mcp_plain.wait())
                await asyncio.sleep(0)
                await mcp_plain.echo()
            except Exception as error:
                waiting.cancel()
                await asyncio.wait([waiting])
                failure = error
            type(failure).__name__, str(failure), failure.kind, failure.code, failure.data, failure.server, failure.tool
            """
        )
        expected = ("MCPError", "broken", "upstream", -32000, {"a": 1}, "plain", "echo")
        self.assertEqual(eval(cell.result), expected)
        self.assertEqual(len(self.host.cancelled), 1)

    def test_late_and_forged_responses_are_dropped(self):
        self.host.start("await mcp_plain.echo()")
        self.host.handle_call(self.host.next_call())
        number = self.host.next_call()["call"]
        for unknown in (0, number + 1, 1, (1 << 62) - 1):
            self.host.respond(unknown, text_result("forged"))
        self.host.respond(number, text_result("true"))
        self.host.respond(number, text_result("twice"))
        self.assertEqual(self.host.finish().result, "'true'")
        self.host.respond(number, text_result("again"))
        self.assertEqual(self.run_ok("await mcp_plain.echo(n=1)").result, "{'n': 1}")

    def test_response_that_is_not_json_fails_the_call(self):
        (number,) = self.start_calls(1, "await mcp_plain.echo()")
        self.host.send((RESPONSE_BIT | number).to_bytes(8, "big") + b"{")
        self.assertIn("cannot be parsed", self.host.finish().error["message"])

    def test_arguments_that_the_host_cannot_parse_are_not_sent(self):
        self.run_ok("import datetime, mcp.runtime as runtime; deep = []\nfor _ in range(200): deep = [deep]")
        self.host.calls.clear()
        for code in ("float('nan')", "'\\ud800'", "datetime.date(2020, 1, 1)", "deep", "[deep] * 3", "'x' * (8 << 20)"):
            with self.subTest(code=code):
                cell = self.run_cell(f"runtime.save_memory('a', {code})")
                self.assertEqual(cell.error["name"], "MCPError")
        self.run_ok("wide = [[[]] * 200] * 3; runtime.save_memory('a', wide)")
        self.assertEqual(len(self.host.calls), 1)

    def test_cell_that_arrives_during_a_call_runs_next(self):
        (number,) = self.start_calls(1, "x = await mcp_plain.echo()")
        self.host.send(request(102, "x"))
        self.host.respond(number, text_result("first"))
        self.host.finish()
        self.host.cells = 2
        self.assertEqual(self.host.finish().result, "'first'")

    def test_cell_without_calls_sends_none(self):
        self.run_ok("x = 1")
        self.assertEqual(self.host.calls, [])


class EndTest(BridgeTest):
    """Calls that are open at the end of their cell."""

    def setUp(self):
        super().setUp()
        self.state.call = lambda params: LATER
        self.run_ok("import asyncio, threading, mcp.runtime as runtime; mcp_plain.wait")

    def test_task_left_behind_fails_and_late_response_is_ignored(self):
        self.run_ok("task = asyncio.ensure_future(mcp_plain.wait()); await asyncio.sleep(0)")
        self.host.respond(self.host.calls[-1]["call"], text_result("late"))
        cell = self.run_ok("await asyncio.wait([task]); error = task.exception(); str(error), error.kind, error.may_have_run")
        message, kind, may_have_run = eval(cell.result)
        self.assertIn("the cell ended before", message)
        self.assertEqual((kind, may_have_run, cell.stderr), ("cancelled", True, ""))

    def test_thread_left_behind_fails_immediately(self):
        cell = self.run_ok(
            """
            def call():
                global failure
                try:
                    runtime.call_tool_sync('plain', 'wait')
                except runtime.MCPError as error:
                    failure = error
                    print('failed')
            threads = [threading.Thread(target=call) for _ in range(3)]
            for thread in threads: thread.start()
            while len(runtime._bridge.calls.open) < 3: pass
            """
        )
        # Without any frame from the host; some may have failed before the end of the cell.
        self.host.await_output("failed\n" * (3 - cell.stdout.count("failed")))
        cell = self.run_ok("for thread in threads: thread.join(30)\nstr(failure)")
        self.assertIn("the cell ended before", cell.result)
        self.assertEqual(self.run_ok("runtime.memory_exists('a')").result, "False")

    def test_calls_between_cells_are_refused(self):
        self.run_ok(
            """
            start, ended = threading.Event(), threading.Event()
            def call():
                global failure
                start.wait()
                import time
                while runtime._bridge.kernel.cell_id is not None: time.sleep(0.001)
                try:
                    runtime.memory_exists('a')
                except Exception as error:
                    failure = error
                ended.set()
            threading.Thread(target=call).start()
            """
        )
        self.run_ok("start.set()")
        os.sched_yield()
        select.select([], [], [], 0.1)
        self.assertIn("no cell is running", self.run_ok("ended.wait(30); str(failure)").result)

    def test_frames_between_cells_are_left_to_the_kernel(self):
        """Even if a thread looks for responses all the time."""
        self.run_ok(
            """
            import time
            calls, continues = runtime._bridge.calls, True
            def read():
                while continues: calls.read_frames(), time.sleep(0.0001)
            threading.Thread(target=read).start()
            """
        )
        for n in range(50):
            self.assertEqual(self.run_ok(f"{n} + 1").result, str(n + 1))
        self.run_ok("continues = False")


class TimeoutTest(BridgeTest):
    def test_timeout_is_enforced_by_the_host(self):
        def refuse(params):
            raise Refusal("timeout", "no response in 5 s")

        self.state.call = refuse
        cell = self.run_ok(
            """
            import mcp.runtime as runtime
            try:
                await runtime.call_tool('plain', 'wait', timeout=5)
            except runtime.MCPError as error:
                fields = str(error), error.kind, error.may_have_run
            fields
            """
        )
        self.assertEqual(eval(cell.result), ("no response in 5 s", "timeout", True))
        self.assertEqual(self.host.calls[-1]["params"]["timeout"], 5)
