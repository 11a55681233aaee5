"""The bash kernel with code that changes the shell itself: traps, names of builtins, the prompt, TMOUT."""

import subprocess
import time
import unittest

from shell_host import ShellTest


class TrapTest(ShellTest):
    def test_err_trap_of_the_code_works_with_set_e(self):
        trap = "trap 'echo failed $? in $LINENO: $BASH_COMMAND' ERR"
        self.assertEqual(self.run_code(f"{trap}\nfalse\necho on"), (0, "failed 1 in 2: false\non\n"))
        self.assertEqual(self.run_code("set -e\n(exit 3)\necho no"), (3, "failed 3 in 2: ( exit 3 )\n"))
        self.assertEqual(self.run_code("trap - ERR\nfalse\necho no"), (1, ""))
        self.assertEqual(self.run_code("IFS=; trap 'echo ERR seen' USR1; false; echo no"), (1, ""))
        self.assertEqual(self.run_code("trap -- 'echo seen' INT ERR; (exit 2); echo no"), (2, "seen\n"))
        self.assertEqual(self.run_code("trap ERR; false; echo no"), (1, ""))
        self.assertEqual(self.run_code(f"set -Eeuo pipefail\n{trap}\nfalse\necho no"), (1, "failed 1 in 3: false\n"))

    def test_debug_trap_lasts_for_one_request(self):
        trap = "trap 'echo before $BASH_COMMAND' DEBUG"
        self.assertEqual(self.run_code(f"{trap}; echo a; false"), (1, "before echo a\na\nbefore false\n"))
        self.assertEqual(self.run_code(f"{trap}; trap - DEBUG; echo a"), (0, "before trap - DEBUG\na\n"))
        self.assertEqual(self.run_code("echo a"), (0, "a\n"))

    def assert_like_bash(self, code):
        # bash would show signals that this process ignores as traps.
        command = ["env", "--default-signal=HUP,INT,QUIT", "bash", "-c", code]
        script = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        with self.subTest(code):
            self.assertEqual(self.run_code(code), (script.returncode, script.stdout))

    def test_return_trap_runs_when_its_function_returns(self):
        path = self.file("echo in file\n")
        clean = "local tmp=$(mktemp -d); trap 'rm -r \"$tmp\"' RETURN"
        for code in [
            f"f() {{ {clean}; echo hi >$tmp/x; cat $tmp/x; left=$tmp; }}; f; [[ -e $left ]] || echo gone",
            "f() { trap 'echo fired $? $FUNCNAME' RETURN; echo body; (exit 3); }; f",
            "f() { trap 'echo once; trap - RETURN' RETURN; }; g() { :; }; f; g; f; trap -p",
            "f() { trap 'echo fired # why' RETURN; return 3; }; f; g() { echo g; }; g; set -T; g; trap x USR1; set +T",
            f"trap 'echo fired' RETURN; . {path}; f() {{ . {path}; }}; f",
            "set -u; trap -- 'echo fired' RETURN INT; f() { :; }; f",
        ]:
            self.assert_like_bash(code)
            self.run_code("set +uT; trap - RETURN USR1")

    def test_return_trap_does_not_run_between_requests(self):
        path = self.file("")
        self.run_code(f"f() {{ trap 'echo $FUNCNAME >>{path}' RETURN; }}; f")
        for code in ["echo on", "return 3", "set -T", "exit 3", "false", "set -e", "false", "set +e -u"]:
            self.run_code(code)
        self.assertEqual(self.run_code(f"cat {path}"), (0, "f\n"))

    def test_only_traps_of_the_code_are_printed(self):
        for code in [
            "trap; trap -p; trap -p ERR RETURN",
            "trap 'echo \"it'\\''s\"' ERR; trap : USR1; trap 'echo r' RETURN; trap; x=$(trap -p); echo \"$x\"; trap -p ERR",
            "trap : USR1; x=$(trap -p USR1); trap - USR1; eval \"$x\"; trap",
            "trap : USR1 ERR RETURN; trap - ERR RETURN; trap USR1; trap -p",
            "trap : HUP; trap -p nosuch HUP 2>/dev/null; echo $?; trap nosuch 2>/dev/null || echo no",
        ]:
            self.assert_like_bash(code)
            self.run_code("trap - HUP USR1 ERR RETURN")


