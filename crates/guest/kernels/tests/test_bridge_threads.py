"""Calls of the Python bridge from threads and forked processes, and interrupts during calls."""

import json
import select

from bridge_host import RESPONSE_BIT, BridgeTest, text_result


class ThreadTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import asyncio, concurrent.futures, threading, mcp.runtime as runtime; mcp_plain.echo")
        self.run_ok("def call(n): return runtime.call_tool_sync('plain', 'echo', {'n': n})")

    def test_threads_call_at_the_same_time(self):
        self.host.start("with concurrent.futures.ThreadPoolExecutor(5) as pool: found = list(pool.map(call, range(5)))\nfound")
        calls = [self.host.next_call() for _ in range(5)]
        for call in reversed(calls):
            self.host.handle_call(call)
        self.assertEqual(eval(self.host.finish().result), [{"n": n} for n in range(5)])

    def test_many_threads_and_the_event_loop_call_together(self):
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

    def test_event_loops_of_threads_can_call(self):
        cell = self.run_ok(
            """
            async def several(first): return await asyncio.gather(*[mcp_plain.echo(n=first + n) for n in range(20)])
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                found = [*pool.map(lambda first: asyncio.run(several(first)), range(0, 80, 20))]
            [item['n'] for part in found for item in part] == list(range(80)), asyncio.run(several(0))[3]
            """
        )
        self.assertEqual(cell.result, "(True, {'n': 3})")

    def test_blocking_call_passes_on_responses_of_other_calls(self):
        """It reads their responses too."""
        self.host.start("task = asyncio.ensure_future(mcp_plain.echo(n=1)); await asyncio.sleep(0); x = call(2); (await task), x")
        first, second = self.host.next_call(), self.host.next_call()
        self.host.handle_call(first)
        self.host.handle_call(second)
        self.assertEqual(self.host.finish().result, "({'n': 1}, {'n': 2})")

    def test_only_the_reader_thread_reads(self):
        """It would sleep forever if another had read its response."""
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
        self.host.handle_call(mine)
        self.host.await_output("mine")
        self.host.handle_call(other)
        self.assertEqual(self.host.finish().result, "({'n': 2}, {'n': 1})")

    def test_another_thread_reads_when_the_reader_is_done(self):
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
            self.host.handle_call(call)
            select.select([], [], [], 0.02)
        self.assertEqual(self.host.finish().result, "[0, 1, 2]")

    def test_forked_child_cannot_call(self):
        cell = self.run_ok(
            """
            import multiprocessing
            def attempt(n):
                try:
                    return call(n)
                except runtime.MCPError as error:
                    return str(error), error.kind
            with multiprocessing.get_context('fork').Pool(1) as pool: results = pool.map(attempt, [1])
            results
            """
        )
        self.assertIn("a forked process cannot make calls", cell.result)
        self.assertEqual(len(self.host.calls), 1)
        self.assertEqual(self.run_ok("call(1)").result, "{'n': 1}")

    def test_forked_child_that_closes_a_call_sends_nothing(self):
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

    def test_interrupts_awaited_calls(self):
        self.interrupt_calls("await asyncio.gather(*[mcp_plain.wait() for _ in range(5)])", 5)

    def test_interrupts_a_blocking_call(self):
        self.interrupt_calls("runtime.call_tool_sync('plain', 'wait')", 1)

    def test_interrupts_a_blocking_call_in_a_coroutine(self):
        self.interrupt_calls("await asyncio.sleep(0); runtime.call_tool_sync('plain', 'wait')", 1)

    def test_response_is_read_completely_before_an_interrupt(self):
        """Otherwise the stream would be out of step."""
        for code in ("await mcp_plain.wait()", "runtime.call_tool_sync('plain', 'wait')"):
            with self.subTest(code=code):
                self.host.start(code)
                number = self.host.next_call()["call"]
                body = (RESPONSE_BIT | number).to_bytes(8, "big") + json.dumps({"result": text_result("x" * 3_000_000)}).encode()
                frame = len(body).to_bytes(4, "big") + body
                self.host.socket.sendall(frame[:2_000_000])
                select.select([], [], [], 0.05)
                self.host.interrupt()
                select.select([], [], [], 0.05)
                self.host.socket.sendall(frame[2_000_000:])
                self.assertEqual(self.host.finish().status, "interrupted")
                self.assertEqual(self.run_ok("await mcp_plain.echo(n=1)").result, "{'n': 1}")

    def test_stream_stays_in_step_after_interrupts_at_any_time(self):
        """Calls run while interrupts arrive; later calls work."""
        for code in ("while True: await mcp_plain.echo(n=1)", "while True: runtime.call_tool_sync('plain', 'echo')"):
            for turn in range(40):
                self.host.start(code)
                for _ in range(1 + turn % 7):
                    self.host.handle_call(self.host.next_call())
                self.host.interrupt()
                self.assertEqual(self.host.finish().status, "interrupted")
            self.assertEqual(self.run_ok("await mcp_plain.echo(n=2)").result, "{'n': 2}")

    def test_thread_reads_after_the_main_thread_was_interrupted(self):
        self.host.start(
            """
            thread = threading.Thread(target=lambda: found.append(runtime.call_tool_sync('plain', 'wait')))
            found = []
            try:
                timer = threading.Timer(0.05, thread.start); timer.start()
                runtime.call_tool_sync('plain', 'echo')
            except KeyboardInterrupt:
                thread.join()
            found
            """
        )
        _, waiting = self.host.next_call(), self.host.next_call()
        self.host.interrupt()
        select.select([], [], [], 0.1)
        self.host.respond(waiting["call"], text_result("found"))
        self.assertEqual(self.host.finish().result, "['found']")
