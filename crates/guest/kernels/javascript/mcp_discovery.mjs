// Discovery of servers and tools: lists, search and documentation.

import { globals } from './kernel_output.mjs';
import { camelCase, nameOfTool, namesInError, quote } from './mcp_servers.mjs';
import { MCPError } from './mcp_results.mjs';

const { Array, Object, Set, String } = globals;

// `pathOf(alias)` returns the expression for a server.
export function makeDiscovery(calls, servers, pathOf) {
  const pathTo = (alias, tool) => pathOf(alias) + (isIdentifier(tool) ? `.${tool}` : `[${quote(tool)}]`);
  const describe = (tool, list, detail) => {
    const { name, description, inputSchema } = tool;
    const call = `${pathTo(list.server.alias, nameOfTool(tool, list))}(${argumentsOf(tool)})`;
    const names = { server: list.server.name, server_alias: list.server.alias, tool: name, alias: tool.alias };
    return withCommonKeys({ ...names, call, description, ...(detail === 'full' && { inputSchema }) });
  };
  return {
    listServers: async () => (await calls.call('servers/list')).servers,
    listTools: async (server) => (await servers.lookUp(server)).tools,
    searchTools: async (query, { limit = 5, detail = 'summary' } = {}) => {
      const { tools } = await calls.call('tools/search', { query: String(query), limit, detail });
      const callOf = (found) => pathTo(found.server_alias, camelCase(found.alias));
      return tools.map((found) => withCommonKeys({ ...found, call: callOf(found) }));
    },
    docs: async (server, tool, { detail = 'summary' } = {}) => {
      const list = await servers.lookUp(server);
      if (tool === undefined) return list.tools.map((entry) => describe(entry, list, detail));
      const known = list.byName.get(tool);
      if (known) return describe(known, list, detail);
      const message = `the server ${server} has no tool ${quote(tool)} (tools: ${namesInError(list)})`;
      throw new MCPError(message, { server, tool, kind: 'not_found' });
    },
  };
}

// Adds the keys that other bridges for code use for the same values.
function withCommonKeys(doc) {
  const { server_alias: serverAlias, alias: toolAlias, inputSchema } = doc;
  return { ...doc, serverAlias, toolAlias, ...(inputSchema !== undefined && { input_schema: inputSchema }) };
}

// Returns the arguments of a tool for its documentation: { title, body? }.
export function argumentsOf({ inputSchema }) {
  const required = new Set(Array.isArray(inputSchema?.required) ? inputSchema.required : []);
  const names = Object.keys(inputSchema?.properties ?? {}).sort((a, b) => required.has(b) - required.has(a));
  const written = names.map((name) => (isIdentifier(name) ? name : quote(name)) + (required.has(name) ? '' : '?'));
  return names.length ? `{ ${written.join(', ')} }` : '';
}

const isIdentifier = (name) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name);
