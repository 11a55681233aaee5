// The global `mcp`, as the guest's code sees it.

import { inspect } from 'node:util';

import { argumentsOf, makeLookups } from './mcp_docs.mjs';
import { NOT_NAMES, camelCase, makeServer, nameOfTool, namesInError, quote } from './mcp_servers.mjs';
import { MCPError, errorOfTool, valueOfResult } from './mcp_values.mjs';

const HELP = `Tools of other servers, from code. All calls are async: await them; Promise.all runs them at once.
  await mcp.<server>.<toolInCamelCase>({ ...arguments }, { raw, timeout, signal })   timeout in seconds
  mcp.servers                       loaded here; mcp.server(name) for names that are no identifiers or taken
  await mcp.listServers()           all there are; name one in \`servers\` of the call to load it
  await mcp.searchTools(query, { limit, detail: 'summary' | 'full' })
  await mcp.listTools(server)       await mcp.docs(server, tool, { detail })
  await mcp.callTool(server, tool, { ...arguments }, { raw, timeout, signal })
  await mcp.memory.save(key, value), load(key), update(key, change), delete, list, exists, info
  await mcp.saveTool(fn)            keeps a function's source; later sessions call it by its name
  await mcp.savedTools()            await mcp.deleteTool(name)
Results are plain values, images and other bytes Buffers with a mimeType. Failures throw mcp.MCPError.`;

export function makeGlobal(ask, servers, saved) {
  const callTool = makeCallTool(ask, servers);
  const proxies = new Map();
  const server = (name) => {
    const key = String(name);
    return proxies.get(key) ?? proxies.set(key, makeServer(key, servers, callTool)).get(key);
  };
  const api = {
    MCPError,
    callTool,
    server,
    memory: makeMemory(ask),
    help: () => `${HELP}\nLoaded: ${servers.loaded.map((it) => pathOf(it.alias)).join(', ') || 'none'}`,
    saveTool: (run, options) => saved.save(run, options),
    savedTools: () => saved.list(),
    deleteTool: (name) => saved.delete(name),
    ...makeLookups(ask, servers, (alias) => pathOf(alias)),
  };
  const pathOf = (alias) => {
    const name = camelCase(alias);
    return name in target ? `mcp.server(${quote(name)})` : `mcp.${name}`;
  };
  const target = Object.defineProperties({}, {
    ...Object.getOwnPropertyDescriptors(api),
    servers: { get: () => servers.loaded.map((it) => it.alias), enumerable: true, configurable: true },
    [inspect.custom]: { value: () => `mcp { servers: [${target.servers.join(', ')}], see mcp.help() }` },
  });
  const isServer = (key) => typeof key === 'string' && !(key in target) && !NOT_NAMES.has(key);
  return new Proxy(target, { get: (_, key) => (isServer(key) ? server(key) : target[key]) });
}

function makeCallTool(ask, servers) {
  return async function callTool(server, tool, args = {}, { raw = false, timeout, signal } = {}) {
    const found = await servers.find(server);
    const list = await servers.list(found);
    const known = list.byName.get(tool);
    const about = { server: found.name, tool: known?.name ?? String(tool) };
    if (args === null || typeof args !== 'object' || Array.isArray(args)) {
      const usage = known ? `${nameOfTool(known, list)}(${argumentsOf(known)})` : `${tool}({ … })`;
      throw new MCPError(`${tool} takes one object of arguments: ${usage}`, { ...about, kind: 'invalid' });
    }
    const params = { server: about.server, tool: about.tool, arguments: args, timeout };
    let result;
    try {
      result = await ask('tools/call', params, { ...about, signal });
    } catch (error) {
      if (error.kind !== 'not_found' || known) throw error;
      servers.forget(found); // it may have changed
      throw new MCPError(`${error.message} (tools of ${about.server}: ${namesInError(list)})`, { ...about, kind: error.kind });
    }
    if (raw) return result;
    if (result?.isError === true) throw errorOfTool(result, about);
    return valueOfResult(result);
  };
}

function makeMemory(ask) {
  const load = (key) => ask('memory/load', { key });
  const info = (key) => ask('memory/info', { key });
  const save = (key, value, metadata) => ask('memory/save', { key, value: value ?? null, metadata });
  return {
    save,
    load: async (key, fallback = null) => {
      const { found, value } = await load(key);
      return found ? value : fallback;
    },
    // `change` is a function of the old value, or fields to put into it, or what takes its place. Gives the new value.
    update: async (key, change, fallback = null) => {
      const { found, value, metadata } = await load(key);
      const old = found ? value : fallback;
      const both = isPlain(old) && isPlain(change);
      const updated = typeof change === 'function' ? await change(old) : both ? { ...old, ...change } : change;
      await save(key, updated, metadata);
      return updated;
    },
    delete: async (key) => (await ask('memory/delete', { key })).deleted,
    list: async () => (await ask('memory/list')).memories,
    exists: async (key) => (await info(key)).found,
    info: async (key) => {
      const { found, ...about } = await info(key);
      return found ? about : null;
    },
  };
}

const isPlain = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
