// Tools that the caller has saved: functions kept as source by the host, there by name in every later session.

import { Script, constants } from 'node:vm';

import { globals } from './kernel_output.mjs';
import { MCPError } from './mcp_values.mjs';

const { Function, JSON, Map, Math, Object, TypeError, global } = globals;

const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;

export class SavedTools {
  #calls;
  #code = ''; // of the cell that runs
  #versions = new Map(); // of the preface, by name
  #stubs = new Map(); // the functions that stand for them among the globals, by name
  #loaded = new Map(); // { version, run } by name

  constructor(calls) {
    this.#calls = calls;
  }

  begin(code) {
    this.#code = code;
  }

  tell(saved) {
    this.#versions = new Map(saved.map((it) => [it.name, it.version]));
    for (const name of this.#stubs.keys()) if (!this.#versions.has(name)) this.#withdraw(name);
    for (const name of this.#versions.keys()) if (!(name in global)) this.#offer(name);
  }

  async save(run, { doc } = {}) {
    const source = sourceOf(run);
    const { name } = run;
    if (this.#stubs.get(name) === run) throw new MCPError(`${name} is saved already`, { kind: 'invalid' });
    const isTaken = name in global && global[name] !== run && global[name] !== this.#stubs.get(name);
    if (isTaken) throw new MCPError(`${name} is a global already: choose another name`, { kind: 'invalid' });
    const saved = await this.#calls.ask('saved/save', { name, source, doc: doc ?? findDoc(source, this.#code) });
    this.#loaded.delete(name);
    return saved;
  }

  async list() {
    return (await this.#calls.ask('saved/list')).tools;
  }

  async delete(name) {
    const { deleted } = await this.#calls.ask('saved/delete', { name });
    this.#withdraw(name);
    return deleted;
  }

  // Found out only when it is called: whether it is still there, and whether it is sound.
  #offer(name) {
    const stub = async (...given) => (await this.#calls.run(`the saved tool ${name}`, {}, () => this.#load(name)))(...given);
    Object.defineProperty(stub, 'name', { value: name });
    this.#stubs.set(name, stub);
    Object.defineProperty(global, name, { value: stub, writable: true, configurable: true });
  }

  #withdraw(name) {
    const stub = this.#stubs.get(name);
    this.#stubs.delete(name);
    this.#loaded.delete(name);
    if (stub && Object.getOwnPropertyDescriptor(global, name)?.value === stub) delete global[name];
  }

  async #load(name) {
    const version = this.#versions.get(name);
    const known = this.#loaded.get(name);
    if (known?.version === version && known) return known.run;
    const { source } = await this.#calls.ask('saved/load', { name });
    const run = compile(name, source);
    this.#loaded.set(name, { version, run });
    return run;
  }
}

// A function that says all there is to it: its source is what is kept.
function sourceOf(run) {
  const refuse = (why) => {
    throw new MCPError(`saveTool takes a function that has a name and a source: ${why}`, { kind: 'invalid' });
  };
  if (typeof run !== 'function') refuse(`this is ${run === null ? 'null' : typeof run}`);
  const source = Function.prototype.toString.call(run);
  if (/\{\s*\[native code\]\s*\}$/.test(source)) refuse('this one is native, or bound');
  if (/^class\b/.test(source)) refuse('this is a class');
  if (!IDENTIFIER.test(run.name)) refuse('this one is called ' + JSON.stringify(run.name));
  try {
    new Script(`(${source}\n)`);
  } catch {
    refuse('this one is a method; write it as `function name() {…}`');
  }
  return source;
}

// The `/** … */` in it, or right before it in the cell that runs.
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
    throw new TypeError('it is no function');
  } catch (cause) {
    throw new MCPError(`the saved tool ${name} is broken: ${cause}`, { kind: 'invalid', cause });
  }
}
