"""Background tasks of the Python kernel: they go on between cells and end no cell."""

import time

from bridge_host import LATER, BridgeTest
from kernel_host import KernelTest

TICK = """
import asyncio
ticks = 0
async def tick():
    global ticks
    while True:
        ticks += 1
        print('tick', ticks)
        await asyncio.sleep(0.005)
ticker = asyncio.create_task(tick())
"""


class BackgroundTest(KernelTest):
    def test_tasks_go_on_between_cells(self):
        self.run_ok(TICK)
        self.host.await_output("tick 20\n")
        self.assertEqual(self.run_ok("ticker.done()").result, "False")
        self.host.await_output("tick 40\n")
        self.run_ok("ticker.cancel()")

    def test_tasks_go_on_while_a_later_cell_awaits(self):
        self.run_ok(TICK)
        self.assertEqual(self.run_ok("start = ticks\nwhile ticks < start + 5: await asyncio.sleep(0.001)\n5").result, "5")

    def test_callbacks_and_servers_go_on_between_cells(self):
        self.run_ok("import asyncio\nasync def later(): asyncio.get_running_loop().call_later(0.01, print, 'called')\nawait later()")
        self.host.await_output("called\n")
        self.run_ok("import asyncio, tempfile\npath = tempfile.mktemp()\nasync def greet(_, writer):\n  print('greeted'); writer.close()")
        self.run_ok("server = await asyncio.start_unix_server(greet, path)")
        self.run_ok("import subprocess, sys")
        connect = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
        self.run_ok(f"client = subprocess.Popen([sys.executable, '-c', {connect!r}, path])")
        self.host.await_output("greeted\n")
        self.assertEqual(self.run_ok("client.wait()").result, "0")

    def test_waiting_tasks_use_no_processor_time(self):
        self.run_ok("import asyncio; task = asyncio.create_task(asyncio.Event().wait())")
        self.run_ok("1")
        before = self.context_switches()
        time.sleep(0.15)
        self.assertLessEqual(self.context_switches() - before, 3)  # to begin to wait
        self.assertEqual(self.run_ok("task.done()").result, "False")

    def context_switches(self):
        with open(f"/proc/{self.host.process.pid}/status") as status:
            return sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)

    def test_interrupt_of_a_cell_does_not_end_tasks(self):
        self.run_ok(TICK.replace("print('tick', ticks)", "sum(range(100_000))"))  # most of the time, a task runs
        for _ in range(20):
            self.host.start("print('go'); await asyncio.sleep(1000)")
            self.host.await_output("go")
            self.host.interrupt()
            cell = self.host.finish()
            self.assertEqual((cell.status, cell.stderr), ("interrupted", ""))
        self.assertEqual(self.run_ok("ticker.done()").result, "False")

    def test_task_that_blocks_the_loop_can_be_interrupted(self):
        self.run_ok("import asyncio, time\nasync def block(f):\n  await asyncio.sleep(0.01)\n  print('blocked')\n  f()")
        self.run_ok("def spin():\n  while True: pass\nticker = asyncio.create_task(asyncio.sleep(1000))")
        for block in ("lambda: time.sleep(1000)", "spin"):
            with self.subTest(block=block):
                self.run_ok(f"task = asyncio.create_task(block({block}))")
                self.host.await_output("blocked\n")
                self.host.start("ran = True")
                self.host.interrupt()
                cell = self.host.finish()
                self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
                self.assertIn("a background task blocked the event loop, so this code did not run; hint: ", cell.error["message"])
                self.assertIn("in block\n", cell.error["traceback"])
                self.assertNotIn("/kernel", cell.error["traceback"])
                self.assertEqual(self.run_ok("'ran' in globals(), task.done(), ticker.done()").result, "(False, True, False)")

    def test_callback_that_blocks_the_loop_can_be_interrupted(self):
        self.run_ok("import asyncio, time\nasync def later(f, x): asyncio.get_running_loop().call_later(0.01, f, x)")
        self.run_ok("def block(x): print('blocked'); time.sleep(x)")
        self.run_ok("await later(block, 1000)")
        self.host.await_output("blocked\n")
        self.host.start("ran = True")
        self.host.interrupt()
        self.assertEqual(self.host.finish().status, "interrupted")
        self.assertEqual(self.run_ok("'ran' in globals()").result, "False")

    def test_interrupt_between_cells_is_ignored(self):
        self.run_ok(TICK)
        self.host.await_output("tick 3\n")
        self.host.interrupt()
        self.host.await_output("tick 60\n")
        self.assertEqual(self.run_ok("ticker.done()").result, "False")

    def test_task_that_exits_or_fails_does_not_end_the_kernel(self):
        self.run_ok(TICK)
        self.run_ok("import sys\nasync def leave(how):\n  await asyncio.sleep(0.005)\n  print('leaves')\n  how()")
        for how in ("sys.exit", "lambda: 1 / 0", "asyncio.get_running_loop().stop"):
            with self.subTest(how=how):
                self.run_ok(f"task = asyncio.create_task(leave({how}))")
                self.host.await_output("leaves\n")
                self.host.await_output("tick ")
                self.assertEqual(self.run_ok("ticker.done()").result, "False")
        self.run_ok("async def forever():\n  while True:\n    asyncio.get_running_loop().stop(); await asyncio.sleep(0)")
        self.run_ok("task = asyncio.create_task(forever())")
        self.run_ok("1")

    def test_forked_child_does_not_run_tasks(self):
        self.run_ok(TICK.replace("'tick'", "os.getpid(), 'tick'").replace("import asyncio", "import asyncio, os"))
        fork = "async def fork():\n  await asyncio.sleep(0.005)\n  if os.fork() == 0: print('child')\n  else: print('parent')"
        self.run_ok(f"{fork}\ntask = asyncio.create_task(fork())")
        self.host.await_output("child\n")
        self.host.await_output("parent\n")
        self.assertRegex(self.run_ok("os.waitpid(-1, 0)").result, r"^\(\d+, 0\)$")
        seen = self.run_ok("await asyncio.sleep(0.02)").stdout
        self.assertEqual({line.split()[0] for line in seen.splitlines() if "tick" in line}, {str(self.host.process.pid)})

    def test_streams_that_a_task_closes_are_restored(self):
        self.run_ok("import asyncio, os\nasync def close():\n  await asyncio.sleep(0.005)\n  print('closes'); os.close(1); os.close(2)")
        self.run_ok("task = asyncio.create_task(close())")
        self.host.await_output("closes\n")
        self.assertTrue(self.run_ok("print('seen')").stdout.endswith("seen\n"))

    def test_kernel_ends_with_its_host(self):
        self.run_ok(TICK)
        self.host.socket.close()
        self.assertEqual(self.host.process.wait(60), 0)

    def test_broken_loop_does_not_affect_other_cells(self):
        self.run_ok("import asyncio; task = asyncio.create_task(asyncio.sleep(1000))")
        self.run_ok("loop = asyncio.get_event_loop(); loop.run_forever = None; loop._selector = None")
        self.assertEqual(self.run_ok("1 + 1").result, "2")


class BridgeBackgroundTest(BridgeTest):
    def test_call_of_a_task_that_outlives_its_cell_fails_and_the_task_goes_on(self):
        self.run_ok("import asyncio, mcp.runtime; mcp_plain.wait")
        self.state.call = lambda params: LATER
        self.run_ok(
            """
            async def call():
                global kind
                try:
                    await mcp_plain.wait()
                except mcp.runtime.MCPError as error:
                    kind = error.kind
                    await asyncio.sleep(0.01)
                    print('goes on', flush=True)
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            """
        )
        self.host.await_output("goes on\n")
        self.assertEqual(self.run_ok("kind, task.done()").result, "('cancelled', True)")
