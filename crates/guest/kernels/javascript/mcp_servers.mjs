// The servers that this session may call, and the names of their tools.

import { inspect } from 'node:util';

import { globals } from './kernel_output.mjs';
import { MCPError } from './mcp_results.mjs';

const { Map, Object, Proxy, Reflect, Set, String } = globals;

const MAX_NAMES_IN_ERROR = 30;
// Looked up by `await` and `JSON.stringify`: a tool of such a name needs `mcp.callTool`.
export const EXCLUDED_NAMES = new Set(['then', 'toJSON']);
// On a server without a tool of this name, they list its tools.
const LISTING_NAMES = new Set(['listTools', 'list_tools']);

export class Servers {
  #calls;
  #fromPreface = null; // without a preface the host is queried
  #lists = new Map(); // by server: { version, tools, byName }
  #pending = new Map(); // lists requested in this cell

  constructor(calls) {
    this.#calls = calls;
  }

  refresh(servers) {
    this.#fromPreface = servers;
    for (const [name, { version }] of this.#lists) {
      const isCurrent = servers.some((server) => server.name === name && server.version === version);
      if (!isCurrent) this.#lists.delete(name);
    }
  }

  // A list that was requested in another cell may never arrive.
  startCell() {
    this.#pending.clear();
    if (!this.#fromPreface) this.#lists.clear();
  }

  get loaded() {
    return this.#fromPreface ?? [];
  }

  // Finds a server by its name or any of its aliases.
  async find(name) {
    const all = this.#fromPreface ?? (await this.#calls.call('servers/list')).servers.filter(({ loaded }) => loaded);
    const found = pick(all, name);
    if (found) return found;
    const names = all.map(({ alias }) => alias).join(', ') || 'none';
    const problem = `the server ${quote(name)} is not loaded in this session (loaded: ${names})`;
    const message = `${problem}; hint: name it in \`servers\` of the call`;
    throw new MCPError(message, { server: String(name), kind: 'not_found' });
  }

  // Returns the tools of a server that `find` has returned: { tools, byName }.
  list({ name }) {
    const known = this.#lists.get(name);
    if (known) return known;
    const pending = this.#pending.get(name) ?? this.lookUp(name).finally(() => this.#pending.delete(name));
    this.#pending.set(name, pending);
    return pending;
  }

  // The same for any server that the caller may see, loaded or not: { server, tools, byName }.
  async lookUp(name) {
    const loaded = pick(this.loaded, name);
    const { server, tools } = await this.#calls.call('tools/list', { server: loaded?.name ?? String(name) });
    const list = { server, version: loaded?.version, tools, byName: indexTools(tools) };
    if (loaded || !this.#fromPreface) this.#lists.set(server.name, list);
    return list;
  }

  dropList({ name }) {
    this.#lists.delete(name);
  }

  // Returns the names of the tools of a server, if they have been requested already.
  knownTools(name) {
    const server = pick(this.loaded, name);
    const list = server && this.#lists.get(server.name);
    return list ? list.tools.map((tool) => nameOfTool(tool, list)) : [];
  }
}

function pick(servers, name) {
  const keys = [(server) => server.name, (server) => server.alias, (server) => camelCase(server.alias)];
  for (const key of keys) {
    const found = servers.find((server) => key(server) === name);
    if (found) return found;
  }
  return undefined;
}

// Exact names take precedence over aliases, and both over their camel case.
function indexTools(tools) {
  const byName = new Map();
  const keys = [
    (tool) => tool.name, (tool) => tool.alias, (tool) => camelCase(tool.alias), (tool) => camelCase(tool.name),
  ];
  for (const key of keys) {
    for (const tool of tools) {
      const name = key(tool);
      if (name && !byName.has(name)) byName.set(name, tool);
    }
  }
  return byName;
}

// Returns the name of a tool in the style of JavaScript.
export function nameOfTool(tool, { byName }) {
  const names = [camelCase(tool.name), camelCase(tool.alias)];
  return names.find((name) => byName.get(name) === tool) ?? tool.name;
}

export function namesInError(list) {
  const names = list.tools.map((tool) => nameOfTool(tool, list));
  const more = names.length - MAX_NAMES_IN_ERROR;
  return [...names.slice(0, MAX_NAMES_IN_ERROR), ...(more > 0 ? [`and ${more} more`] : [])].join(', ');
}

// create_issue, create-issue and CreateIssue → createIssue; _2d_view → _2dView
export function camelCase(name = '') {
  const [, edge, rest] = /^(_*)(.*)$/s.exec(name);
  const joined = rest.replace(/[^\p{L}\p{N}$]+(.|$)/gu, (_, next) => next.toUpperCase());
  return edge + joined.replace(/^\p{Lu}(?!\p{Lu})/u, (first) => first.toLowerCase());
}

// Returns a server's tools as functions. Their names are unknown until the host is queried, so every name is a function.
export function makeServer(server, servers, callTool) {
  const functions = new Map();
  const makeTool = (tool) => {
    const fallback = LISTING_NAMES.has(tool) ? (list) => list.tools : undefined;
    const call = (args, options) => callTool(server, tool, args, options, fallback);
    return Object.defineProperty(call, 'name', { value: `${server}.${tool}` });
  };
  const tool = (name) => functions.get(name) ?? functions.set(name, makeTool(name)).get(name);
  const describe = () => {
    const names = servers.knownTools(server).join(', ') || `await mcp.listTools(${quote(server)}) lists its tools`;
    return `mcp.${server} { ${names} }`;
  };
  const target = Object.defineProperty({}, inspect.custom, { value: describe, configurable: true });
  const isName = (key) => typeof key === 'string' && !(key in target) && !EXCLUDED_NAMES.has(key);
  const isTool = (key) => isName(key) && servers.knownTools(server).includes(key);
  return new Proxy(target, {
    get: (_, key) => (isName(key) ? tool(key) : target[key]),
    has: (_, key) => key in target || isTool(key),
    ownKeys: () => [...new Set([...Reflect.ownKeys(target), ...servers.knownTools(server).filter(isName)])],
    getOwnPropertyDescriptor: (_, key) =>
      isTool(key)
        ? { value: tool(key), enumerable: true, configurable: true, writable: true }
        : Reflect.getOwnPropertyDescriptor(target, key),
  });
}

export const quote = (name) => `'${String(name)}'`;
