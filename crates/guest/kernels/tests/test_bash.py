"""The bash kernel: state, output and the end of code."""

import os
import re
import socket
import subprocess
import unittest

from shell_host import ShellTest


class CodeTest(ShellTest):
    def test_variables_functions_aliases_and_directory_persist(self):
        self.run_code("x=5; declare -a list=(1 2); f() { echo in f; }; alias a='echo aliased'; cd /")
        self.assertEqual(self.run_code("echo $x ${list[1]} $PWD; f; a"), (0, "5 2 /\nin f\naliased\n"))

    def test_length_of_code_is_in_bytes(self):
        self.assertEqual(self.run_code("echo ü"), (0, "ü\n"))
        self.assertEqual(self.run_code("echo after"), (0, "after\n"))

    def test_status_is_that_of_the_last_command(self):
        self.assertEqual(self.run_code("false"), (1, ""))
        self.assertEqual(self.run_code("(exit 7)"), (7, ""))

    def test_status_of_the_last_request_is_visible_to_the_next(self):
        self.run_code("x=5; (exit 7)")
        self.assertEqual(self.run_code("echo $?"), (0, "7\n"))
        self.run_code("exit 4")
        self.assertEqual(self.run_code("echo $? $x"), (0, "4 5\n"))

    def test_exit_ends_the_code_and_not_the_shell(self):
        path = self.file("echo in file\nexit 4\necho no\n")
        self.run_code("x=5")
        for code, reply in {
            "f() { exit 4; }; f; echo no": (4, ""),
            "exit 300; echo no": (44, ""),
            "exit 3\necho no": (3, ""),
            "cd /nonexistent 2>/dev/null || exit 1\necho no": (1, ""),
            "false\nexit\necho no": (1, ""),
            "eval 'exit 3\necho no'; echo no": (3, ""),
            f". {path}; echo no": (4, "in file\n"),
            "f() {\n exit 4\n}\nf\necho no": (4, ""),
            "for i in 1 2; do while :; do exit 4; done; done; echo no": (4, ""),
            "trap 'exit 9' USR1; kill -USR1 $$\necho no": (9, ""),
            "trap 'exit 9' ERR; false\necho no": (9, ""),
            "exit -1\necho no": (255, ""),
            "exit 010\necho no": (10, ""),
        }.items():
            with self.subTest(code):
                self.assertEqual(self.run_code(code), reply)
                self.assertEqual(self.run_code("trap - ERR; echo $x; echo error >&2"), (0, "5\nerror\n"))

    def test_exit_of_a_subshell_ends_the_subshell(self):
        code = "(exit 3); echo $?; x=$(exit 4); echo $?; exit 5 | cat; echo $?; exit 6 & wait $!; echo $?"
        self.assertEqual(self.run_code(code), (0, "3\n4\n0\n6\n"))
        code = "f() { exit 3; }; f | cat; echo ${PIPESTATUS[0]}; x=$(f); echo $?; (f; echo no)"
        self.assertEqual(self.run_code(code), (3, "3\n3\n"))

    def test_exit_needs_a_number(self):
        status, printed = self.run_code("exit abc\necho no")
        self.assertEqual((status, "numeric argument required" in printed, "no\n" in printed), (2, True, False))

    def test_stderr_works_after_an_exit_in_a_redirection(self):
        path = self.file("")
        for code in [f"f() {{ echo oops >&2; exit 1; }}; f 2>{path}", f"{{ exit 1; }} 2>{path}", "exit 1 2>/dev/null"]:
            self.assertEqual(self.run_code(code), (1, ""))
            self.assertEqual(self.run_code("echo error >&2"), (0, "error\n"))
        self.assertEqual(self.run_code("f 2>&1"), (1, "oops\n"))
        self.assertEqual(self.run_code("echo error >&2"), (0, "error\n"))

    def test_expansion_errors_end_the_code_and_not_the_shell(self):
        for code in ["set -u; echo $nope; echo no", "set -u\necho $nope\necho no", "f() { echo $nope; }\nf\necho no"]:
            status, printed = self.run_code(f"x=5; {code}")
            self.assertEqual((status, "unbound" in printed, "no\n" in printed), (1, True, False))
        self.assertEqual(self.run_code("echo $x ${nope:?gone}\necho no"), (1, "bash: nope: gone\n"))
        self.assertEqual(self.run_code("set -e\necho ${nope:?gone}\necho no"), (1, "bash: nope: gone\n"))
        self.assertEqual(self.run_code("set +eu; echo $x"), (0, "5\n"))

    def test_expansion_errors_end_code_that_is_long_or_changes_its_parsing(self):
        text = "cat >/dev/null <<'END'\n" + "alias a=b; c | d\n" * 4000 + "END\n"
        for before in [
            text.replace("alias", ""),
            text,
            "alias a='echo b'\na >/dev/null\n",
            "if true; then\n  alias a='echo b'\nfi\na >/dev/null\n",
            "shopt -s extglob\necho !(keep) >/dev/null\n",
        ]:
            for error in ["echo $nope", "x=${nope:?gone}", "echo $((1 / 0))", "fixed=2"]:
                with self.subTest(before[:50] + error):
                    self.run_code("shopt -u extglob; unalias -a; x=5; set +eu; [[ -v fixed ]] || readonly fixed=1")
                    status, printed = self.run_code(f"{before}set -euo pipefail\n{error}\necho continued")
                    self.assertEqual((status, printed.count("\n"), "continued" in printed), (1, 1, False), printed)
                    self.assertEqual(self.run_code("echo $x"), (0, "5\n"))

    def test_set_e_ends_the_code_where_a_script_would_end(self):
        path = self.file("echo in file\nfalse\necho no\n")
        define = "f() { false; echo f goes on; }; "
        for code in [
            "false\necho no",
            "f\necho no",
            f". {path}\necho no",
            "eval 'false; echo no'\necho no",
            "true && false; echo no",
            "x=$(false); echo no",
            "x=$(false; echo in); echo $x",
            "(false; echo no); echo no",
            "{ false; echo no; } | cat; echo after",
            "false | true; echo after",
            "set -o pipefail; false | true; echo no",
            "[[ a == b ]]; echo no",
            "((0)); echo no",
            "command false; echo no",
            "if f; then echo then; fi; f || echo no; f && echo and; ! false; while false; do :; done; echo after",
            "(exit 3)\necho no",
            "cat </nonexistent\necho no",
        ]:
            with self.subTest(code):
                code = f"exec 2>/dev/null; {define}set -e\n{code}"
                script = subprocess.run(["bash", "-c", code], stdout=subprocess.PIPE, text=True)
                self.run_code("set +o pipefail")
                self.assertEqual(self.run_code(code), (script.returncode, script.stdout))
        self.run_code("y=6")
        self.assertEqual(self.run_code("false; echo no"), (1, ""))
        self.assertEqual(self.run_code("set +e; false; echo $y"), (0, "6\n"))

    def test_redirections_of_the_code_end_with_it(self):
        path = self.file("")
        for code in [f"exec >{path} 2>&1; echo hidden", "exec 1>&- 2>&-", "exec </dev/zero"]:
            self.run_code(code)
            self.assertEqual(self.run_code("echo seen; echo error >&2; cat"), (0, "seen\nerror\n"))

    def test_other_descriptors_persist(self):
        path = self.file("")
        self.run_code(f"exec 10>{path} 11>&10 {{third}}>&10")
        self.assertEqual(self.run_code(f"echo a >&10; echo b >&11; echo c >&$third; cat {path}"), (0, "a\nb\nc\n"))

    def test_trace_shows_only_the_code(self):
        path = self.file("")
        self.assertNotIn("__rf_", self.run_code("set -xv")[1])
        for code in ["echo a", "f() { echo f; }; f", f". {path}", "exit 3"]:
            self.assertNotIn("__rf_", self.run_code(code)[1])
        self.run_code("set +v")
        for code in ["false", "trap : ERR\nfalse", "trap - ERR"]:
            self.assertNotIn("__rf_", self.run_code(code)[1])
        self.assertEqual(re.sub(r"\++", "+", self.run_code("false; exit 3")[1]), "+ false\n+ exit 3\n")

    def test_no_messages_about_terminals(self):
        self.assertEqual(self.run_code("yes | head -2"), (0, "y\ny\n"))
        self.assertEqual(self.run_code("bash -c 'kill -TERM $$'; bash -c 'kill -KILL $$'"), (137, ""))

    def test_line_numbers_are_those_of_the_code(self):
        for _ in range(3):
            self.assertEqual(self.run_code("echo $LINENO\necho $LINENO"), (0, "1\n2\n"))
            self.assertIn("line 2: syntax error near unexpected token `)'", self.run_code("echo a\n)\n")[1])
            self.assertIn("here-document at line 2 ", self.run_code("echo a\ncat <<END\nhere")[1])
            self.run_code("exit 1")

    def test_exec_replaces_the_shell(self):
        self.run_code("x=5")
        self.send("exec bash -c 'echo started; ls /proc/self/fd | tr \"\\n\" \" \"; exit 3'")
        self.assertIsNone(self.line())
        self.assertEqual(self.process.wait(timeout=20), 3)
        self.assertEqual(self.output.read(), b"started\n0 1 2 3 ")

    def test_source_file_is_in_the_working_directory_and_return_works(self):
        show = 'cd "$(dirname "${BASH_SOURCE[0]}")"; pwd'
        self.run_code("cd /; unset OLDPWD")
        self.assertEqual(self.run_code(f"set -u; ({show}); [[ -v OLDPWD ]]"), (1, "/\n"))
        self.assertEqual(self.run_code(f"cd /usr; cd /proc; ({show}); cd -"), (0, "/proc\n/usr\n"))
        self.run_code("cd $(mktemp -d); rmdir $PWD")
        self.assertEqual(self.run_code("x=$BASH_SOURCE; stat -c %h .; cd /"), (0, "0\n"))
        self.assertEqual(self.run_code("return 3; echo no"), (3, ""))

    def test_script_sees_itself_as_the_main_script(self):
        self.run_code("named() { echo $0; }")
        for guard in ['[[ "${BASH_SOURCE[0]}" == "${0}" ]]', '[ "$BASH_SOURCE" = "$0" ]', '[[ $0 = $BASH_SOURCE ]]']:
            code = f'set -euo pipefail\nmain() {{ echo main $#; exit 3; }}\nif {guard}; then\n  main "$@"\nfi'
            self.assertEqual(self.run_code(code), (3, "main 0\n"))
            self.assertEqual(self.run_code("set +eu; echo $0; named; pwd"), (0, f"bash\nbash\n{os.getcwd()}\n"))
        path = self.file('[[ "${BASH_SOURCE[0]}" == "$0" ]] || echo sourced $0\n')
        self.assertEqual(self.run_code(f". {path}; bash {path}"), (0, "sourced bash\n"))

    def test_failed_exec_does_not_end_the_shell(self):
        self.assertEqual(self.run_code("x=5; exec /nonexistent 2>/dev/null; echo $?"), (0, "127\n"))

    def test_interrupt_ends_command_loop_and_function(self):
        self.run_code("x=5")
        self.assert_interrupted("sleep 100")
        self.assert_interrupted("while :; do :; done")
        self.assert_interrupted("f() { while :; do :; done; }; f")
        self.assertEqual(self.run_code("echo $x"), (0, "5\n"))

    def test_interrupts_between_requests_are_ignored(self):
        for _ in range(20):
            self.interrupt()
        self.assertEqual(self.run_code("echo fine"), (0, "fine\n"))

    def test_code_has_no_input_and_no_control_channel(self):
        self.assertEqual(self.run_code("cat; read line; echo [$line]"), (0, "[]\n"))
        self.assertEqual(self.run_code("ls /proc/self/fd | tr '\\n' ' '"), (0, "0 1 2 3 "))  # 3 is the listing itself

    def test_multiple_lines_and_here_documents_work(self):
        code = "for i in 1 2; do\n  echo $i\ndone\ncat <<END\nhere\nEND"
        self.assertEqual(self.run_code(code), (0, "1\n2\nhere\n"))
        self.assertEqual(self.run_code("cat <<END # comment\nhere\nEND\n# comment"), (0, "here\n"))
        self.assertEqual(self.run_code("shopt -s extglob\necho /pro@(c)"), (0, "/proc\n"))
        for nothing in ["", "\n", "# comment"]:
            self.assertEqual(self.run_code(nothing), (0, ""))

    def test_very_long_code_works(self):
        self.assertEqual(self.run_code(":\n" * 100_000 + "echo end"), (0, "end\n"))
        self.assertEqual(self.run_code(":\n" * 16_000 + "echo end"), (0, "end\n"))

    def test_names_of_the_kernel_do_not_conflict(self):
        self.assertEqual(self.run_code("readonly length=1 status=2 action=3 names=4 name=5"), (0, ""))
        self.assertEqual(self.run_code("trap 'echo failed' ERR; false"), (1, "failed\n"))
        self.assertEqual(self.run_code("trap - ERR; exit 3"), (3, ""))
        self.assertEqual(self.run_code("echo $length"), (0, "1\n"))

    def test_incomplete_code_is_an_error(self):
        for code in ("echo 'no end", 'echo "no end', "`", "echo ${x", "if true", "echo $(", "eval \"echo 'no end\"", "[[ a == 'no end"):
            status, printed = self.run_code(code)
            self.assertNotEqual(status, 0, code)
            self.assertRegex(printed, "unexpected EOF|syntax error|not parsed to its end", code)
        self.assertEqual(self.run_code("echo alive"), (0, "alive\n"))

    def test_syntax_error_is_reported(self):
        status, printed = self.run_code("if")
        self.assertEqual((status, "syntax error" in printed), (2, True))
        self.assertEqual(self.run_code("echo a\n}\necho b")[1].split("\n")[0::3], ["a", ""])
        self.assertEqual(self.run_code("echo after"), (0, "after\n"))

    def test_jobs_continue_between_requests(self):
        self.assertEqual(self.run_code("sleep 100 & echo started")[0], 0)
        self.assertIn("sleep 100", self.run_code("jobs")[1])
        self.assertEqual(self.run_code("kill %1; wait %1; (exit 3); true | cat; sleep 100 & jobs -r | wc -l")[1], "1\n")
        self.assertRegex(self.run_code("jobs; kill %1")[1], r"^\[1\][^\n]*Running[^\n]*\n$")

    def test_kernel_ends_when_the_host_closes_the_socket(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.process.wait(timeout=20)


if __name__ == "__main__":
    unittest.main()
