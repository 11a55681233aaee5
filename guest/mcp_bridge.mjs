// Code mode in a JavaScript session: calls from the guest's code to the host, while a cell runs.
//
// kernel.mjs loads this file into its main thread for the first cell that may need it, tells it when cells begin
// and end, and hands it what the host answers. Whatever runs here can be stopped at any point with its cell,
// so all that is left of a cell's calls is let go at its end, and nothing is kept that was only begun.

import { makeGlobal } from './mcp_global.mjs';
import { errorOfHost } from './mcp_values.mjs';
import { SavedTools } from './mcp_saved.mjs';
import { Servers } from './mcp_servers.mjs';

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
    const ask = (...question) => this.#calls.ask(...question);
    this.#servers = new Servers(ask);
    this.#saved = new SavedTools(ask);
    this.mcp = makeGlobal(ask, this.#servers, this.#saved);
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
  #open = new Map(); // by number
  #queued = new Set();
  #refusals = 0;

  constructor(send) {
    this.#send = send;
  }

  begin(cell) {
    this.#cell = cell;
    this.#refusals = 0;
  }

  // The result of a method of the host. `about` is told of the call in errors. The error is made here and not where
  // the answer comes in: V8 finds the lines of the guest that wait for this function.
  async ask(method, params = {}, { signal, ...about } = {}) {
    const outcome = await this.#exchange({ method, params, signal, name: nameOf(method, about) });
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
    const isAny = this.#open.size + this.#queued.size > 0;
    const ended = 'the cell ended before';
    for (const { name, settle } of this.#open.values()) {
      settle(cancelled(`${ended} ${name} answered; it may have run (await it to have its answer)`));
    }
    for (const { name, settle } of this.#queued) settle(cancelled(`${ended} ${name} was sent; it has not run`, false));
    this.#open.clear();
    this.#queued.clear();
    return isAny;
  }

  #exchange({ method, params, signal, name }) {
    if (this.#cell === null) return this.#refuse(name);
    if (signal?.aborted) return cancelled(`${name} was aborted before it was sent`, false, signal.reason);
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
      const settle = (outcome) => {
        signal?.removeEventListener('abort', abort);
        resolve(outcome);
      };
      const call = { number, cell: this.#cell, text, name, signal, settle };
      signal?.addEventListener('abort', abort);
      this.#queued.add(call);
      this.#sendQueued();
    });
  }

  // Numbers go up in the order in which calls were made, and this is the order in which they are sent.
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
    if (this.#queued.delete(call)) return settle(cancelled(`${name} was aborted before it was sent`, false, signal.reason));
    if (!this.#open.delete(number)) return;
    this.#send('cancel', cell, JSON.stringify({ type: 'cancel', id: cell, call: number }));
    settle(cancelled(`${name} was aborted; it may have run`, undefined, signal.reason));
    this.#sendQueued();
  }

  // Code that outlives its cell and tries for ever again is left to wait: it would never let the next cell run.
  #refuse(name) {
    if (++this.#refusals > MAX_REFUSALS) return new Promise(() => {});
    const message = `${name} was not sent: no cell is running, and calls are possible only while one does`;
    return { error: { kind: 'refused', message } };
  }
}

const nameOf = (method, { server, tool }) => (tool === undefined ? method : `${server}.${tool}`);

// `may_have_run` is left to be told from the method if it is not given.
const cancelled = (message, may_have_run, cause) => ({ error: { kind: 'cancelled', message, may_have_run, cause } });

function toJson(params) {
  try {
    return JSON.stringify(params);
  } catch (error) {
    const message = `the arguments cannot be sent as JSON: ${error?.message}`;
    return { error: { kind: 'invalid', message, cause: error } };
  }
}
