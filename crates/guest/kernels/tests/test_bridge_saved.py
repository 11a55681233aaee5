"""Saved tools in the Python kernel: the source that is saved, and its use in later sessions."""

from bridge_host import BridgeTest


class SaveTest(BridgeTest):
    def save(self, *cells):
        for code in cells:
            self.run_ok(code)

    def refuse(self, name, *cells):
        for code in cells[:-1]:
            self.run_ok(code)
        return self.run_error(cells[-1], name).error["message"]

    def later(self, code):
        """Returns the value of a cell in another session, which has only the saved tools."""
        self.host = self.new_host()
        return self.value(code)

    def test_saves_by_call_and_as_a_decorator(self):
        self.save("def double(x):\n    'Twice x.'\n    return 2 * x", "save_tool(double)")
        self.save("import mcp.runtime as runtime\ndef triple(x): return 3 * x\nruntime.save_tool(triple)")
        self.save("@save_tool\ndef half(x):\n    return x / 2\nassert half(4) == 2")
        self.save("@runtime.save_tool\ndef third(x):\n    return x / 3")
        self.assertEqual(self.state.saved["half"][0]["source"], "def half(x):\n    return x / 2\n")
        self.assertEqual(self.state.saved["double"][0]["doc"], "Twice x.")
        self.assertEqual(self.later("double(2), triple(2), half(2), third(3)"), (4, 6, 1.0, 1.0))

    def test_imports_helpers_and_constants_are_saved(self):
        self.save(
            "import json, os.path, xml.dom.minidom\nimport collections as c\nfrom math import sqrt as root, pi\nfrom functools import lru_cache",
            "BASE, TABLE = 10, {'a': (1, [2.5, None])}",
            "def deep(x, base=BASE): return root(x) * base",
            "@lru_cache\ndef helper(x): return deep(x) if x > 0 else tool.__name__",
            """
            def tool(x: c.Counter = None):
                parts = [helper(n) for n in (4, 9)]
                def inner(): return json.dumps(TABLE), os.path.basename('/a/b')
                return parts, inner(), pi > 3, xml.dom.minidom.Document.__name__, c.Counter('aa')['a'], helper(0)
            _ = save_tool(tool)
            """,
        )
        source = self.state.saved["tool"][0]["source"]
        for line in ("import json\n", "import os\n", "import collections as c\n", "from math import sqrt as root\n", "import xml.dom.minidom\n", "BASE = 10\n"):
            self.assertIn(line, source)
        expected = ([20.0, 30.0], ('{"a": [1, [2.5, null]]}', "b"), True, "Document", 2, "tool")
        self.assertEqual(self.later("tool()"), expected)

    def test_async_functions_can_call_tools(self):
        self.save(
            """
            import asyncio, mcp.runtime as runtime
            async def both(n):
                'Two at once.'
                return await asyncio.gather(mcp_plain.echo(n=n), mcp_servers['git-hub'].create_issue(title='t'))
            save_tool(both)
            """
        )
        self.assertIn("from mcp.servers import plain as mcp_plain\n", self.state.saved["both"][0]["source"])
        self.assertEqual(self.later("await both(1)"), [{"n": 1}, {"title": "t"}])
        self.assertEqual(self.value("import inspect; inspect.iscoroutinefunction(both)"), True)

    def test_error_names_what_cannot_be_saved(self):
        self.run_ok("import threading; lock = threading.Lock()\nclass Thing: pass\ndef make():\n n = 1\n def inner(): return n\n return inner")
        cases = [
            ("def f(): return lock\nsave_tool(f)", "'lock'"),
            ("def f(): return Thing()\nsave_tool(f)", "class 'Thing'"),
            ("def f(): return missing_name\nsave_tool(f)", "'missing_name', which is not defined"),
            ("save_tool(make())", "(n)"),
            ("f = lambda: 1\nsave_tool(f)", "'<lambda>'"),
            ("def _f(): pass\nsave_tool(_f)", "'_f'"),
            ("exec('def f(): pass')\nsave_tool(f)", "source of 'f'"),
            ("def g(): return 1\nh = g\ndef f(): return h()\nsave_tool(f)", "defined as 'g'"),
        ]
        for code, expected in cases:
            with self.subTest(code=code):
                self.assertIn(expected, self.refuse("MCPError", code))
        self.refuse("TypeError", "save_tool(5)")
        self.refuse("TypeError", "save_tool(print)")
        self.assertEqual(self.state.saved, {})

    def test_helpers_with_the_same_name_are_refused(self):
        self.save("def helper(): return 1\ndef first(): return helper()\nsave_tool(first)")
        self.host = self.new_host()
        self.save("def helper(): return 2")
        self.assertIn("different values for 'helper'", self.refuse("MCPError", "def both(): return first(), helper()\nsave_tool(both)"))

    def test_saved_tool_can_use_another(self):
        self.save("def one(): return 1\nsave_tool(one)")
        self.host = self.new_host()
        self.save("def two(): return one() + 1\nsave_tool(two)")
        self.assertEqual(self.later("two()"), 2)

    def test_global_statement_works(self):
        self.save("count = 5\ndef step():\n    global count, made\n    count += 1\n    made = 1\n    return count\nsave_tool(step)")
        self.assertEqual(self.later("step(), step()"), (6, 7))


