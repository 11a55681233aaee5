// Code mode in a JavaScript session: calls from guest code to the host while a cell runs.
//
// kernel.mjs loads this file into its main thread for the first cell that may need it, reports the start and the end of
// cells, and passes on the responses of the host. Code here can be stopped at any point together with its cell, so all
// calls of a cell are dropped at its end, and incomplete state is never stored.

import { globals } from './kernel_output.mjs';
import { makeGlobal } from './mcp_global.mjs';
import { SavedTools } from './mcp_saved.mjs';
import { Servers } from './mcp_servers.mjs';
import { MCPError, errorOfHost } from './mcp_results.mjs';

const { Array, Buffer, JSON, Map, Promise, Set } = globals;

const MAX_OPEN_CALLS = 256; // the host accepts 1,024
const MAX_CALL_BYTES = 8 << 20;
const MAX_REFUSALS = 10_000;

export class Bridge {
  #calls;
  #servers;
  #saved;

  // `send(type, cell, text)` sends a frame to the host.
  constructor(send, preface) {
    this.#calls = new Calls(send);
    this.#servers = new Servers(this.#calls);
    this.#saved = new SavedTools(this.#calls);
    this.mcp = makeGlobal(this.#calls, this.#servers, this.#saved);
    if (preface) this.applyPreface(preface);
  }

  applyPreface({ servers = [], saved = [] }) {
    this.#servers.refresh(servers);
    this.#saved.refresh(saved);
  }

  startCell({ id, code }) {
    this.#calls.startCell(id);
    this.#servers.startCell();
    this.#saved.startCell(code);
  }

  // Returns whether calls were open.
  endCell() {
    return this.#calls.endCell();
  }

  receive(body) {
    this.#calls.receive(JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.byteLength)));
  }
}

class Calls {
  #send;
  #cell = null;
  #lastNumber = 0;
  #tasks = new Set(); // actions for which guest code waits
  #open = new Map(); // calls that were sent, by number
  #queued = new Set();
  #refusals = 0;

  constructor(send) {
    this.#send = send;
  }

  startCell(cell) {
    this.#cell = cell;
    this.#refusals = 0;
  }

  // Returns the promise of an action that calls the host. The end of its cell rejects it directly: a terminated cell
  // loses its microtasks, so the action could not do it. `about` is { server, tool } or empty.
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

  // Returns the result of a host method, for an action. The error is created here and not where the response arrives, so
  // that its stack has the guest's lines that await this function.
  async call(method, params = {}, about = {}, signal) {
    const outcome = await this.#exchange({ method, params, about, signal });
    if (outcome.error) throw errorOfHost(outcome.error, about);
    return outcome.result;
  }

  receive({ call: number, result, error }) {
    const call = this.#open.get(number);
    if (!call) return; // late or unexpected
    this.#open.delete(number);
    call.settle(error ? { error } : { result });
    this.#sendQueued();
  }

  endCell() {
    this.#cell = null;
    const hadTasks = this.#tasks.size > 0;
    const sent = new Set(Array.from(this.#open.values(), (call) => call.about));
    for (const { name, about, reject } of this.#tasks) {
      const mayHaveRun = about.tool === undefined || sent.has(about);
      const state = mayHaveRun ? 'got a response; it may have run' : 'was sent; it has not run';
      const message = `the cell ended before ${nameOf(name, about)} ${state}`;
      const hint = 'hint: await calls in the cell that makes them';
      reject(new MCPError(`${message}; ${hint}`, { ...about, kind: 'cancelled', mayHaveRun }));
    }
    for (const { release } of [...this.#open.values(), ...this.#queued]) release();
    this.#open.clear();
    this.#queued.clear();
    this.#tasks.clear();
    return hadTasks;
  }

  #exchange({ method, params, about, signal }) {
    if (this.#cell === null) return new Promise(() => {}); // its task was rejected at the end of the cell
    const name = nameOf(method, about);
    if (signal?.aborted) return cancelled(`${name} was aborted before it was sent`, false, signal);
    const json = toJson(params); // a toJSON of the guest may make calls, so the number is taken after it
    if (json.error) return json;
    const number = ++this.#lastNumber;
    const text = `{"type":"call","id":${this.#cell},"call":${number},"method":"${method}","params":${json}}`;
    const bytes = Buffer.byteLength(text);
    if (bytes > MAX_CALL_BYTES) {
      const message = `${name} was not sent: ${bytes} bytes of JSON exceed the limit of ${MAX_CALL_BYTES} per call`;
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

  // Sends calls in the order of their numbers.
  #sendQueued() {
    for (const call of this.#queued) {
      if (this.#open.size >= MAX_OPEN_CALLS) return;
      if (call.signal?.aborted) continue; // its listener removes it
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

  // Code that outlives its cell and retries without end gets a promise that never settles, so that the next cell can run.
  #refuse(name) {
    if (++this.#refusals > MAX_REFUSALS) return new Promise(() => {});
    const message = `${name} was not sent: no cell is running; hint: make calls only while a cell runs`;
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
