"""Tests of calls to the host: at once, from threads, interrupted, cancelled, answered late or with nonsense."""

import json
import os
import select

from bridge_host import ANSWER, LATER, BridgeTest, Refusal, text_result
from kernel_host import request

GATHER = "import asyncio; await asyncio.gather(*[mcp_plain.echo(n=n) for n in range(%d)])"


class CallTest(BridgeTest):
    def start_calls(self, count, code=None):
        """Runs a cell up to its calls, none of which is answered: their numbers."""
        self.host.start(code or GATHER % count)
        frames = []
        while len(frames) < count:
            call = self.host.next_call()
            if call["method"] == "tools/call":
                frames.append(call)
            else:
                self.host.respond(call)
        return [frame["call"] for frame in frames]

    def test_a_gather_has_all_its_calls_open_at_once(self):
        numbers = self.start_calls(5)
        for number in reversed(numbers):
            self.host.answer(number, text_result(f"answer {number}"))
        cell = self.host.finish()
        self.assertEqual(eval(cell.result), [f"answer {number}" for number in numbers])

    def test_the_frame_of_a_call(self):
        self.run_ok("await mcp_plain.echo(n='ü')")
        listing, call = self.host.calls
        self.assertEqual((listing["method"], listing["params"]), ("tools/list", {"server": "plain"}))
        params = {"server": "plain", "tool": "echo", "arguments": {"n": "ü"}}
        self.assertEqual(call, {"type": "call", "id": 101, "call": 2, "method": "tools/call", "params": params})

    def test_numbers_grow_over_cells_and_threads(self):
        self.run_ok("import concurrent.futures, mcp.runtime as runtime")
        self.run_ok("with concurrent.futures.ThreadPoolExecutor(8) as pool: list(pool.map(runtime.memory_exists, 'a' * 50))")
        self.run_ok(GATHER % 5)
        numbers = [call["call"] for call in self.host.calls]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_no_more_than_256_are_open_and_the_rest_follow(self):
        self.run_ok("mcp_plain.echo")
        numbers = self.start_calls(256, GATHER % 1000)
        self.assertEqual(select.select([self.host.socket], [], [], 0.05)[0], [])
        self.host.answer(numbers[0], text_result("first"))
        self.assertEqual(self.host.next_call()["params"]["arguments"], {"n": 256})
        for call in self.host.calls[-256:]:
            self.host.respond(call)
        cell = self.host.finish()
        self.assertEqual((cell.status, eval(cell.result)[1:]), ("ok", [{"n": n} for n in range(1, 1000)]))

    def test_large_results_arrive_whole(self):
        self.run_ok("mcp_plain.echo")
        for size in (100_000, 50_000_000):
            with self.subTest(size=size):
                self.world.call = lambda params: text_result("x" * size)
                code = "text = await mcp_plain.echo(); len(text), set(text)"
                self.assertEqual(self.value(code), (size, {"x"}))

    def test_an_answer_over_the_limit_harms_nothing(self):
        (number,) = self.start_calls(1, "await mcp_plain.echo()")
        size = (72 << 20) + 1
        self.host.send((ANSWER | number).to_bytes(8, "big").ljust(size))
        self.host.answer(number, text_result("small"))
        self.assertEqual(self.host.finish().result, "'small'")

    def test_much_output_between_calls(self):
        cell = self.run_ok("a = await mcp_plain.echo(n=1); print('x' * 100_000); b = await mcp_plain.echo(n=2); a, b")
        self.assertEqual((cell.result, len(cell.stdout)), ("({'n': 1}, {'n': 2})", 100_001))

    def test_a_call_that_is_not_waited_for_is_cancelled(self):
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
        self.world.call = lambda params: LATER if params["tool"] == "wait" else text_result("done")
        cell = self.host.finish()
        self.assertEqual((cell.result, cell.stdout, self.host.cancelled), ("'done'", "late\n", [2]))

    def test_a_failure_in_a_task_group_cancels_the_others(self):
        def answer(params):
            if params["tool"] == "echo":
                raise Refusal("upstream", "broken", code=-32000, data={"a": 1})
            return LATER

        self.world.call = answer
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

    def test_answers_that_nobody_waits_for_are_dropped(self):
        self.host.start("await mcp_plain.echo()")
        self.host.respond(self.host.next_call())
        number = self.host.next_call()["call"]
        for strange in (0, number + 1, 1, (1 << 62) - 1):
            self.host.answer(strange, text_result("forged"))
        self.host.answer(number, text_result("true"))
        self.host.answer(number, text_result("twice"))
        self.assertEqual(self.host.finish().result, "'true'")
        self.host.answer(number, text_result("again"))
        self.assertEqual(self.run_ok("await mcp_plain.echo(n=1)").result, "{'n': 1}")

    def test_an_answer_that_is_no_json(self):
        (number,) = self.start_calls(1, "await mcp_plain.echo()")
        self.host.send((ANSWER | number).to_bytes(8, "big") + b"{")
        self.assertIn("cannot be parsed", self.host.finish().error["message"])

    def test_what_the_host_could_not_read_is_not_sent(self):
        self.run_ok("import datetime, mcp.runtime as runtime; deep = []\nfor _ in range(200): deep = [deep]")
        self.host.calls.clear()
        for code in ("float('nan')", "'\\ud800'", "datetime.date(2020, 1, 1)", "deep", "[deep] * 3", "'x' * (8 << 20)"):
            with self.subTest(code=code):
                cell = self.run_cell(f"runtime.save_memory('a', {code})")
                self.assertEqual(cell.error["name"], "MCPError")
        self.run_ok("wide = [[[]] * 200] * 3; runtime.save_memory('a', wide)")
        self.assertEqual(len(self.host.calls), 1)

    def test_a_cell_that_came_early_is_run_next(self):
        (number,) = self.start_calls(1, "x = await mcp_plain.echo()")
        self.host.send(request(102, "x"))
        self.host.answer(number, text_result("first"))
        self.host.finish()
        self.host.cells = 2
        self.assertEqual(self.host.finish().result, "'first'")

    def test_a_plain_cell_says_nothing_of_calls(self):
        self.run_ok("x = 1")
        self.assertEqual(self.host.calls, [])


