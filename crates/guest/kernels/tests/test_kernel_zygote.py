"""Python kernels that are forked from one zygote."""

import json
import os
import signal
import socket
import subprocess
import sys
import unittest

from kernel_host import KERNEL, TIMEOUT_S, needs, request

ZYGOTE = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(KERNEL)!r})
import kernel, kernel_fork
del sys.path[0], sys.modules["kernel"]
missing = kernel_fork.warm_up({{preload!r}})
assert missing == ["no_such_module"], missing
{{setup}}
fork = os.fork
for fd in map(int, sys.argv[1:]):
    if fork() == 0:
        kernel.serve(fd)
        print("serve returned")
        os._exit(1)
os.wait()
"""


class ZygoteTest(unittest.TestCase):
    def run_in_siblings(self, preload, code, setup=""):
        script = ZYGOTE.format(preload=["no_such_module", *preload], setup=setup)
        pairs = [socket.socketpair() for _ in range(2)]
        fds = [guest.fileno() for _, guest in pairs]
        zygote = subprocess.Popen(
            [sys.executable, "-I", "-c", script, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        self.addCleanup(zygote.wait, TIMEOUT_S)
        self.addCleanup(os.killpg, zygote.pid, signal.SIGKILL)
        results = []
        for host, guest in pairs:
            guest.close()
            host.settimeout(TIMEOUT_S)
            self.addCleanup(host.close)
            stream = host.makefile("rwb")
            self.addCleanup(stream.close)
            body = request(1, code)
            stream.write(len(body).to_bytes(4, "big") + body)
            stream.flush()
            frames = [json.loads(stream.read(int.from_bytes(stream.read(4), "big"))) for _ in range(2)]
            self.assertEqual([frame["type"] for frame in frames], ["ready", "done"])
            self.assertEqual(frames[1]["status"], "ok", frames[1]["error"])
            results.append(frames[1]["result"])
        return results

    # A fork in C does not run Python's own handlers, which would hide a missing reseed here.
    SAME_SEED = "import random; os.register_at_fork(after_in_child=lambda: random.seed(1))"

    def assert_siblings_differ(self, preload, code, setup=""):
        first, second = self.run_in_siblings(preload, code, setup)
        self.assertNotEqual(first, second)

    def test_random_is_reseeded(self):
        self.assert_siblings_differ(["random"], "import random; random.random()", self.SAME_SEED)

    def test_names_of_temporary_files_differ(self):
        # In separate PID namespaces siblings have the same pid, by which tempfile detects a fork.
        setup = "import tempfile; os.getpid = lambda: 1; next(tempfile._get_candidate_names())"
        code = "import tempfile; next(tempfile._get_candidate_names())"
        self.assert_siblings_differ(["tempfile"], code, setup)

    def test_uuid_state_is_reset(self):
        setup = "import uuid; uuid._node = uuid._last_timestamp = 1 << 62"
        results = self.run_in_siblings(["uuid"], "import uuid; (uuid._node, uuid._last_timestamp)", setup)
        self.assertEqual(results, ["(None, None)"] * 2)

    def test_authkey_of_multiprocessing_differs(self):
        code = "import multiprocessing as mp; bytes(mp.current_process().authkey)"
        self.assert_siblings_differ(["multiprocessing"], code)

    def test_openssl_gets_entropy(self):
        setup = "import ssl; ssl.RAND_add = lambda data, entropy: setattr(ssl, 'added', data)"
        self.assert_siblings_differ(["ssl"], "import ssl; ssl.added", setup)

    def test_openssl_random_bytes_differ(self):
        code = "import ssl; (ssl.RAND_bytes(16), ssl.RAND_bytes(16))"
        self.assert_siblings_differ(["ssl"], code, "import ssl; ssl.RAND_bytes(16)")

    @needs("numpy")
    def test_numpy_random_is_reseeded(self):
        code = "import numpy; numpy.random.random()"
        self.assert_siblings_differ(["numpy"], code, "import numpy; numpy.random.seed(1)")

    @needs("matplotlib")
    def test_preloaded_pyplot_is_patched(self):
        code = "import matplotlib.pyplot as plt; plt.show.__module__"
        self.assertEqual(self.run_in_siblings(["matplotlib.pyplot"], code), ["'kernel_display'"] * 2)

    def test_preloaded_modules_find_the_source_of_cells(self):
        code = "import inspect, io, sys, threading, traceback; sys.stderr = io.StringIO()\nclass C: pass\n"
        code += "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); traceback.print_stack()\n"
        code += "sys.stderr.getvalue().count('File'), '1 / 0' in sys.stderr.getvalue(), inspect.getsource(C)"
        found = self.run_in_siblings(["inspect", "threading", "traceback"], code)
        self.assertEqual(found, ["(2, True, 'class C: pass\\n')"] * 2)

    def test_preloaded_subprocess_flushes_first(self):
        code = "import os, subprocess; r, w = os.pipe(); os.dup2(w, 1); print('a', end='')\n"
        code += "subprocess.run(['echo', 'b']); os.system('echo c'); os.read(r, 9)"
        self.assertEqual(self.run_in_siblings(["subprocess"], code), ["b'ab\\nc\\n'"] * 2)

    def test_home_is_that_of_the_session(self):
        code = "import site, sys; site.USER_SITE in sys.path, site.USER_BASE"
        found = self.run_in_siblings([], code, "os.environ['HOME'] = '/nonexistent'")
        self.assertEqual(found, ["(True, '/nonexistent/.local')"] * 2)

    def test_state_is_not_shared(self):
        code = "import builtins; n = getattr(builtins, 'n', 0) + 1; builtins.n = n; (__name__, n)"
        self.assertEqual(self.run_in_siblings([], code), ["('__main__', 1)"] * 2)
