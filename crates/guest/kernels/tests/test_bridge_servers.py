"""Tests of what cells see of servers: proxies, signatures, results, the package `mcp`, prefaces, runtime helpers."""

import marshal
import os
import re
import socket
import subprocess
import sys
import tempfile

from bridge_host import CREATE_ISSUE, GITHUB, PLAIN, BridgeTest, Refusal, World, text_result, tool
from kernel_host import DEADLINE_S, KERNEL, Host


class ProxyTest(BridgeTest):
    def test_one_server_by_all_its_names(self):
        code = """
            from mcp.servers import git_hub
            import mcp.servers.git_hub as module
            import mcp, mcp.runtime
            found = mcp_git_hub, mcp_servers['git-hub'], mcp_servers['git_hub'], git_hub, module, mcp.servers.git_hub
            len({id(one) for one in found}), LOADED_MCP_SERVERS, mcp.runtime.LOADED_MCP_SERVERS, list(mcp_servers)
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

    def test_arguments(self):
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue(title='a')"), {"title": "a"})
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue({'title': 'a', 'from': 1}, labels=[])"), {"title": "a", "from": 1, "labels": []})
        self.assertEqual(self.arguments("await mcp_git_hub.create_issue(title='a', from_=2, state=None, note=None)"), {"title": "a", "from": 2, "note": None})
        self.assertEqual(self.arguments("await mcp_plain.echo(**{'any-thing': 1})"), {"any-thing": 1})
        sent = len(self.host.calls)
        cases = [("", "is missing title"), ("'a'", "or one dict"), ("title='a', titel='b'", "did you mean title")]
        for given, said in cases:
            with self.subTest(given=given):
                cell = self.run_error(f"await mcp_git_hub.create_issue({given})", "TypeError")
                self.assertIn(said, cell.error["message"])
                self.assertNotIn("mcp_bridge", cell.error["traceback"])
        self.assertEqual(len(self.host.calls), sent)

    def test_any_name_is_reached(self):
        odd = ["a b", "__class__", "TOOLS", "class", "12"]
        self.world.tools["plain"] = [tool(name, f"alias_{n}") for n, name in enumerate(odd)]
        self.world.tools["plain"][1]["alias"] = "__class__"
        for name in odd:
            self.run_ok(f"await mcp_plain[{name!r}]()")
            self.assertEqual(self.host.calls[-1]["params"]["tool"], name)
        self.run_ok("await mcp_git_hub.class_()")
        self.assertEqual(self.value("dir(mcp_git_hub)"), ["TOOLS", "TOOL_MAP", "class_", "create_issue"])
        self.assertEqual(self.value("list(mcp_git_hub), 'create-issue' in mcp_git_hub"), (["create-issue", "class"], True))

    def test_an_unknown_tool_names_what_is_near(self):
        cell = self.run_error("mcp_git_hub.create_isue", "UnknownTool")
        self.assertIn("did you mean create_issue", cell.error["message"])
        self.assertEqual(self.value("hasattr(mcp_git_hub, 'nothing'), getattr(mcp_git_hub, 'x', 1)"), (False, 1))
        self.run_ok("import mcp.runtime\ntry: mcp_git_hub['x']\nexcept mcp.runtime.MCPError as e: assert e.kind == 'not_found'")

    def test_tools_are_asked_for_once_and_only_if_needed(self):
        self.run_ok("mcp_git_hub, mcp_servers, LOADED_MCP_SERVERS; repr(mcp_git_hub); hasattr(mcp_git_hub, '__iter__')")
        self.assertEqual(self.methods(), [])
        self.assertEqual(self.value("[tool['name'] for tool in mcp_git_hub.TOOLS]"), ["create-issue", "class"])
        self.assertEqual(self.value("list(mcp_git_hub.TOOL_MAP)"), ["create_issue", "class_"])
        self.assertEqual(self.methods(), ["tools/list"])

    def test_a_server_that_is_not_loaded(self):
        for code, name in [("mcp_servers['far']", "KeyError"), ("from mcp.servers import far", "ImportError"), ("import mcp.servers.far", "ImportError")]:
            with self.subTest(code=code):
                self.assertIn("'far' is not loaded", self.run_error(code, name).error["message"])
        self.assertEqual(self.value("'far' in mcp_servers, mcp_servers.get('far', 1)"), (False, 1))


class PrefaceTest(BridgeTest):
    def test_servers_come_and_go(self):
        self.run_ok("kept = mcp_plain")
        del self.world.servers["git-hub"]
        self.world.servers["new"] = {"name": "new", "alias": "new", "description": "", "version": "1"}
        self.world.tools["new"] = [tool("act")]
        self.host.preface()
        self.assertEqual(self.value("LOADED_MCP_SERVERS, kept is mcp_plain, await mcp_new.act(a=1)"), (("plain", "new"), True, {"a": 1}))
        self.run_error("mcp_git_hub", "NameError")

    def test_a_new_version_of_its_tools_is_asked_for(self):
        self.run_ok("mcp_plain.echo")
        self.world.tools["plain"] = [tool("fresh")]
        self.host.preface()
        self.run_ok("mcp_plain.echo")
        self.world.servers["plain"] = {**PLAIN, "version": "2"}
        self.host.preface()
        self.run_ok("mcp_plain.fresh")
        self.run_error("mcp_plain.echo", "UnknownTool")

    def test_names_of_the_user_are_left_alone(self):
        self.run_ok("mcp_plain = mcp_servers = save_tool = 5")
        self.host.preface({"servers": [PLAIN, GITHUB]})
        self.assertEqual(self.value("mcp_plain, mcp_servers, save_tool, LOADED_MCP_SERVERS"), (5, 5, 5, ("plain", "git-hub")))

    def test_a_preface_that_makes_no_sense_is_rejected(self):
        for preface in ([], {"servers": [{}]}, {"saved": 5}):
            self.host.preface(preface)
            self.assertEqual(self.host.frame()["type"], "rejected")
        self.host.preface()
        self.assertEqual(self.value("LOADED_MCP_SERVERS"), ("git-hub", "plain"))


class NoPrefaceTest(BridgeTest):
    HAS_PREFACE = False

    def test_the_host_is_asked(self):
        self.run_error("mcp_servers", "NameError")
        self.assertEqual(self.value("import mcp.runtime as runtime; runtime.list_servers_sync()"), ["git-hub", "plain"])
        self.assertEqual(self.value("from mcp.servers import plain; await plain.echo(n=1)"), {"n": 1})
        self.assertEqual(self.value("sorted(mcp_servers)"), ["git-hub", "plain"])

    def test_nothing_is_loaded_unless_asked_for(self):
        code = "import sys; [name for name in sys.modules if name.startswith('mcp') or name in ('asyncio', 'select')]"
        host = self.new_host((sys.executable, "-I", "-S", KERNEL))
        self.assertEqual(host.run(code).result, "[]")

    def test_a_preface_needs_little(self):
        host = self.new_host((sys.executable, "-I", "-S", KERNEL))
        host.preface()
        code = "import sys; [mcp_plain.__name__, *(name for name in ('json', 'asyncio') if name in sys.modules)]"
        self.assertEqual(host.run(code).result, "['mcp.servers.plain']")

    def test_modules_of_the_working_directory_do_not_get_in_the_way(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("select", "json", "mcp_bridge", "mcp_bridge_calls", "inspect", "keyword", "difflib", "symtable", "textwrap"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            self.host = self.new_host((sys.executable, "-I", "-S", KERNEL), cwd=directory)
            self.host.preface()
            self.assertEqual(self.value("await mcp_git_hub.create_issue(title='a')"), {"title": "a"})
            self.run_error("mcp_git_hub.create", "UnknownTool")
            self.run_ok("def f(a): return a\n_ = save_tool(f)")


class ColdTest(BridgeTest):
    """As in a session without a warm interpreter: start.py takes the kernel from its socket."""

    def setUp(self):
        self.world = World()
        self.programs = {}
        guest = os.path.dirname(KERNEL)
        for name in os.listdir(guest):
            if name.endswith(".py"):
                with open(os.path.join(guest, name)) as file:
                    self.programs[name[:-3]] = file.read()
        sources = {"loader": self.programs["loader"]}
        for name in ("kernel", "mcp_bridge"):
            self.add_with_needs(name, sources)
        self.text = "\0".join(word for item in sources.items() for word in item).encode()

    def add_with_needs(self, name, sources):
        """In the order in which the host has them: each needs those before it at most."""
        for needed in re.findall(r"^(?:import|from) ((?:kernel|mcp_bridge)_\w+)", self.programs[name], re.MULTILINE):
            self.add_with_needs(needed, sources)
        sources.setdefault(name, self.programs[name])

    def compile(self):
        command = [sys.executable, "-I", "-S", "-c", self.programs["precompile"]]
        return subprocess.run(command, input=self.text, capture_output=True, check=True, timeout=DEADLINE_S).stdout

    def check(self, first, cwd=None):
        command = (sys.executable, "-I", "-S", "-c", self.programs["bootstrap"])
        self.host = self.new_host(command, cwd=cwd, first=first)
        self.assertEqual(self.value("await mcp_plain.echo(n=1)"), {"n": 1})
        self.assertIn("Saves a function for later sessions", self.run_ok("help(save_tool)").stdout)
        self.assertNotIn("mcp_bridge", self.run_error("await mcp_git_hub.create_issue()", "TypeError").traceback)
        self.assertNotIn("kernel", self.run_error("1 / 0", "ZeroDivisionError").traceback)

    def test_it_comes_compiled(self):
        self.check(self.compile())

    def test_it_comes_as_text(self):
        self.check(b"\n" + self.text)

    def test_what_another_interpreter_compiled_is_taken_from_its_text(self):
        _, _, parts = self.compile().partition(b"\n")
        *_, text = marshal.loads(parts)
        self.check(b"'another'\n" + marshal.dumps((b"unreadable", b"unreadable", b"unreadable", text), 2))

    def test_modules_of_the_working_directory_do_not_get_in_the_way(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("kernel", "kernel_output", "marshal", "mcp_bridge", "zlib"):
                with open(os.path.join(directory, f"{name}.py"), "w") as file:
                    file.write("raise SystemError")
            self.check(self.compile(), cwd=directory)
            self.run_error("import kernel", "SystemError")  # the guest's own

    def test_a_host_that_goes_away_meanwhile_ends_it(self):
        command = (sys.executable, "-I", "-S", "-c", self.programs["bootstrap"])
        host = Host(command)
        self.addCleanup(host.close)
        host.socket.sendall(b"\0\1\0\0half")
        host.socket.shutdown(socket.SHUT_WR)
        self.assertEqual(host.process.wait(DEADLINE_S), 0)


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

    def test_its_modules_stay_importable(self):
        cell = self.run_ok("import mcp.runtime, mcp.types; from mcp.client.session import Session; mcp.types.Tool")
        self.assertEqual((cell.result, cell.stdout), ("1", ""))

    def test_what_it_exports_is_there_when_asked_for(self):
        cell = self.run_ok("import mcp.runtime; from mcp import Session; mcp.Session is Session, mcp.runtime.MCPError.__name__")
        self.assertEqual((cell.result, cell.stdout), ("(True, 'MCPError')", "run\n"))
        self.assertEqual(self.value("from mcp.servers import plain; await plain.echo(a=1)"), {"a": 1})


class ResultTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import mcp.runtime as runtime; mcp_plain.echo")

    def result(self, result, code="await mcp_plain.echo()"):
        self.world.call = lambda params: result
        return self.value(code)

    def test_texts(self):
        self.assertEqual(self.result(text_result('{"a": [1]}')), {"a": [1]})
        self.assertEqual(self.result(text_result(' [1]\n')), [1])
        for text in ("words", "123", "123abc", "null", "true", '"a"', "{a}", "[1", "", "[" * 10_000):
            with self.subTest(text=text[:20]):
                self.assertEqual(self.result(text_result(text)), text)
        self.assertEqual(self.result(text_result("a", '{"b": 1}')), ["a", {"b": 1}])
        self.assertIsNone(self.result({"content": []}))

    def test_structured_content_comes_first(self):
        result = {**text_result("text"), "structuredContent": {"a": 1}}
        self.assertEqual(self.result(result), {"a": 1})
        self.assertEqual(self.result(result, "await runtime.call_tool('plain', 'echo', raw=True)"), result)

    def test_binary_parts(self):
        image = {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
        blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "AAE=", "mimeType": "application/zip"}}
        page = {"type": "resource", "resource": {"uri": "file:///a", "text": "words"}}
        link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
        broken = {"type": "image", "data": 5, "mimeType": "image/png"}
        code = "x = await mcp_plain.echo(); [(bytes(p), p.mime_type, p.uri) if isinstance(p, bytes) else p for p in x]"
        found = self.result({"content": [image, blob, page, link, broken, {"type": "text", "text": "t"}]}, code)
        self.assertEqual(found, [(b"\x89PNG", "image/png", None), (b"\0\1", "application/zip", "file:///a"), "words", link, broken, "t"])
        self.world.call = lambda params: {"content": [image]}
        shown = self.run_ok("await mcp_plain.echo()").shown
        self.assertEqual(shown, [{"mime": "image/png", "data": "iVBORw=="}])

    def test_an_error_of_a_tool(self):
        result = {**text_result("no such", "issue"), "isError": True}
        self.world.call = lambda params: result
        cell = self.run_error("await mcp_plain.echo()", "MCPError")
        self.assertEqual(cell.error["message"], "no such\nissue")
        self.assertEqual(cell.error["traceback"].count("File "), 1)
        code = """
            try: await mcp_plain.echo()
            except runtime.MCPError as error: caught = error
            caught.kind, caught.server, caught.tool, caught.data, caught.may_have_run
            """
        self.assertEqual(self.value(code), ("tool", "plain", "echo", result, False))
        self.assertEqual(self.value("await runtime.call_tool('plain', 'echo', raw=True)"), result)
        self.world.call = lambda params: {"isError": True}
        self.assertIn("without a message", self.run_error("await mcp_plain.echo()", "MCPError").error["message"])


class RuntimeTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import mcp.runtime as runtime")

    def test_every_helper_is_there_and_explained(self):
        code = "[name for name in dir(runtime) if not (getattr(runtime, name).__doc__ or '').strip()]"
        self.assertEqual(self.value(code), [])
        self.assertEqual(self.value("[f.__module__ for f in (runtime.save_tool, runtime.MCPError, runtime.Blob)]"), ["mcp.runtime"] * 3)
        summary = self.value("runtime.capability_summary()")
        for name in ("save_tool", "search_tool_docs", "load_memory", "mcp_<alias>"):
            self.assertIn(name, summary)

    def test_servers_and_tools(self):
        self.assertEqual(self.value("await runtime.list_servers()"), ["git-hub", "plain"])
        self.assertEqual(self.value("runtime.discovered_servers()"), ["git-hub", "plain", "far"])
        self.assertEqual(self.value("[s['loaded'] for s in runtime.discovered_servers(detailed=True)]"), [True, True, False])
        self.assertEqual(self.value("[s['alias'] for s in runtime.list_loaded_server_metadata()]"), ["git_hub", "plain"])
        self.assertEqual(self.value("d = runtime.describe_server('git_hub'); d['name'], d['tools'][0]"), ("git-hub", {"name": "create-issue", "alias": "create_issue", "description": "Opens an issue."}))
        for code in ("await runtime.list_tools('plain')", "runtime.list_tools_sync(mcp_plain)"):
            self.assertEqual([found["name"] for found in self.value(code)], ["echo", "wait"])

    def test_calls_by_name(self):
        self.assertEqual(self.value("await runtime.call_tool('plain', 'echo', {'a': 1})"), {"a": 1})
        self.assertEqual(self.value("runtime.call_tool_sync(mcp_plain, 'echo')"), {})

    def test_docs(self):
        for code in ("await runtime.query_tool_docs('git-hub', 'create_issue', {})", "runtime.query_tool_docs_sync('git-hub', 'create-issue', {})"):
            summary = self.value(code.format("detail='summary'"))
            self.assertEqual(summary, {"server": "git-hub", "tool": "create-issue", "alias": "create_issue", "description": "Opens an issue."})
            self.assertEqual(self.value(code.format("detail='full'"))["inputSchema"], CREATE_ISSUE["inputSchema"])
        self.assertEqual(len(self.value("await runtime.query_tool_docs('git-hub')")), 2)
        self.assertIn("did you mean", self.run_error("runtime.query_tool_docs_sync('git-hub', 'create')", "UnknownTool").error["message"])
        self.run_error("runtime.query_tool_docs_sync('git-hub', detail='all')", "ValueError")

    def test_search(self):
        asked = {"query": "open issue", "limit": 5, "detail": "summary"}
        self.assertEqual(self.value("await runtime.search_tool_docs('open issue')"), [asked])
        self.assertEqual(self.value("runtime.search_tool_docs_sync('open issue', limit=20, detail='full')"), [{**asked, "limit": 20, "detail": "full"}])
        for limit in (0, 21, "5"):
            self.run_error(f"runtime.search_tool_docs_sync('a', limit={limit!r})", "ValueError")

    def test_memory(self):
        self.assertEqual(self.value("runtime.load_memory('a'), runtime.load_memory('a', 5), runtime.memory_exists('a')"), (None, 5, False))
        self.run_ok("runtime.save_memory('a', {'n': [1]}, metadata={'by': 'me'})")
        self.assertEqual(self.value("runtime.load_memory('a', default=5), runtime.memory_exists('a')"), ({"n": [1]}, True))
        self.assertEqual(self.value("runtime.update_memory('a', lambda old: old['n'] + [2])"), [1, 2])
        self.assertEqual(self.world.memories["a"], {"key": "a", "value": [1, 2], "metadata": {"by": "me"}})
        self.assertEqual(self.value("runtime.update_memory('new', lambda n: n + 1, default=0)"), 1)
        self.assertEqual(self.value("[m['key'] for m in runtime.list_memories()]"), ["a", "new"])
        self.assertEqual(self.value("runtime.get_memory_info('a'), runtime.get_memory_info('x')"), ({"key": "a", "size": 1}, None))
        self.assertEqual(self.value("runtime.delete_memory('a'), runtime.delete_memory('a')"), (True, False))
        self.run_error("runtime.update_memory('a', 5)", "TypeError")


class AliasTest(BridgeTest):
    def test_a_tool_is_called_by_its_alias_where_no_tool_has_that_name(self):
        def answer(params):
            if params["tool"] == "create_issue":
                raise Refusal("not_found", "no tool create_issue")
            return text_result(params["tool"])

        self.world.call = answer
        self.run_ok("import mcp.runtime as runtime")
        for code in ("await runtime.call_tool('git-hub', 'create_issue')", "runtime.call_tool_sync('git-hub', 'create_issue')"):
            self.assertEqual(self.value(code), "create-issue")
