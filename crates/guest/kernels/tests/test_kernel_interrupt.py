"""Interrupts of Python cells."""

import select
import textwrap

from kernel_host import TIMEOUT_S, KernelTest


class InterruptTest(KernelTest):
    def interrupt(self, code):
        """Runs a cell and interrupts it when it prints `go`."""
        self.host.start(code)
        self.host.await_output("go")
        self.host.interrupt()
        return self.host.finish()

    def assert_interrupted(self, code):
        cell = self.interrupt(f"before = 1; print('go')\n{textwrap.dedent(code)}")
        self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
        self.assertEqual(self.run_ok("before").result, "1")
        return cell

    def test_interrupts_sleep(self):
        cell = self.assert_interrupted("import time\ntime.sleep(1000)")
        frames = r"^Traceback.*\n  File \"<cell 1>\", line \d.*\n.*\nKeyboardInterrupt\n$"
        self.assertRegex(cell.traceback, frames)

    def test_interrupts_a_busy_loop(self):
        self.assert_interrupted("while True: pass")

    def test_interrupts_a_subprocess(self):
        self.assert_interrupted("import subprocess\nsubprocess.run(['sleep', '1000'])")

    def test_interrupts_an_await(self):
        self.run_ok("import asyncio; cleaned = []")
        cell = self.interrupt(
            """
            asyncio.get_running_loop().call_later(0.01, print, 'go')  # from within the await
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cleaned.append(1)
                raise
            """
        )
        self.assertEqual((cell.status, cell.error["name"]), ("interrupted", "KeyboardInterrupt"))
        self.assertEqual(cell.stderr, "")
        self.assertIn('File "<cell 2>", line 4', cell.error["traceback"])
        self.assertNotIn("kernel.py", cell.error["traceback"])
        self.assertEqual(self.run_ok("cleaned").result, "[1]")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

    def test_interrupts_a_forgotten_await(self):
        self.run_ok("import asyncio\nasync def f():\n  print('go')\n  await asyncio.sleep(1000)")
        self.run_ok("async def spin():\n  print('go')\n  while True: pass")
        for code in ("f()", "spin()"):
            with self.subTest(code=code):
                cell = self.interrupt(code)
                self.assertEqual((cell.status, cell.error["name"], cell.stderr), ("interrupted", "KeyboardInterrupt", ""))
                self.assertNotIn("kernel.py", cell.error["traceback"])

    def test_interrupts_a_cell_that_starts_tasks(self):
        self.run_ok("import asyncio, time")
        cell = self.interrupt("t = asyncio.create_task(asyncio.sleep(0)); print('go'); time.sleep(1000)")
        self.assertEqual((cell.status, cell.stderr), ("interrupted", ""))
        self.assertEqual(self.run_ok("await t").stderr, "")

    def test_interrupts_a_busy_coroutine(self):
        self.run_ok("import asyncio, gc")
        self.assert_interrupted("await asyncio.sleep(0)\nwhile True: pass")
        self.assertEqual(self.run_ok("await asyncio.sleep(0); gc.collect(); None").stderr, "")

    def test_interrupts_the_event_loop(self):
        self.run_ok("import asyncio")
        for _ in range(100):  # the cell spends most of its time there
            cell = self.interrupt("print('go')\nwhile True: await asyncio.sleep(0)")
            self.assertEqual(cell.status, "interrupted")

    def test_interrupts_the_event_loop_before_it_resumes_the_cell(self):
        self.run_ok("import asyncio, os, signal")
        cell = self.run_cell(
            """
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(0)
            while True: pass
            """
        )
        self.assertEqual(cell.status, "interrupted")

    def test_interrupts_a_busy_background_task(self):
        self.run_ok("import asyncio\nasync def spin():\n  print('go')\n  while True: pass")
        self.run_ok("cleaned = []")
        cell = self.interrupt(
            """
            task = asyncio.create_task(spin())
            try:
                await asyncio.sleep(1000)
            finally:
                cleaned.append(1)
            """
        )
        self.assertEqual(cell.status, "interrupted")
        self.assertEqual(self.run_ok("cleaned").result, "[1]")
        self.assertEqual(self.run_ok("await asyncio.sleep(0, 5)").result, "5")

    def test_cell_interrupted_at_its_start_does_not_run_later(self):
        self.run_ok(
            """
            import _signal, asyncio, os, signal
            wake = _signal.set_wakeup_fd
            def interrupt(*args, **kwargs):
                _signal.set_wakeup_fd = wake
                os.kill(os.getpid(), signal.SIGINT)
                return wake(*args, **kwargs)
            _signal.set_wakeup_fd = interrupt
            """
        )
        self.assertEqual(self.run_cell("ran = True\nawait asyncio.sleep(0)").status, "interrupted")
        self.assertEqual(self.run_ok("await asyncio.sleep(0.02)\n'ran' in globals()").result, "False")

    def test_closed_wakeup_descriptor_does_not_matter(self):
        self.run_ok("import asyncio, signal\nother = asyncio.new_event_loop()")
        self.run_ok("other.add_signal_handler(signal.SIGUSR2, print)")
        self.assertEqual(self.run_ok("other.close()\nawait asyncio.sleep(0)\n5").result, "5")

    def test_second_interrupt_ends_a_cell_that_catches_the_first(self):
        cell = """
            import time
            try:
                print('go'); time.sleep(1000)
            except KeyboardInterrupt:
                print('caught'); time.sleep(1000)
            """
        self.host.start(cell)
        for mark in ("go", "caught"):
            self.host.await_output(mark)
            self.host.interrupt()
        self.assertEqual(self.host.finish().status, "interrupted")

    def test_second_interrupt_ends_an_await_that_catches_the_first(self):
        cell = """
            import asyncio
            try:
                print('go'); await asyncio.sleep(1000)
            except BaseException:
                print('caught'); await asyncio.sleep(1000)
            """
        self.host.start(cell)
        for mark in ("go", "caught"):
            self.host.await_output(mark)
            self.host.interrupt()
        self.assertEqual(self.host.finish().status, "interrupted")

    def test_output_is_flushed_even_if_the_interrupt_is_caught(self):
        code = """
            import sys, time
            while True:
                try:
                    print('step 1... ', end='', file=sys.{}); print('go', file=sys.{})
                    while True: time.sleep(1)
                except KeyboardInterrupt:
                    pass
            """
        for names in (("stdout", "stderr"), ("stderr", "stdout")):
            with self.subTest(names=names):
                host = self.new_host()
                host.start(code.format(*names))
                buffered, other = (host.out, host.err) if names[0] == "stdout" else (host.err, host.out)
                host.await_output("go", other)
                self.assertEqual(host.text(buffered), "")
                host.interrupt()
                host.await_output("step 1... ", buffered)

    def test_interrupts_a_repr(self):
        self.run_ok("class Slow:\n def __repr__(self):\n  print('go')\n  while True: pass")
        self.assertEqual(self.interrupt("Slow()").status, "interrupted")

    def test_interrupts_a_finalizer(self):
        self.run_ok("class Slow:\n def __del__(self):\n  print('go')\n  while True: pass")
        cell = self.interrupt("x = Slow(); del x")
        self.assertIn("KeyboardInterrupt", cell.stderr)
        self.assertRegex(cell.stderr, 'File "<cell 1>", line [34], in __del__')
        self.assertNotIn("kernel", cell.stderr)

    def test_interrupts_the_text_of_an_error(self):
        self.run_ok("class Slow(Exception):\n def __str__(self):\n  print('go')\n  while True: pass")
        self.assertEqual(self.interrupt("raise Slow").status, "interrupted")
        self.run_ok("1")

    def test_interrupt_between_cells_is_ignored(self):
        self.run_ok("x = 1")
        for _ in range(3):
            self.host.interrupt()
            self.assertEqual(self.run_ok("x").result, "1")

    def test_handler_of_the_guest_lasts_for_its_cell(self):
        self.run_ok("import signal; _ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
        self.assert_interrupted("while True: pass")

    def test_frame_is_sent_completely_before_an_interrupt(self):
        self.run_ok("class Big:\n def _repr_html_(self): return 'x' * 8_000_000")
        self.host.start("display(Big())\nwhile True: pass")
        select.select([self.host.socket], [], [], TIMEOUT_S)  # the frame has started and waits for a reader
        self.host.interrupt()
        cell = self.host.finish()
        self.assertEqual((cell.status, len(cell.shown[0]["data"])), ("interrupted", 8_000_000))
        self.run_ok("1")
