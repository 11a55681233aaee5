// What there is to call: lists, search, and how each tool is called.

import { globals } from './kernel_output.mjs';
import { camelCase, nameOfTool, namesInError, quote } from './mcp_servers.mjs';
import { MCPError } from './mcp_values.mjs';

const { Array, Object, Set, String } = globals;

// `pathOf(alias)` is how code gets to a server.
export function makeLookups(calls, servers, pathOf) {
  const pathTo = (alias, tool) => pathOf(alias) + (isIdentifier(tool) ? `.${tool}` : `[${quote(tool)}]`);
  const describe = (tool, list, detail) => {
    const { name, description, inputSchema } = tool;
    const call = `${pathTo(list.server.alias, nameOfTool(tool, list))}(${argumentsOf(tool)})`;
    return { server: list.server.name, tool: name, call, description, ...(detail === 'full' && { inputSchema }) };
  };
  return {
    listServers: async () => (await calls.ask('servers/list')).servers,
    listTools: async (server) => (await servers.lookUp(server)).tools,
    searchTools: async (query, { limit = 5, detail = 'summary' } = {}) => {
      const { tools } = await calls.ask('tools/search', { query: String(query), limit, detail });
      return tools.map((it) => ({ ...it, call: pathTo(it.server_alias, camelCase(it.alias)) }));
    },
    docs: async (server, tool, { detail = 'summary' } = {}) => {
      const list = await servers.lookUp(server);
      if (tool === undefined) return list.tools.map((it) => describe(it, list, detail));
      const known = list.byName.get(tool);
      if (known) return describe(known, list, detail);
      const message = `${server} has no tool ${quote(tool)} (it has: ${namesInError(list)})`;
      throw new MCPError(message, { server, tool, kind: 'not_found' });
    },
  };
}

// { title, body? }
export function argumentsOf({ inputSchema }) {
  const required = new Set(Array.isArray(inputSchema?.required) ? inputSchema.required : []);
  const names = Object.keys(inputSchema?.properties ?? {}).sort((a, b) => required.has(b) - required.has(a));
  const written = names.map((it) => (isIdentifier(it) ? it : quote(it)) + (required.has(it) ? '' : '?'));
  return names.length ? `{ ${written.join(', ')} }` : '';
}

const isIdentifier = (name) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name);
