// The global `mcp` of guest code.

import { inspect } from 'node:util';

import { globals } from './kernel_output.mjs';
import { argumentsOf, makeDiscovery } from './mcp_discovery.mjs';
import { EXCLUDED_NAMES, camelCase, makeServer, nameOfTool, namesInError, quote } from './mcp_servers.mjs';
import { MCPError, errorOfTool, valueOfResult } from './mcp_results.mjs';

const { Array, Map, Object, Proxy, String } = globals;

const HELP = `Tools of other servers, from code. All calls are async: await them; Promise.all runs several at once.
  await mcp.<server>.<toolInCamelCase>({ ...arguments }, { raw, timeout, signal })   timeout in seconds
  mcp.servers                       loaded servers; mcp.server(name) for names that are not identifiers or in use
  await mcp.listServers()           all servers; name one in \`servers\` of the call to load it
  await mcp.searchTools(query, { limit, detail: 'summary' | 'full' })
  await mcp.listTools(server), await mcp.<server>.listTools()      await mcp.docs(server, tool, { detail })
  await mcp.callTool(server, tool, { ...arguments }, { raw, timeout, signal })
  await mcp.memory.save(key, value), load(key), update(key, change), delete, list, exists, info
  await mcp.saveTool(fn)            saves a function's source; later sessions can call it by name
  await mcp.savedTools()            await mcp.deleteTool(name)
Results are plain values; images and other bytes are Buffers with a mimeType. A failed call throws mcp.MCPError.`;

export function makeGlobal(calls, servers, saved) {
  const callTool = makeCallTool(calls, servers);
  const proxies = new Map();
  const server = (name) => {
    const key = String(name);
    return proxies.get(key) ?? proxies.set(key, makeServer(key, servers, callTool)).get(key);
  };
  const pathOf = (alias) => {
    const name = camelCase(alias);
    return name in target ? `mcp.server(${quote(name)})` : `mcp.${name}`;
  };
  const discovery = makeDiscovery(calls, servers, pathOf);
  const tools = {
    saveTool: (run, options) => saved.save(run, options),
    savedTools: () => saved.list(),
    deleteTool: (name) => saved.delete(name),
  };
  const target = {
    MCPError,
    callTool: (server, tool, args, options) => callTool(server, tool, args, options),
    server,
    ...asActions(calls, 'mcp', { ...discovery, ...tools }),
    memory: asActions(calls, 'mcp.memory', makeMemory(calls)),
    help: () => `${HELP}\nLoaded: ${servers.loaded.map(({ alias }) => pathOf(alias)).join(', ') || 'none'}`,
    get servers() {
      return servers.loaded.map(({ alias }) => alias);
    },
  };
  const describe = () => `mcp { servers: [${target.servers.join(', ')}], see mcp.help() }`;
  Object.defineProperty(target, inspect.custom, { value: describe });
  const isServer = (key) => typeof key === 'string' && !(key in target) && !EXCLUDED_NAMES.has(key);
  return new Proxy(target, { get: (_, key) => (isServer(key) ? server(key) : target[key]) });
}

function asActions(calls, path, functions) {
  const wrap = ([name, act]) => [name, (...given) => calls.run(`${path}.${name}`, {}, () => act(...given))];
  return Object.fromEntries(Object.entries(functions).map(wrap));
}

// The returned function calls a tool. A server without a tool of this name handles it with `fallback(list)`, if given.
function makeCallTool(calls, servers) {
  return (server, tool, args = {}, { raw = false, timeout, signal } = {}, fallback) => {
    const about = { server: String(server), tool: String(tool) }; // until their exact names are known
    return calls.run(`${about.server}.${about.tool}`, about, async () => {
      const found = await servers.find(server);
      about.server = found.name;
      const list = await servers.list(found);
      const known = list.byName.get(tool);
      about.tool = known?.name ?? about.tool;
      if (!known && fallback) return fallback(list);
      if (!isPlain(args)) {
        const usage = known ? `${nameOfTool(known, list)}(${argumentsOf(known)})` : `${tool}({ … })`;
        throw new MCPError(`${tool} needs one object of arguments: ${usage}`, { ...about, kind: 'invalid' });
      }
      const params = { ...about, arguments: args, timeout };
      const result = await calls.call('tools/call', params, about, signal).catch((error) => {
        if (error.kind === 'not_found' && !known) {
          servers.dropList(found); // it may be outdated
          error.message += ` (tools of ${about.server}: ${namesInError(list)})`;
        }
        throw error;
      });
      if (raw) return result;
      if (result?.isError === true) throw errorOfTool(result, about);
      return valueOfResult(result);
    });
  };
}

function makeMemory(calls) {
  const load = (key) => calls.call('memory/load', { key });
  const info = (key) => calls.call('memory/info', { key });
  const save = (key, value, metadata) => calls.call('memory/save', { key, value: value ?? null, metadata });
  return {
    save,
    load: async (key, fallback = null) => {
      const { found, value } = await load(key);
      return found ? value : fallback;
    },
    // `change` is a function of the old value, or fields to merge into it, or a new value. Returns the new value.
    update: async (key, change, fallback = null) => {
      const { found, value, metadata } = await load(key);
      const old = found ? value : fallback;
      const isMerge = isPlain(old) && isPlain(change);
      const updated = typeof change === 'function' ? await change(old) : isMerge ? { ...old, ...change } : change;
      await save(key, updated, metadata);
      return updated;
    },
    delete: async (key) => (await calls.call('memory/delete', { key })).deleted,
    list: async () => (await calls.call('memory/list')).memories,
    exists: async (key) => (await info(key)).found,
    info: async (key) => {
      const { found, ...about } = await info(key);
      return found ? about : null;
    },
  };
}

const isPlain = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
