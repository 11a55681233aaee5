"""Python cells that await, and tasks that they start."""

import textwrap

from kernel_host import WITHOUT_SITE, KernelTest


class AwaitTest(KernelTest):
    def test_top_level_await(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.assertEqual(self.run_ok("x = await f(1)\nx + await f(2)").result, "3")
        cell = self.run_ok(
            """
            import contextlib
            @contextlib.asynccontextmanager
            async def opened():
                yield 'open'
            async def numbers():
                for n in range(3):
                    yield n
            async with opened() as o:
                seen = [n async for n in numbers()]
            async for n in numbers():
                seen.append(n)
            o, seen
            """
        )
        self.assertEqual(cell.result, "('open', [0, 1, 2, 0, 1, 2])")

    def test_all_cells_share_one_loop(self):
        self.run_ok(
            """
            import asyncio
            gate = asyncio.Event()
            async def later():
                await gate.wait()
                return 'late'
            task = asyncio.ensure_future(later()); await asyncio.sleep(0)
            """
        )
        self.assertEqual(self.run_ok("task.done()").result, "False")
        self.assertEqual(self.run_ok("gate.set(); await task").result, "'late'")

    def test_context_variables_persist(self):
        self.run_ok("import asyncio, contextvars; a, b = contextvars.ContextVar('a'), contextvars.ContextVar('b')")
        self.run_ok("x = a.set(1)")
        self.run_ok("x = a.set(a.get() + 1); await asyncio.sleep(0); x = b.set(1)")
        self.assertEqual(self.run_ok("x = b.set(b.get() + 1); a.get(), b.get()").result, "(2, 2)")
        self.assertEqual(self.run_ok("await asyncio.sleep(0); a.get(), b.get()").result, "(2, 2)")
        self.run_error("x = a.set(3); await asyncio.sleep(0); 1 / 0", "ZeroDivisionError")
        self.assertEqual(self.run_ok("a.get()").result, "3")
        self.run_ok("async def other(): a.set(4)")
        self.assertEqual(self.run_ok("await asyncio.gather(other()); a.get()").result, "3")

    def test_asyncio_run_works(self):
        self.run_ok("import asyncio\nasync def f(): return 1")
        self.assertEqual(self.run_ok("asyncio.run(f())").result, "1")
        self.assertEqual(self.run_ok("await f()").result, "1")

    def test_loop_is_restored_after_run_or_close(self):
        self.run_ok("import asyncio, warnings; warnings.simplefilter('error')")
        ways = [
            "asyncio.run(asyncio.sleep(0))",
            "asyncio.set_event_loop(None)",
            "loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); loop.close()",
            "asyncio.get_event_loop().close()",
        ]
        for code in (*ways, *ways):
            with self.subTest(code=code):
                self.run_ok(code)
                self.assertEqual(self.run_ok("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 5))").result, "5")
                self.run_ok("later = asyncio.get_event_loop().create_future(); later.set_result(6)")
                self.assertEqual(self.run_ok("await later").result, "6")

    def test_loop_that_a_cell_has_set_stays(self):
        self.run_ok("import asyncio; loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop)")
        self.assertEqual(self.run_ok("asyncio.get_event_loop() is loop").result, "True")
        self.run_ok("await asyncio.sleep(0)")
        self.run_ok("asyncio.set_event_loop(loop)")
        self.assertEqual(self.run_ok("asyncio.get_event_loop() is loop").result, "True")

    def test_broken_asyncio_does_not_affect_other_cells(self):
        self.run_ok("import asyncio, sys; asyncio.events._event_loop_policy = 1; sys.modules['asyncio'] = None")
        self.run_ok("del sys.modules['asyncio.events']")
        self.assertEqual(self.run_ok("1").result, "1")

    def test_closed_loop_is_replaced(self):
        self.run_ok("import asyncio; await asyncio.sleep(0); loop = asyncio.get_running_loop()")
        self.run_ok("loop.close()")
        self.run_ok("await asyncio.sleep(0)")

    def test_traceback_has_no_frames_of_the_event_loop(self):
        cell = self.run_error("async def f():\n    raise ValueError('x')\nawait f()", "ValueError")
        expected = """\
            Traceback (most recent call last):
              File "<cell 1>", line 3, in <module>
                await f()
              File "<cell 1>", line 2, in f
                raise ValueError('x')
            ValueError: x
            """
        self.assertEqual(cell.traceback, textwrap.dedent(expected))

    def test_forgotten_await_is_added(self):
        self.run_ok("import asyncio, gc\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        for code in ("f(1)", "x = 1\nf(x)", "await f(2)\nf(1)", "(lambda: f(1))()"):
            with self.subTest(code=code):
                cell = self.run_ok(code)
                self.assertEqual((cell.result, cell.stderr), ("1", ""))
        self.assertEqual(self.run_ok("_ + 1").result, "2")
        self.assertIsNone(self.run_ok("f(None)").result)
        self.assertEqual(self.run_ok("x = gc.collect()").stderr, "")
        host = self.new_host(WITHOUT_SITE)
        self.assertEqual(host.run("async def f(): return 1\nf()").result, "1")

    def test_coroutine_that_can_be_awaited_later_is_not_awaited(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.assertRegex(self.run_ok("c = f(1); c").result, "^<coroutine object f at ")
        self.assertEqual(self.run_ok("await c").result, "1")
        self.assertRegex(self.run_ok("[c][0]").result, "^<coroutine object f at ")  # it has ended
        self.assertRegex(self.run_ok("stored = [f(1)]; x = stored[0].send(None); stored[0]").result, "^<coroutine object f at ")
        self.run_ok("stored.pop().close()")

    def test_referenced_coroutine_is_not_awaited(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x")
        self.run_ok("class Job: pass\ndef keep(c): return lambda: c")
        holders = {
            "jobs = {'a': f(1)}": "jobs['a']",
            "jobs = [[f(1)]]": "jobs[0][0]",
            "job = Job(); job.work = f(1)": "job.work",
            "get = keep(f(1))": "get()",
        }
        for code, value in holders.items():
            for show in (value, f"await asyncio.sleep(0); {value}"):
                with self.subTest(code=code, show=show):
                    self.run_ok(code)
                    for _ in range(2):
                        self.assertRegex(self.run_ok(show).result, "^<coroutine object f at ")
                    cell = self.run_ok(f"await {value}")
                    self.assertEqual((cell.result, cell.stderr), ("1", ""))

    def test_forgotten_await_that_fails_has_a_traceback(self):
        cell = self.run_error("async def f():\n    raise ValueError('x')\nf()", "ValueError")
        expected = """\
            Traceback (most recent call last):
              File "<cell 1>", line 2, in f
                raise ValueError('x')
            ValueError: x
            """
        self.assertEqual(cell.traceback, textwrap.dedent(expected))
        cell = self.run_error("import asyncio; asyncio.wait_for(None, 1)", "TypeError")
        self.assertNotIn("run_until_complete", cell.traceback)

    def test_cell_without_await_can_start_tasks(self):
        self.run_ok("import asyncio\ngate = asyncio.Event()\nasync def f(x):\n await gate.wait()\n return x")
        ways = [
            "t = asyncio.create_task(f(1))",
            "from asyncio import ensure_future; t = ensure_future(f(1))",
            "t = ensure_future(f(1)); 5",
            "t = asyncio.get_running_loop().create_task(f(1))",
            "t = [asyncio.create_task(f(n)) for n in range(2)][1]",
            "t = list({asyncio.create_task(f(n)) for n in [1]})[0]",
            "t = dict((n, asyncio.create_task(f(n))) for n in [1])[1]",
            "if True:\n  t = asyncio.create_task(f(1))",
            "import asyncio as aio; t = aio.create_task(f(1))",
            "t = aio.create_task(f(1))",
            "from asyncio import create_task as start; t = start(f(1))",
            "from asyncio import *; t = create_task(f(1))",
            "t = asyncio.get_event_loop().create_task(f(1))",
            "import subprocess as s\ndef g(): s.run('true')\nt = asyncio.create_task(f(1)); x = s.run('true')",
        ]
        for code in ways:
            with self.subTest(code=code):
                self.run_ok(code)
                self.assertEqual(self.run_ok("t.done()").result, "False")
                self.assertEqual(self.run_ok("gate.set(); await t").result, "1")
                self.run_ok("gate.clear()")
        self.assertRegex(self.run_ok("asyncio.create_task(f(1))").result, "^<Task pending")
        self.assertEqual(self.run_error("t = asyncio.create_task(f(1)); 1 / 0", "ZeroDivisionError").traceback.count("File"), 1)

    def test_cell_that_runs_its_own_loop_is_not_changed(self):
        self.run_ok("import asyncio\nasync def f(x):\n await asyncio.create_task(asyncio.sleep(0))\n return x")
        for code in (
            "asyncio.run(f(1))",
            "loop = asyncio.new_event_loop(); t = loop.create_task(f(1)); loop.run_until_complete(t)",
            "class Client:\n  def create_task(self): return asyncio.run(f(1))\nclient = Client()",
            "client.create_task()",
        ):
            with self.subTest(code=code):
                self.assertIn(self.run_ok(code).result, ("1", None))

    def test_cell_that_runs_a_loop_in_functions_is_not_changed(self):
        head = "import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return x\n"
        for code in (
            "from asyncio import create_task\nasync def g(): return await create_task(f(1))\n"
            "def main(): return asyncio.run(g())\nmain()",
            "class Client:\n  def create_task(self): return asyncio.run(f(1))\nClient().create_task()",
            "def create_task(): return asyncio.run(f(1))\ncreate_task()",
            "def main():\n  def inner(): return asyncio.run(f(1))\n  return inner\n"
            "class C: create_task = staticmethod(main())\nC.create_task()",
        ):
            with self.subTest(code=code):
                self.assertEqual(self.new_host().run(head + code).result, "1")