class LoadTest(BridgeTest):
    def put(self, name, source, doc=""):
        self.state.saved_save(name, source, doc)
        self.host.preface()

    def test_tool_is_loaded_on_first_use(self):
        self.put("double", "def double(x): return 2 * x\n", "Twice x.")
        self.assertEqual(self.value("repr(double), double.__doc__, callable(double)"), ("<saved tool double, version 1>", "Twice x.", True))
        self.assertEqual(self.methods(), [])
        self.assertEqual(self.value("double(1), double(2), type(double).__name__"), (2, 4, "function"))
        self.assertEqual(self.methods(), ["saved/load"])

    def test_stub_has_signature_source_and_help(self):
        self.put("double", "def double(x, *, by=2): return by * x\n", "Twice x.")
        self.assertEqual(self.value("import inspect; str(inspect.signature(double))"), "(x, *, by=2)")
        self.assertIn("def double(x, *, by=2)", self.value("inspect.getsource(double)"))
        self.put("other", "def other(x): return x\n", "The other.")
        self.assertIn("The other.", self.run_ok("help(other)").stdout)

    def test_names_of_the_user_are_not_replaced(self):
        self.run_ok("double = 5")
        self.put("double", "def double(x): return 2 * x\n")
        self.assertEqual(self.value("double"), 5)
        self.run_ok("def triple(x): return 3 * x\nsaved = save_tool(triple)")
        self.host.preface()
        self.assertEqual(self.value("triple is saved, triple(1)"), (True, 3))

    def test_new_version_replaces_the_old_one(self):
        self.put("tool", "def tool(): return 1\n")
        self.assertEqual(self.value("tool()"), 1)
        self.put("tool", "def tool(): return 2\n")
        self.assertEqual(self.value("tool()"), 2)
        self.run_ok("def tool(): return 3")
        self.put("tool", "def tool(): return 4\n")
        self.assertEqual(self.value("tool()"), 3)

    def test_broken_tool_affects_only_its_users(self):
        self.put("broken", "import no_such_module\ndef broken(): pass\n")
        self.put("worse", "def worse(:\n")
        self.put("other", "def another(): pass\n")
        self.put("fine", "def fine(): return 1\n")
        self.assertEqual(self.value("fine()"), 1)
        for name in ("broken", "worse", "other"):
            cell = self.run_error(f"{name}()", "MCPError")
            self.assertIn(f"the saved tool {name} (version 1) cannot be loaded", cell.error["message"])
        self.assertEqual(self.value("fine()"), 1)

    def test_tool_works_once_its_server_is_loaded(self):
        server = self.state.servers.pop("plain")
        self.put("ask", "from mcp.servers import plain as mcp_plain\nasync def ask(): return await mcp_plain.echo(n=1)\n")
        self.assertIn("'plain' is not loaded", self.run_error("await ask()", "MCPError").error["message"])
        self.state.servers["plain"] = server
        self.host.preface()
        self.assertEqual(self.value("await ask()"), {"n": 1})

    def test_tools_are_listed_and_deleted(self):
        self.put("tool", "def tool(): return 1\n")
        self.run_ok("import mcp.runtime as runtime")
        self.assertEqual(self.value("[t['name'] for t in runtime.saved_tools()]"), ["tool"])
        self.assertEqual(self.value("runtime.delete_tool('tool'), runtime.delete_tool('tool')"), (True, False))
        self.run_error("tool", "NameError")

    def test_deleted_tool_is_removed(self):
        self.put("tool", "def tool(): return 1\n")
        self.run_ok("tool()")
        del self.state.saved["tool"]
        self.host.preface()
        self.run_error("tool", "NameError")

    def test_errors_show_lines_of_the_tool(self):
        self.put("tool", "def tool():\n    return 1 / 0\n")
        cell = self.run_error("tool()", "ZeroDivisionError")
        self.assertIn('File "<saved tool version 1>", line 2, in tool\n    return 1 / 0\n', cell.traceback)
