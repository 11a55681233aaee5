"""Results of tools and functions of `mcp.runtime` in the Python kernel."""

from bridge_host import CREATE_ISSUE, BridgeTest, Refusal, text_result


class ResultTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import mcp.runtime as runtime; mcp_plain.echo")

    def result(self, result, code="await mcp_plain.echo()"):
        self.state.call = lambda params: result
        return self.value(code)

    def test_text_is_parsed_if_it_is_a_json_object_or_array(self):
        self.assertEqual(self.result(text_result('{"a": [1]}')), {"a": [1]})
        self.assertEqual(self.result(text_result(' [1]\n')), [1])
        for text in ("words", "123", "123abc", "null", "true", '"a"', "{a}", "[1", "", "[" * 10_000):
            with self.subTest(text=text[:20]):
                self.assertEqual(self.result(text_result(text)), text)
        self.assertEqual(self.result(text_result("a", '{"b": 1}')), ["a", {"b": 1}])
        self.assertIsNone(self.result({"content": []}))

    def test_structured_content_takes_precedence(self):
        result = {**text_result("text"), "structuredContent": {"a": 1}}
        self.assertEqual(self.result(result), {"a": 1})
        self.assertEqual(self.result(result, "await runtime.call_tool('plain', 'echo', raw=True)"), result)

    def test_binary_parts_are_blobs(self):
        image = {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
        blob = {"type": "resource", "resource": {"uri": "file:///a", "blob": "AAE=", "mimeType": "application/zip"}}
        page = {"type": "resource", "resource": {"uri": "file:///a", "text": "words"}}
        link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
        broken = {"type": "image", "data": 5, "mimeType": "image/png"}
        code = "x = await mcp_plain.echo(); [(bytes(p), p.mime_type, p.uri) if isinstance(p, bytes) else p for p in x]"
        found = self.result({"content": [image, blob, page, link, broken, {"type": "text", "text": "t"}]}, code)
        self.assertEqual(found, [(b"\x89PNG", "image/png", None), (b"\0\1", "application/zip", "file:///a"), "words", link, broken, "t"])
        self.state.call = lambda params: {"content": [image]}
        shown = self.run_ok("await mcp_plain.echo()").shown
        self.assertEqual(shown, [{"mime": "image/png", "data": "iVBORw=="}])

    def test_error_of_a_tool_raises(self):
        result = {**text_result("no such", "issue"), "isError": True}
        self.state.call = lambda params: result
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
        self.state.call = lambda params: {"isError": True}
        self.assertIn("without a message", self.run_error("await mcp_plain.echo()", "MCPError").error["message"])


class RuntimeTest(BridgeTest):
    def setUp(self):
        super().setUp()
        self.run_ok("import mcp.runtime as runtime")

    def test_every_function_exists_and_has_a_docstring(self):
        code = "[name for name in dir(runtime) if not (getattr(runtime, name).__doc__ or '').strip()]"
        self.assertEqual(self.value(code), [])
        self.assertEqual(self.value("[f.__module__ for f in (runtime.save_tool, runtime.MCPError, runtime.Blob)]"), ["mcp.runtime"] * 3)
        summary = self.value("runtime.capability_summary()")
        for name in ("save_tool", "search_tool_docs", "load_memory", "mcp_<alias>"):
            self.assertIn(name, summary)

    def test_servers_and_tools_are_listed(self):
        self.assertEqual(self.value("await runtime.list_servers()"), ["git-hub", "plain"])
        self.assertEqual(self.value("runtime.discovered_servers()"), ["git-hub", "plain", "far"])
        self.assertEqual(self.value("[s['loaded'] for s in runtime.discovered_servers(detailed=True)]"), [True, True, False])
        self.assertEqual(self.value("[s['alias'] for s in runtime.list_loaded_server_metadata()]"), ["git_hub", "plain"])
        self.assertEqual(self.value("d = runtime.describe_server('git_hub'); d['name'], d['tools'][0]"), ("git-hub", {"name": "create-issue", "alias": "create_issue", "description": "Opens an issue."}))
        self.assertEqual(self.value("runtime.describe_server('git_hub')['cwd']"), "/srv/project")
        for code in ("await runtime.list_tools('plain')", "runtime.list_tools_sync(mcp_plain)"):
            self.assertEqual([found["name"] for found in self.value(code)], ["echo", "wait"])

    def test_tools_are_called_by_name(self):
        self.assertEqual(self.value("await runtime.call_tool('plain', 'echo', {'a': 1})"), {"a": 1})
        self.assertEqual(self.value("runtime.call_tool_sync(mcp_plain, 'echo')"), {})

    def test_docs_have_summary_and_full_detail(self):
        for code in ("await runtime.query_tool_docs('git-hub', 'create_issue', {})", "runtime.query_tool_docs_sync('git-hub', 'create-issue', {})"):
            summary = self.value(code.format("detail='summary'"))
            names = {"server": "git-hub", "server_alias": "git_hub", "tool": "create-issue", "alias": "create_issue"}
            common = {"serverAlias": "git_hub", "toolAlias": "create_issue"}
            self.assertEqual(summary, {**names, **common, "description": "Opens an issue."})
            full = self.value(code.format("detail='full'"))
            self.assertEqual([full["inputSchema"], full["input_schema"]], [CREATE_ISSUE["inputSchema"]] * 2)
            self.assertEqual({key: full[key] for key in common}, common)
        self.assertEqual(len(self.value("await runtime.query_tool_docs('git-hub')")), 2)
        self.assertIn("did you mean", self.run_error("runtime.query_tool_docs_sync('git-hub', 'create')", "UnknownTool").error["message"])
        self.run_error("runtime.query_tool_docs_sync('git-hub', detail='all')", "ValueError")

    def test_search_checks_its_parameters(self):
        found = {"server": "git-hub", "server_alias": "git_hub", "tool": "create-issue", "alias": "create_issue"}
        found |= {"serverAlias": "git_hub", "toolAlias": "create_issue", "query": "open issue"}
        self.assertEqual(self.value("await runtime.search_tool_docs('open issue')"), [{**found, "limit": 5}])
        self.assertEqual(self.host.calls[-1]["params"]["detail"], "summary")
        schema = CREATE_ISSUE["inputSchema"]
        self.assertEqual(
            self.value("runtime.search_tool_docs_sync('open issue', limit=20, detail='full')"),
            [{**found, "limit": 20, "inputSchema": schema, "input_schema": schema}],
        )
        for limit in (0, 21, "5"):
            self.run_error(f"runtime.search_tool_docs_sync('a', limit={limit!r})", "ValueError")

    def test_memory_is_saved_loaded_updated_and_deleted(self):
        self.assertEqual(self.value("runtime.load_memory('a'), runtime.load_memory('a', 5), runtime.memory_exists('a')"), (None, 5, False))
        self.run_ok("runtime.save_memory('a', {'n': [1]}, metadata={'by': 'me'})")
        self.assertEqual(self.value("runtime.load_memory('a', default=5), runtime.memory_exists('a')"), ({"n": [1]}, True))
        self.assertEqual(self.value("runtime.update_memory('a', lambda old: old['n'] + [2])"), [1, 2])
        self.assertEqual(self.state.memories["a"], {"key": "a", "value": [1, 2], "metadata": {"by": "me"}})
        self.assertEqual(self.value("runtime.update_memory('new', lambda n: n + 1, default=0)"), 1)
        self.assertEqual(self.value("[m['key'] for m in runtime.list_memories()]"), ["a", "new"])
        self.assertEqual(self.value("runtime.get_memory_info('a'), runtime.get_memory_info('x')"), ({"key": "a", "size": 1}, None))
        self.assertEqual(self.value("runtime.delete_memory('a'), runtime.delete_memory('a')"), (True, False))
        self.run_error("runtime.update_memory('a', 5)", "TypeError")


class AliasTest(BridgeTest):
    def test_tool_is_called_by_its_alias(self):
        def respond(params):
            if params["tool"] == "create_issue":
                raise Refusal("not_found", "no tool create_issue")
            return text_result(params["tool"])

        self.state.call = respond
        self.run_ok("import mcp.runtime as runtime")
        for code in ("await runtime.call_tool('git-hub', 'create_issue')", "runtime.call_tool_sync('git-hub', 'create_issue')"):
            self.assertEqual(self.value(code), "create-issue")