class EndTest(BridgeTest):
    """What a cell leaves open at its end."""

    def setUp(self):
        super().setUp()
        self.world.call = lambda params: LATER
        self.run_ok("import asyncio, threading, mcp.runtime as runtime; mcp_plain.wait")

    def test_a_task_left_behind_fails_and_a_late_answer_is_ignored(self):
        self.run_ok("task = asyncio.ensure_future(mcp_plain.wait()); await asyncio.sleep(0)")
        self.host.answer(self.host.calls[-1]["call"], text_result("late"))
        cell = self.run_ok("await asyncio.wait([task]); error = task.exception(); str(error), error.kind, error.may_have_run")
        message, kind, may_have_run = eval(cell.result)
        self.assertIn("the cell ended before", message)
        self.assertEqual((kind, may_have_run, cell.stderr), ("cancelled", True, ""))

    def test_a_thread_left_behind_fails_at_once(self):
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
        # Before anything else comes from the host; some may have been in time for the cell's own output.
        self.host.await_output("failed\n" * (3 - cell.stdout.count("failed")))
        cell = self.run_ok("for thread in threads: thread.join(30)\nstr(failure)")
        self.assertIn("the cell ended before", cell.result)
        self.assertEqual(self.run_ok("runtime.memory_exists('a')").result, "False")

    def test_nobody_calls_between_cells(self):
        self.run_ok(
            """
            go, gone = threading.Event(), threading.Event()
            def call():
                global failure
                go.wait()
                import time
                while runtime._bridge.kernel.cell_id is not None: time.sleep(0.001)
                try:
                    runtime.memory_exists('a')
                except Exception as error:
                    failure = error
                gone.set()
            threading.Thread(target=call).start()
            """
        )
        self.run_ok("go.set()")
        os.sched_yield()
        select.select([], [], [], 0.1)
        self.assertIn("no cell is running", self.run_ok("gone.wait(30); str(failure)").result)


    def test_what_comes_between_cells_is_the_kernels(self):
        """However often somebody looks for answers."""
        self.run_ok(
            """
            import time
            calls, goes_on = runtime._bridge.calls, True
            def look():
                while goes_on: calls.read_frames(), time.sleep(0.0001)
            threading.Thread(target=look).start()
            """
        )
        for n in range(50):
            self.assertEqual(self.run_ok(f"{n} + 1").result, str(n + 1))
        self.run_ok("goes_on = False")


class ThreadTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import asyncio, concurrent.futures, threading, mcp.runtime as runtime; mcp_plain.echo")
        self.run_ok("def call(n): return runtime.call_tool_sync('plain', 'echo', {'n': n})")

    def test_threads_call_at_once(self):
        self.host.start("with concurrent.futures.ThreadPoolExecutor(5) as pool: found = list(pool.map(call, range(5)))\nfound")
        calls = [self.host.next_call() for _ in range(5)]
        for call in reversed(calls):
            self.host.respond(call)
        self.assertEqual(eval(self.host.finish().result), [{"n": n} for n in range(5)])

    def test_many_threads_and_the_event_loop_together(self):
        cell = self.run_ok(
            """
            async def both():
                threads = [asyncio.to_thread(call, n) for n in range(100)]
                tasks = [mcp_plain.echo(n=n) for n in range(100, 200)]
                return await asyncio.gather(*threads, *tasks)
            found = await both()
            [item['n'] for item in found] == list(range(200))
            """
        )
        self.assertEqual(cell.result, "True")

    def test_event_loops_of_threads(self):
        cell = self.run_ok(
            """
            async def several(first): return await asyncio.gather(*[mcp_plain.echo(n=first + n) for n in range(20)])
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                found = [*pool.map(lambda first: asyncio.run(several(first)), range(0, 80, 20))]
            [item['n'] for part in found for item in part] == list(range(80)), asyncio.run(several(0))[3]
            """
        )
        self.assertEqual(cell.result, "(True, {'n': 3})")

    def test_a_blocking_call_while_others_are_open(self):
        """It reads their answers, too, and hands them on."""
        self.host.start("task = asyncio.ensure_future(mcp_plain.echo(n=1)); await asyncio.sleep(0); x = call(2); (await task), x")
        first, second = self.host.next_call(), self.host.next_call()
        self.host.respond(first)
        self.host.respond(second)
        self.assertEqual(self.host.finish().result, "({'n': 1}, {'n': 2})")

    def test_the_one_that_leads_is_the_only_one_that_reads(self):
        """Or it might go to sleep when another has just taken its answer."""
        self.host.start(
            """
            import time
            calls = runtime._bridge.calls
            wait_for_frames = calls.wait_for_frames
            calls.wait_for_frames = lambda: (time.sleep(0.1), wait_for_frames())
            async def wait(): return await mcp_plain.wait(n=1)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                other = pool.submit(lambda: asyncio.run(wait()))
                while not calls.open: pass
                mine = call(2)
                print('mine')
            mine, other.result()
            """
        )
        other, mine = self.host.next_call(), self.host.next_call()
        self.host.respond(mine)
        self.host.await_output("mine")
        self.host.respond(other)
        self.assertEqual(self.host.finish().result, "({'n': 2}, {'n': 1})")

    def test_a_thread_waits_on_after_the_one_that_read_has_its_answer(self):
        self.host.start(
            """
            threads = [threading.Thread(target=lambda n=n: found.append(call(n))) for n in range(3)]
            found = []
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            sorted(item['n'] for item in found)
            """
        )
        for call in [self.host.next_call() for _ in range(3)]:
            self.host.respond(call)
            select.select([], [], [], 0.02)
        self.assertEqual(self.host.finish().result, "[0, 1, 2]")

    def test_a_forked_child_cannot_call(self):
        cell = self.run_ok(
            """
            import multiprocessing
            def attempt(n):
                try:
                    return call(n)
                except runtime.MCPError as error:
                    return str(error), error.kind
            with multiprocessing.get_context('fork').Pool(1) as pool: said = pool.map(attempt, [1])
            said
            """
        )
        self.assertIn("a forked process cannot make calls", cell.result)
        self.assertEqual(len(self.host.calls), 1)
        self.assertEqual(self.run_ok("call(1)").result, "{'n': 1}")

    def test_a_child_that_lets_go_of_a_call_is_silent(self):
        cell = self.run_ok(
            """
            import os
            task = asyncio.ensure_future(mcp_plain.echo(n=1)); await asyncio.sleep(0)
            pid = os.fork()
            if pid == 0:
                task.get_coro().close()
                os._exit(7)
            os.waitpid(pid, 0)[1] >> 8, await task
            """
        )
        self.assertEqual((cell.result, self.host.cancelled), ("(7, {'n': 1})", []))


class InterruptTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import asyncio, threading, mcp.runtime as runtime; mcp_plain.wait")

    def interrupt_calls(self, code, count):
        self.host.start(code)
        calls = [self.host.next_call()["call"] for _ in range(count)]
        self.host.interrupt()
        cell = self.host.finish()
        self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
        self.assertEqual(cell.stderr, "")
        self.assertEqual(sorted(self.host.cancelled), calls)
        self.assertEqual(self.run_ok("await mcp_plain.echo(n=1)").result, "{'n': 1}")

    def test_in_awaited_calls(self):
        self.interrupt_calls("await asyncio.gather(*[mcp_plain.wait() for _ in range(5)])", 5)

    def test_in_a_blocking_call(self):
        self.interrupt_calls("runtime.call_tool_sync('plain', 'wait')", 1)

    def test_in_a_blocking_call_of_a_coroutine(self):
        self.interrupt_calls("await asyncio.sleep(0); runtime.call_tool_sync('plain', 'wait')", 1)

    def test_in_the_middle_of_an_answer(self):
        """It is read whole first, and the stream stays in step."""
        for code in ("await mcp_plain.wait()", "runtime.call_tool_sync('plain', 'wait')"):
            with self.subTest(code=code):
                self.host.start(code)
                number = self.host.next_call()["call"]
                body = (ANSWER | number).to_bytes(8, "big") + json.dumps({"result": text_result("x" * 3_000_000)}).encode()
                frame = len(body).to_bytes(4, "big") + body
                self.host.socket.sendall(frame[:2_000_000])
                select.select([], [], [], 0.05)
                self.host.interrupt()
                select.select([], [], [], 0.05)
                self.host.socket.sendall(frame[2_000_000:])
                self.assertEqual(self.host.finish().status, "interrupted")
                self.assertEqual(self.run_ok("await mcp_plain.echo(n=1)").result, "{'n': 1}")

    def test_at_any_moment(self):
        """Calls go to and fro while interrupts strike; what comes after is always in step."""
        for code in ("while True: await mcp_plain.echo(n=1)", "while True: runtime.call_tool_sync('plain', 'echo')"):
            for turn in range(40):
                self.host.start(code)
                for _ in range(1 + turn % 7):
                    self.host.respond(self.host.next_call())
                self.host.interrupt()
                self.assertEqual(self.host.finish().status, "interrupted")
            self.assertEqual(self.run_ok("await mcp_plain.echo(n=2)").result, "{'n': 2}")

    def test_a_thread_leads_on_after_the_main_thread_was_interrupted(self):
        self.host.start(
            """
            thread = threading.Thread(target=lambda: found.append(runtime.call_tool_sync('plain', 'wait')))
            found = []
            try:
                lead = threading.Timer(0.05, thread.start); lead.start()
                runtime.call_tool_sync('plain', 'echo')
            except KeyboardInterrupt:
                thread.join()
            found
            """
        )
        _, waiting = self.host.next_call(), self.host.next_call()
        self.host.interrupt()
        select.select([], [], [], 0.1)
        self.host.answer(waiting["call"], text_result("found"))
        self.assertEqual(self.host.finish().result, "['found']")


class LateAwaitTest(BridgeTest):
    def test_deadlines_are_the_hosts(self):
        def refuse(params):
            raise Refusal("timeout", "no answer in 5 s")

        self.world.call = refuse
        cell = self.run_ok(
            """
            import mcp.runtime as runtime
            try:
                await runtime.call_tool('plain', 'wait', timeout=5)
            except runtime.MCPError as error:
                said = str(error), error.kind, error.may_have_run
            said
            """
        )
        self.assertEqual(eval(cell.result), ("no answer in 5 s", "timeout", True))
        self.assertEqual(self.host.calls[-1]["params"]["timeout"], 5)
