// The servers that this session may call, and what their tools are called.

import { inspect } from 'node:util';

import { globals } from './kernel_output.mjs';
import { MCPError } from './mcp_values.mjs';

const { Map, Object, Proxy, Reflect, Set, String } = globals;

const MAX_NAMES_IN_ERROR = 30;
// Asked for by `await` and `JSON.stringify`: a tool of such a name takes `mcp.callTool`.
export const NOT_NAMES = new Set(['then', 'toJSON']);

export class Servers {
  #calls;
  #told = null; // those of the preface; until one comes, the host is asked
  #lists = new Map(); // by server: { version, tools, byName }
  #pending = new Map(); // lists that are asked for in this cell

  constructor(calls) {
    this.#calls = calls;
  }

  tell(servers) {
    this.#told = servers;
    for (const [name, { version }] of this.#lists) {
      if (!servers.some((it) => it.name === name && it.version === version)) this.#lists.delete(name);
    }
  }

  // What was asked for in another cell may never come.
  begin() {
    this.#pending.clear();
    if (!this.#told) this.#lists.clear();
  }

  get loaded() {
    return this.#told ?? [];
  }

  // A server by its name or any of its aliases.
  async find(wanted) {
    const all = this.#told ?? (await this.#calls.ask('servers/list')).servers.filter((it) => it.loaded);
    const found = pick(all, wanted);
    if (found) return found;
    const names = all.map((it) => it.alias).join(', ') || 'none';
    const message = `no server ${quote(wanted)} is loaded here: name it in \`servers\` of the call (loaded: ${names})`;
    throw new MCPError(message, { server: String(wanted), kind: 'not_found' });
  }

  // The tools of a server that has been found: { tools, byName }.
  list({ name }) {
    const known = this.#lists.get(name);
    if (known) return known;
    const pending = this.#pending.get(name) ?? this.lookUp(name).finally(() => this.#pending.delete(name));
    this.#pending.set(name, pending);
    return pending;
  }

  // The same, for any server that the caller may see, loaded or not: { server, tools, byName }.
  async lookUp(wanted) {
    const loaded = pick(this.loaded, wanted);
    const { server, tools } = await this.#calls.ask('tools/list', { server: loaded?.name ?? String(wanted) });
    const list = { server, version: loaded?.version, tools, byName: indexTools(tools) };
    if (loaded || !this.#told) this.#lists.set(server.name, list);
    return list;
  }

  forget({ name }) {
    this.#lists.delete(name);
  }

  // The names of the tools of a server, as far as they have been asked for.
  knownTools(wanted) {
    const server = pick(this.loaded, wanted);
    const list = server && this.#lists.get(server.name);
    return list ? list.tools.map((it) => nameOfTool(it, list)) : [];
  }
}

function pick(servers, wanted) {
  const ways = [(it) => it.name, (it) => it.alias, (it) => camelCase(it.alias)];
  for (const way of ways) {
    const found = servers.find((it) => way(it) === wanted);
    if (found) return found;
  }
  return undefined;
}

// Exact names go before aliases, and those before what is made of either.
function indexTools(tools) {
  const byName = new Map();
  for (const way of [(it) => it.name, (it) => it.alias, (it) => camelCase(it.alias), (it) => camelCase(it.name)]) {
    for (const tool of tools) {
      const name = way(tool);
      if (name && !byName.has(name)) byName.set(name, tool);
    }
  }
  return byName;
}

// How JavaScript would call it.
export function nameOfTool(tool, { byName }) {
  const names = [camelCase(tool.name), camelCase(tool.alias)];
  return names.find((it) => byName.get(it) === tool) ?? tool.name;
}

export function namesInError(list) {
  const names = list.tools.map((it) => nameOfTool(it, list));
  const more = names.length - MAX_NAMES_IN_ERROR;
  return [...names.slice(0, MAX_NAMES_IN_ERROR), ...(more > 0 ? [`and ${more} more`] : [])].join(', ');
}

// create_issue, create-issue and CreateIssue → createIssue; _2d_view → _2dView
export function camelCase(name = '') {
  const [, edge, rest] = /^(_*)(.*)$/s.exec(name);
  const joined = rest.replace(/[^\p{L}\p{N}$]+(.|$)/gu, (_, next) => next.toUpperCase());
  return edge + joined.replace(/^\p{Lu}(?!\p{Lu})/u, (first) => first.toLowerCase());
}

// A server's tools as functions. The names are not known before the host is asked, so any will do until it is called.
export function makeServer(wanted, servers, callTool) {
  const functions = new Map();
  const makeTool = (tool) => {
    const call = (args, options) => callTool(wanted, tool, args, options);
    return Object.defineProperty(call, 'name', { value: `${wanted}.${tool}` });
  };
  const tool = (name) => functions.get(name) ?? functions.set(name, makeTool(name)).get(name);
  const describe = () => {
    const names = servers.knownTools(wanted).join(', ') || `await mcp.listTools(${quote(wanted)}) tells its tools`;
    return `mcp.${wanted} { ${names} }`;
  };
  const target = Object.defineProperty({}, inspect.custom, { value: describe, configurable: true });
  const isName = (key) => typeof key === 'string' && !(key in target) && !NOT_NAMES.has(key);
  const isTool = (key) => isName(key) && servers.knownTools(wanted).includes(key);
  return new Proxy(target, {
    get: (_, key) => (isName(key) ? tool(key) : target[key]),
    has: (_, key) => key in target || isTool(key),
    ownKeys: () => [...new Set([...Reflect.ownKeys(target), ...servers.knownTools(wanted).filter(isName)])],
    getOwnPropertyDescriptor: (_, key) =>
      isTool(key)
        ? { value: tool(key), enumerable: true, configurable: true, writable: true }
        : Reflect.getOwnPropertyDescriptor(target, key),
  });
}

export const quote = (name) => `'${String(name)}'`;
