"""Servers in the Python kernel: proxies, signatures, the package `mcp`, prefaces."""

import os
import sys
import tempfile

from bridge_host import GITHUB, PLAIN, BridgeTest, tool
from kernel_host import KERNEL


class ProxyTest(BridgeTest):
    def test_all_names_of_a_server_are_one_object(self):
        code = """
            from mcp.servers import git_hub
            import mcp.servers.git_hub as module
            import mcp, mcp.runtime
            found = mcp_git_hub, mcp_servers['git-hub'], mcp_servers['git_hub'], git_hub, module, mcp.servers.git_hub
            len({id(server) for server in found}), LOADED_MCP_SERVERS, mcp.runtime.LOADED_MCP_SERVERS, list(mcp_servers)
            """
        names = ("git-hub", "plain")
        self.assertEqual(self.value(code), (1, names, names, list(names)))

    def test_signature_and_docs_come_from_the_schema(self):
        self.run_ok("import inspect")
        signature = "(*, title: str, labels: list = None, from_: int = None, state: str = None, note: str = None)"
        self.assertEqual(self.value("str(inspect.signature(mcp_git_hub.create_issue))"), signature)
        self.assertEqual(self.value("inspect.iscoroutinefunction(mcp_git_hub.create_issue)"), True)
        shown = self.run_ok("help(mcp_git_hub.create_issue)").stdout
        for line in ("Opens an issue.", "title (str, required): What it is about", "one of 'open', 'closed'", "title: str"):
            self.assertIn(line, shown)
        self.assertIn("create_issue(", self.run_ok("help(mcp_git_hub)").stdout)

    def arguments(self, code):
        self.run_ok(code)
        return self.host.calls[-1]["params"]["arguments"]

    def test_arguments_are_checked_and_sent_under_exact_names(self):
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue(title='a')"), {"title": "a"})
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue({'title': 'a', 'from': 1}, labels=[])"), {"title": "a", "from": 1, "labels": []})
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue(title='a', from_=2, state=None, note=None)"), {"title": "a", "from": 2, "note": None})
        self.assertEqual(self.arguments("await mcp_plain.echo(**{'any-thing': 1})"), {"any-thing": 1})
        sent = len(self.host.calls)
        cases = [
            ("", "is missing title"),
            ("'a'", "takes keyword arguments, or one dict"),
            ("title='a', titel='b'", "has no argument 'titel'; did you mean title"),
        ]
        for given, expected in cases:
            with self.subTest(given=given):
                cell = self.run_error(f"await mcp_git_hub.create_issue({given})", "MCPError")
                self.assertIn(f"create_issue() {expected}", cell.error["message"])
                self.assertNotIn("mcp_bridge", cell.error["traceback"])
        code = """
            import mcp.runtime
            try: await mcp_git_hub.create_issue()
            except mcp.runtime.MCPError as error: caught = error
            caught.kind, caught.server, caught.tool, caught.may_have_run
            """
        self.assertEqual(self.value(code), ("invalid", "git-hub", "create-issue", False))
        self.assertEqual(len(self.host.calls), sent)

    def test_proxy_lists_its_tools(self):
        for server in ("mcp_plain", "mcp_servers['plain']"):
            self.assertEqual(self.value(f"[tool['name'] for tool in await {server}.list_tools()]"), ["echo", "wait"])
        self.assertEqual(self.value("from mcp.servers.plain import list_tools; len(await list_tools())"), 2)
        self.assertEqual(self.methods(), ["tools/list"])

    def test_tool_with_the_name_of_the_listing_takes_precedence(self):
        self.state.tools["plain"] = [tool("list-tools", "list_tools")]
        self.assertEqual(self.value("await mcp_plain.list_tools(a=1)"), {"a": 1})
        self.assertEqual(self.host.calls[-1]["params"]["tool"], "list-tools")
        self.assertEqual(self.value("dir(mcp_plain)"), ["TOOLS", "TOOL_MAP", "list_tools"])
        listed = self.value("import mcp.runtime as runtime; await runtime.list_tools('plain')")
        self.assertEqual([found["name"] for found in listed], ["list-tools"])

    def test_tools_of_any_name_can_be_called(self):
        odd = ["a b", "__class__", "TOOLS", "class", "12"]
        self.state.tools["plain"] = [tool(name, f"alias_{n}") for n, name in enumerate(odd)]
        self.state.tools["plain"][1]["alias"] = "__class__"
        for name in odd:
            self.run_ok(f"await mcp_plain[{name!r}]()")
            self.assertEqual(self.host.calls[-1]["params"]["tool"], name)
        self.run_ok("await mcp_git_hub.class_()")
        self.assertEqual(self.value("dir(mcp_git_hub)"), ["TOOLS", "TOOL_MAP", "class_", "create_issue", "list_tools"])
        self.assertEqual(self.value("list(mcp_git_hub), 'create-issue' in mcp_git_hub"), (["create-issue", "class"], True))

    def test_unknown_tool_suggests_similar_names(self):
        cell = self.run_error("mcp_git_hub.create_isue", "UnknownTool")
        self.assertIn("did you mean create_issue", cell.error["message"])
        self.assertEqual(self.value("hasattr(mcp_git_hub, 'nothing'), getattr(mcp_git_hub, 'x', 1)"), (False, 1))
        self.run_ok("import mcp.runtime\ntry: mcp_git_hub['x']\nexcept mcp.runtime.MCPError as e: assert e.kind == 'not_found'")

    def test_tools_are_listed_once_and_only_if_needed(self):
        self.run_ok("mcp_git_hub, mcp_servers, LOADED_MCP_SERVERS; repr(mcp_git_hub); hasattr(mcp_git_hub, '__iter__')")
        self.assertEqual(self.methods(), [])
        self.assertEqual(self.value("[tool['name'] for tool in mcp_git_hub.TOOLS]"), ["create-issue", "class"])
        self.assertEqual(self.value("list(mcp_git_hub.TOOL_MAP)"), ["create_issue", "class_"])
        self.assertEqual(self.methods(), ["tools/list"])

    def test_server_that_is_not_loaded_is_refused(self):
        for code, name in [("mcp_servers['far']", "KeyError"), ("from mcp.servers import far", "ImportError"), ("import mcp.servers.far", "ImportError")]:
            with self.subTest(code=code):
                self.assertIn("'far' is not loaded", self.run_error(code, name).error["message"])
        self.assertEqual(self.value("'far' in mcp_servers, mcp_servers.get('far', 1)"), (False, 1))


