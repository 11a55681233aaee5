"""The `pip` of a session: what it passes to uv, and to the interpreter's own pip."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

PIP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python", "pip.py")
TIMEOUT_S = 60

spec = importlib.util.spec_from_file_location("session_pip", PIP)
pip = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pip)


class TranslationTest(unittest.TestCase):
    def assert_translated(self, given, expected):
        with self.subTest(given=given):
            translated = pip.translate(given.split())
            self.assertEqual(translated and " ".join(translated), expected)

    def test_options_of_install_become_those_of_uv(self):
        for given, expected in (
            ("install requests flask>=2", "install requests flask>=2"),
            ("install -r requirements.txt -cconstraints.txt", "install --requirements requirements.txt --constraints constraints.txt"),
            ("install -e . --no-deps", "install --editable . --no-deps"),
            ("install -qU pip-tools", "install --quiet --upgrade pip-tools"),
            ("install --user --break-system-packages x", "install x"),
            ("install --no-cache-dir --progress-bar off --target=/tmp/x y", "install --no-cache --target /tmp/x y"),
            ("-q install --force-reinstall --pre x", "install --quiet --reinstall --prerelease=allow x"),
            ("install --index-url http://a/ --trusted-host a x", "install --index-url http://a/ --allow-insecure-host a x"),
            ("install -- -odd", "install -- -odd"),
            ("uninstall -y x", "uninstall x"),
        ):  # fmt: skip
            self.assert_translated(given, expected)

    def test_what_uv_lacks_goes_to_pip(self):
        for given in ("download x", "list", "freeze", "show x", "--version", "", "cache purge", "config list", "install --report - x"):
            self.assert_translated(given, None)
        self.assert_translated("install -r", None)

    def test_settings_of_pip_apply_to_uv(self):
        given = {"PIP_INDEX_URL": "http://a/", "PIP_FIND_LINKS": "/w", "UV_FIND_LINKS": "/own"}
        found = pip.uv_environment(given)
        self.assertEqual((found["UV_DEFAULT_INDEX"], found["UV_FIND_LINKS"]), ("http://a/", "/own"))


class ProgramTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def run_pip(self, *arguments, path, **variables):
        command = [sys.executable, "-IS", PIP, *arguments]
        environment = {"PATH": path, "HOME": self.directory, **variables}
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)

    def test_uv_is_preferred_for_the_environment_of_the_interpreter(self):
        uv = os.path.join(self.directory, "uv")
        with open(uv, "w") as file:
            file.write('#!/bin/sh\necho "$@"\n')
        os.chmod(uv, 0o755)
        done = self.run_pip("install", "--user", "x", path=self.directory)
        self.assertEqual(done.stdout, f"pip install --python {sys.executable} x\n")
        self.assertIn("--user has no effect", done.stderr)
        for value, expected in (("1", "--no-index x"), ("0", "x")):
            done = self.run_pip("install", "x", path=self.directory, PIP_NO_INDEX=value)
            self.assertEqual(done.stdout, f"pip install --python {sys.executable} {expected}\n")

    @unittest.skipIf(pip.find_pip() is None, "the interpreter has no pip")
    def test_own_pip_of_the_interpreter_does_the_rest(self):
        done = self.run_pip("--version", path="/nonexistent")
        self.assertEqual((done.returncode, done.stdout[:4]), (0, "pip "), done.stderr)
        arguments = ("install", "--user", "--break-system-packages", "--no-index", "no-such-package-of-a-test")
        done = self.run_pip(*arguments, path="/nonexistent")
        self.assertIn("No matching distribution found", done.stderr)
        self.assertIn("--user has no effect", done.stderr)

    @unittest.skipIf(pip.find_pip() is None, "the interpreter has no pip")
    def test_uv_that_cannot_be_executed_is_replaced_by_pip(self):
        uv = os.path.join(self.directory, "uv")
        with open(uv, "w") as file:
            file.write("#!/no/such/interpreter\n")
        os.chmod(uv, 0o755)
        done = self.run_pip("install", "--no-index", "no-such-package-of-a-test", path=self.directory)
        self.assertIn("No matching distribution found", done.stderr)

    def test_link_named_uv_runs_uv_or_names_the_remedy(self):
        link = os.path.join(self.directory, "link", "uv")
        os.mkdir(os.path.dirname(link))
        os.symlink(PIP, link)
        # The link itself is on PATH too, and is not executed again.
        environment = {"PATH": f"{os.path.dirname(link)}:{self.directory}"}
        command = [sys.executable, "-IS", link, "pip", "list"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("hint: use pip, or install uv on the host", done.stderr)
        uv = os.path.join(self.directory, "uv")
        with open(uv, "w") as file:
            file.write('#!/bin/sh\necho "$@"\n')
        os.chmod(uv, 0o755)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        self.assertEqual(done.stdout, "pip list\n", done.stderr)

    def test_message_without_any_installer_names_the_remedy(self):
        copy = os.path.join(self.directory, "copy.py")
        with open(PIP) as source, open(copy, "w") as file:
            file.write(source.read().replace("def find_pip():", "def find_pip():\n    return None\n"))
        command = [sys.executable, "-IS", copy, "install", "x"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env={"PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("hint: install uv or python3-pip on the host", done.stderr)


if __name__ == "__main__":
    unittest.main()
