// Code mode in a JavaScript session: calls from the guest's code to the host, while a cell runs.
//
// kernel.mjs loads this file into its main thread for the first cell that may need it, tells it when cells begin
// and end, and hands it what the host answers. Whatever runs here can be stopped at any point with its cell,
// so all that is left of a cell's calls is let go at its end, and nothing is kept that was only begun.

import { globals } from './kernel_output.mjs';
import { makeGlobal } from './mcp_global.mjs';
import { SavedTools } from './mcp_saved.mjs';
import { Servers } from './mcp_servers.mjs';
import { MCPError, errorOfHost } from './mcp_values.mjs';

const { Array, Buffer, JSON, Map, Promise, Set } = globals;

const MAX_OPEN = 256; // the host takes 1,024
const MAX_CALL_BYTES = 8 << 20;
const MAX_REFUSALS = 10_000;

export class Bridge {
  #calls;
  #servers;
  #saved;

  // `send(type, cell, text)` takes a frame to the host.
  constructor(send, preface) {
    this.#calls = new Calls(send);
    this.#servers = new Servers(this.#calls);
    this.#saved = new SavedTools(this.#calls);
    this.mcp = makeGlobal(this.#calls, this.#servers, this.#saved);
    if (preface) this.tell(preface);
  }

  tell({ servers = [], saved = [] }) {
    this.#servers.tell(servers);
    this.#saved.tell(saved);
  }

  begin({ id, code }) {
    this.#calls.begin(id);
    this.#servers.begin();
    this.#saved.begin(code);
  }

  // Whether anything was open.
  end() {
    return this.#calls.end();
  }

  answer(body) {
    this.#calls.answer(JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.byteLength)));
  }
}

class Calls {
  #send;
  #cell = null;
  #last = 0;
  #tasks = new Set(); // what the guest's code waits for
  #open = new Map(); // calls that the host has, by number
  #queued = new Set();
  #refusals = 0;

  constructor(send) {
    this.#send = send;
  }

  begin(cell) {
    this.#cell = cell;
    this.#refusals = 0;
  }

  // The promise of an action that asks the host. Its cell's end fails it directly: a cell that is terminated loses
  // its microtasks, and with them all that an action would do about it. `about` is { server, tool }, or nothing.
  run(name, about, action) {
    if (this.#cell === null) return this.#refuse(name);
    return new Promise((resolve, reject) => {
      const task = { name, about, reject };
      this.#tasks.add(task);
      const act = async () => {
        try {
          return await action();
        } finally {
          this.#tasks.delete(task);
        }
      };
      act().then(resolve, reject);
    });
  }

  // The result of a method of the host, for an action. The error is made here and not where the answer comes in:
  // V8 finds the lines of the guest that wait for this function.
  async ask(method, params = {}, about = {}, signal) {
    const outcome = await this.#exchange({ method, params, about, signal });
    if (outcome.error) throw errorOfHost(outcome.error, about);
    return outcome.result;
  }

  answer({ call: number, result, error }) {
    const call = this.#open.get(number);
    if (!call) return; // nobody waits for it any more, or ever did
    this.#open.delete(number);
    call.settle(error ? { error } : { result });
    this.#sendQueued();
  }

  end() {
    this.#cell = null;
    const isAny = this.#tasks.size > 0;
    const sent = new Set(Array.from(this.#open.values(), (it) => it.about));
    for (const { name, about, reject } of this.#tasks) {
      const mayHaveRun = about.tool === undefined || sent.has(about);
      const what = mayHaveRun ? 'answered; it may have run (await it to have its answer)' : 'was sent; it has not run';
      reject(new MCPError(`the cell ended before ${nameOf(name, about)} ${what}`, { ...about, kind: 'cancelled', mayHaveRun }));
    }
    for (const { release } of [...this.#open.values(), ...this.#queued]) release();
    this.#open.clear();
    this.#queued.clear();
    this.#tasks.clear();
    return isAny;
  }

  #exchange({ method, params, about, signal }) {
    if (this.#cell === null) return new Promise(() => {}); // its task has failed with its cell
    const name = nameOf(method, about);
    if (signal?.aborted) return cancelled(`${name} was aborted before it was sent`, false, signal);
    const json = toJson(params); // the guest's own toJSON may make calls, so the number comes after
    if (json.error) return json;
    const number = ++this.#last;
    const text = `{"type":"call","id":${this.#cell},"call":${number},"method":"${method}","params":${json}}`;
    const bytes = Buffer.byteLength(text);
    if (bytes > MAX_CALL_BYTES) {
      const message = `${name} was not sent: its arguments make ${bytes} bytes of JSON, over ${MAX_CALL_BYTES}`;
      return { error: { kind: 'limit', message } };
    }
    return new Promise((resolve) => {
      const abort = () => this.#abort(call);
      const release = () => signal?.removeEventListener('abort', abort);
      const settle = (outcome) => {
        release();
        resolve(outcome);
      };
      const call = { number, cell: this.#cell, text, about, name, signal, settle, release };
      signal?.addEventListener('abort', abort);
      this.#queued.add(call);
      this.#sendQueued();
    });
  }

  // In the order in which calls were made, which is that of their numbers.
  #sendQueued() {
    for (const call of this.#queued) {
      if (this.#open.size >= MAX_OPEN) return;
      if (call.signal?.aborted) continue; // its turn to be told comes
      this.#open.set(call.number, call);
      this.#queued.delete(call);
      this.#send('call', call.cell, call.text);
    }
  }

  #abort(call) {
    const { number, cell, name, signal, settle } = call;
    if (this.#queued.delete(call)) return settle(cancelled(`${name} was aborted before it was sent`, false, signal));
    if (!this.#open.delete(number)) return;
    this.#send('cancel', cell, JSON.stringify({ type: 'cancel', id: cell, call: number }));
    settle(cancelled(`${name} was aborted; it may have run`, true, signal));
    this.#sendQueued();
  }

  // Code that outlives its cell and tries for ever again is left to wait: it would never let the next cell run.
  #refuse(name) {
    if (++this.#refusals > MAX_REFUSALS) return new Promise(() => {});
    const message = `${name} was not sent: no cell is running, and calls are possible only while one does`;
    return Promise.reject(new MCPError(message, { kind: 'refused' }));
  }
}

const nameOf = (name, { server, tool }) => (tool === undefined ? name : `${server}.${tool}`);

const cancelled = (message, may_have_run, { reason }) => ({
  error: { kind: 'cancelled', message, may_have_run, cause: reason },
});

function toJson(params) {
  try {
    return JSON.stringify(params);
  } catch (error) {
    const message = `the arguments cannot be sent as JSON: ${error?.message}`;
    return { error: { kind: 'invalid', message, cause: error } };
  }
}