class NameTest(ShellTest):
    NAMES = (
        *("eval", ".", "source", "command", "read", "printf", "trap", "exit", "local", "unset", "return", "kill"),
        *("declare", "shift", "continue", ":", "test", "[", "exec"),
    )

    def test_functions_can_have_names_of_builtins(self):
        for name in self.NAMES:
            with self.subTest(name):
                self.run_code(f"x=5; {name}() {{ builtin echo custom; }}")
                self.assertEqual(self.run_code("echo hello $x"), (0, "hello 5\n"))
                self.assertEqual(self.run_code("builtin set -e; false; echo no"), (1, ""))
                self.assertEqual(self.run_code("(false; echo no)\necho no"), (1, ""))
                self.assertEqual(self.run_code("echo ${nope:?gone}\necho no"), (1, "bash: nope: gone\n"))
                self.assertEqual(self.run_code(f"builtin set +e; {name} x"), (0, "custom\n"))
                self.run_code(f"builtin unset -f {name}")

    def test_function_named_set_does_not_affect_the_kernel(self):
        self.run_code("set() { echo custom; }")
        self.assertEqual(self.run_code("set -e; exit 3"), (3, "custom\n"))

    def test_aliases_do_not_affect_the_kernel(self):
        self.run_code("alias eval='echo a' .='echo b' builtin='echo c' command='echo d' trap='echo e'")
        self.assertEqual(self.run_code("echo hello"), (0, "hello\n"))
        self.assertEqual(self.run_code("echo ${#BASH_SOURCE[@]}"), (0, "1\n"))

    def test_alias_applies_from_the_next_line(self):
        code = "alias hi='echo hello'\nhi\necho $LINENO"
        self.assertEqual(self.run_code(code), (0, "hello\n3\n"))
        code = "set -x\nalias hi='echo hello again'\nhi\n(exit 3)"
        self.assertRegex(self.run_code(code)[1], r"^\++ alias [^\n]*\n\++ echo hello again\nhello again\n\++ exit 3\n$")

    def test_function_named_builtin_lasts_for_one_request(self):
        self.run_code("x=5")
        for body in [":", "false", "echo mine"]:
            define = f"builtin() {{ {body}; }}; "
            for code in [":", "exit 3", "set -e; false", "set -e; exit 3", "echo ${nope:?gone}"]:
                with self.subTest(define + code):
                    self.run_code(define + code)
                    self.assertEqual(self.run_code("set +e; echo $x"), (0, "5\n"))


class PromptTest(ShellTest):
    def test_line_editing_is_turned_off(self):
        self.run_code("x=5")
        ends = {"": 0, "exit 3": 3, "set -e; false": 1, "echo ${nope:?}": 1, "f() { exit 4; }; f": 4}
        for mode in ["vi", "emacs"]:
            for code, status in ends.items():
                with self.subTest(mode + code):
                    self.assertEqual(self.run_code(f"exec 2>/dev/null; set -o {mode}; {code}"), (status, ""))
                    self.assertEqual(self.run_code("set +e; echo $x; [[ -o vi || -o emacs ]]"), (1, "5\n"))

    def test_shell_stuck_at_its_prompt_ends(self):
        self.send("set -o vi; echo started; sleep 100")
        while not self.output.read():
            time.sleep(0.01)
        time.sleep(0.05)
        self.interrupt()
        self.assertIsNone(self.reply())
        self.assertLess(len(self.output.read()), 1000)

    def test_shell_ends_if_code_closes_its_descriptors(self):
        for descriptor in [250, 251, 252]:
            with self.subTest(descriptor):
                self.send(f"exec {descriptor}>&-")
                self.assertIsNone(self.reply())
                self.process.wait(timeout=20)
                self.doCleanups()
                self.setUp()


class TmoutTest(ShellTest):
    # TMOUT has a resolution of one second. Only a wait past it shows that bash does not end the shell, so this is the
    # only wait over 0.2 seconds in the tests.
    PAST_TMOUT_S = 1.1

    def another_shell(self):
        shell = ShellTest("run_code")
        self.addCleanup(shell.doCleanups)
        shell.setUp()
        return shell

    def test_tmout_does_not_end_the_shell_between_requests(self):
        shells = {code: self.another_shell() for code in ["echo $TMOUT", "exit 3", "set -eu; echo $nope"]}
        for code, shell in shells.items():
            shell.run_code("x=5; TMOUT=1")
            shell.run_code(code)
        time.sleep(self.PAST_TMOUT_S)
        for code, shell in shells.items():
            with self.subTest(code):
                self.assertEqual(shell.run_code("set +eu; echo $x $TMOUT"), (0, "5 1\n"))

    def test_tmout_does_not_end_the_code_after_an_interrupt(self):
        self.run_code("x=5; export TMOUT=1")
        self.assert_interrupted("sleep 100")
        code = f"sleep {self.PAST_TMOUT_S}; env | grep TMOUT; echo $x"
        self.assertEqual(self.run_code(code), (0, "TMOUT=1\n5\n"))
        self.assertEqual(self.run_code("unset TMOUT; echo $x"), (0, "5\n"))
        self.assertEqual(self.run_code("echo [$TMOUT]"), (0, "[]\n"))

    def test_tmout_can_be_read_only(self):
        waiting, running = self.another_shell(), self.another_shell()
        for shell in (waiting, running):
            shell.run_code("x=5; readonly TMOUT=1; set -e")
        running.send(f"sleep {self.PAST_TMOUT_S}; echo $x $TMOUT")
        time.sleep(self.PAST_TMOUT_S)
        self.assertEqual(waiting.run_code("echo $x $TMOUT"), (0, "5 1\n"))
        self.assertEqual(running.reply(), (0, "5 1\n"))


if __name__ == "__main__":
    unittest.main()
