// Saved tools: functions whose source the host stores, and which later sessions can call by name.

import { Script, constants } from 'node:vm';

import { globals } from './kernel_output.mjs';
import { MCPError } from './mcp_results.mjs';

const { Function, JSON, Map, Math, Object, TypeError, global } = globals;

const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;

export class SavedTools {
  #calls;
  #code = ''; // of the running cell
  #versions = new Map(); // from the preface, by name
  #stubs = new Map(); // global functions that load a tool when they are called, by name
  #loaded = new Map(); // { version, run } by name

  constructor(calls) {
    this.#calls = calls;
  }

  startCell(code) {
    this.#code = code;
  }

  refresh(saved) {
    this.#versions = new Map(saved.map(({ name, version }) => [name, version]));
    for (const name of this.#stubs.keys()) if (!this.#versions.has(name)) this.#removeStub(name);
    for (const name of this.#versions.keys()) if (!(name in global)) this.#addStub(name);
  }

  async save(run, { doc } = {}) {
    const source = sourceOf(run);
    const { name } = run;
    if (this.#stubs.get(name) === run) throw new MCPError(`${name} is saved already`, { kind: 'invalid' });
    const isTaken = name in global && global[name] !== run && global[name] !== this.#stubs.get(name);
    if (isTaken) throw new MCPError(`${name} is a global already; hint: choose another name`, { kind: 'invalid' });
    const saved = await this.#calls.call('saved/save', { name, source, doc: doc ?? findDoc(source, this.#code) });
    this.#loaded.delete(name);
    return saved;
  }

  async list() {
    return (await this.#calls.call('saved/list')).tools;
  }

  async delete(name) {
    const { deleted } = await this.#calls.call('saved/delete', { name });
    this.#removeStub(name);
    return deleted;
  }

  // The stub loads the tool when it is called, which may fail only then.
  #addStub(name) {
    const load = () => this.#calls.run(`the saved tool ${name}`, {}, () => this.#load(name));
    const stub = async (...given) => (await load())(...given);
    Object.defineProperty(stub, 'name', { value: name });
    this.#stubs.set(name, stub);
    Object.defineProperty(global, name, { value: stub, writable: true, configurable: true });
  }

  #removeStub(name) {
    const stub = this.#stubs.get(name);
    this.#stubs.delete(name);
    this.#loaded.delete(name);
    if (stub && Object.getOwnPropertyDescriptor(global, name)?.value === stub) delete global[name];
  }

  async #load(name) {
    const version = this.#versions.get(name);
    const known = this.#loaded.get(name);
    if (known?.version === version && known) return known.run;
    const { source } = await this.#calls.call('saved/load', { name });
    const run = compile(name, source);
    this.#loaded.set(name, { version, run });
    return run;
  }
}

// Returns the source of a function that can be saved.
function sourceOf(run) {
  const refuse = (reason) => {
    throw new MCPError(`saveTool needs a named function with a source: ${reason}`, { kind: 'invalid' });
  };
  if (typeof run !== 'function') refuse(`this is ${run === null ? 'null' : typeof run}`);
  const source = Function.prototype.toString.call(run);
  if (/\{\s*\[native code\]\s*\}$/.test(source)) refuse('this one is native or bound');
  if (/^class\b/.test(source)) refuse('this is a class');
  if (!IDENTIFIER.test(run.name)) refuse(`this one has the name ${JSON.stringify(run.name)}`);
  try {
    new Script(`(${source}\n)`);
  } catch {
    refuse('this one is a method; hint: write it as `function name() {…}`');
  }
  return source;
}

// Returns the `/** … */` right before a function in the running cell, or inside it.
function findDoc(source, code) {
  const inside = /\/\*\*([^]*?)\*\//.exec(source);
  const before = code.slice(0, Math.max(0, code.indexOf(source)));
  const outside = /\/\*\*((?:(?!\*\/)[^])*)\*\/\s*(?:(?:const|let|var)\s+[\w$]+\s*=\s*)?$/.exec(before);
  const text = (outside ?? inside)?.[1] ?? '';
  return text.replace(/^[ \t]*\*[ \t]?/gm, '').trim();
}

function compile(name, source) {
  const options = { filename: `saved-${name}`, importModuleDynamically: constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER };
  try {
    const run = new Script(`(${source}\n)`, options).runInThisContext();
    if (typeof run === 'function') return run;
    throw new TypeError('it is not a function');
  } catch (cause) {
    const hint = `hint: save it again, or remove it with mcp.deleteTool('${name}')`;
    throw new MCPError(`the saved tool ${name} cannot be loaded: ${cause}; ${hint}`, { kind: 'invalid', cause });
  }
}