class PrefaceTest(BridgeTest):
    def test_servers_follow_the_preface(self):
        self.run_ok("before = mcp_plain")
        del self.state.servers["git-hub"]
        self.state.servers["new"] = {"name": "new", "alias": "new", "description": "", "version": "1"}
        self.state.tools["new"] = [tool("act")]
        self.host.preface()
        self.assertEqual(self.value("LOADED_MCP_SERVERS, before is mcp_plain, await mcp_new.act(a=1)"), (("plain", "new"), True, {"a": 1}))
        self.run_error("mcp_git_hub", "NameError")

    def test_tools_are_listed_again_for_a_new_version(self):
        self.run_ok("mcp_plain.echo")
        self.state.tools["plain"] = [tool("fresh")]
        self.host.preface()
        self.run_ok("mcp_plain.echo")
        self.state.servers["plain"] = {**PLAIN, "version": "2"}
        self.host.preface()
        self.run_ok("mcp_plain.fresh")
        self.run_error("mcp_plain.echo", "UnknownTool")

    def test_names_of_the_user_are_left_alone(self):
        self.run_ok("mcp_plain = mcp_servers = save_tool = 5")
        self.host.preface({"servers": [PLAIN, GITHUB]})
        self.assertEqual(self.value("mcp_plain, mcp_servers, save_tool, LOADED_MCP_SERVERS"), (5, 5, 5, ("plain", "git-hub")))

    def test_invalid_preface_is_rejected(self):
        for preface in ([], {"servers": [{}]}, {"saved": 5}):
            self.host.preface(preface)
            self.assertEqual(self.host.frame()["type"], "rejected")
        self.host.preface()
        self.assertEqual(self.value("LOADED_MCP_SERVERS"), ("git-hub", "plain"))


class NoPrefaceTest(BridgeTest):
    HAS_PREFACE = False

    def test_servers_are_queried_without_a_preface(self):
        self.run_error("mcp_servers", "NameError")
        self.assertEqual(self.value("import mcp.runtime as runtime; runtime.list_servers_sync()"), ["git-hub", "plain"])
        self.assertEqual(self.value("from mcp.servers import plain; await plain.echo(n=1)"), {"n": 1})
        self.assertEqual(self.value("sorted(mcp_servers)"), ["git-hub", "plain"])

    def test_bridge_is_not_loaded_unless_needed(self):
        code = "import sys; [name for name in sys.modules if name.startswith('mcp') or name in ('asyncio', 'select')]"
        host = self.new_host((sys.executable, "-I", "-S", KERNEL))
        self.assertEqual(host.run(code).result, "[]")

    def test_preface_imports_little(self):
        host = self.new_host((sys.executable, "-I", "-S", KERNEL))
        host.preface()
        code = "import sys; [mcp_plain.__name__, *(name for name in ('json', 'asyncio') if name in sys.modules)]"
        self.assertEqual(host.run(code).result, "['mcp.servers.plain']")

    def test_modules_of_the_working_directory_are_not_imported(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("select", "json", "mcp_bridge", "mcp_bridge_calls", "inspect", "keyword", "difflib", "symtable", "textwrap"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            self.host = self.new_host((sys.executable, "-I", "-S", KERNEL), cwd=directory)
            self.host.preface()
            self.assertEqual(self.value("await mcp_git_hub.create_issue(title='a')"), {"title": "a"})
            self.run_error("mcp_git_hub.create", "UnknownTool")
            self.run_ok("def f(a): return a\n_ = save_tool(f)")


class InstalledPackageTest(BridgeTest):
    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        os.makedirs(os.path.join(directory.name, "mcp", "client"))
        files = {"__init__.py": "from .client.session import Session\nprint('run')", "client/__init__.py": "", "client/session.py": "import mcp.types\nclass Session: pass", "types.py": "Tool = 1"}
        for name, text in files.items():
            with open(os.path.join(directory.name, "mcp", name), "w") as file:
                file.write(text)
        self.host = self.new_host(cwd=directory.name)

    def test_modules_of_the_installed_package_are_importable(self):
        cell = self.run_ok("import mcp.runtime, mcp.types; from mcp.client.session import Session; mcp.types.Tool")
        self.assertEqual((cell.result, cell.stdout), ("1", ""))

    def test_exports_of_the_installed_package_are_loaded_on_demand(self):
        cell = self.run_ok("import mcp.runtime; from mcp import Session; mcp.Session is Session, mcp.runtime.MCPError.__name__")
        self.assertEqual((cell.result, cell.stdout), ("(True, 'MCPError')", "run\n"))
        self.assertEqual(self.value("from mcp.servers import plain; await plain.echo(a=1)"), {"a": 1})
