// What a cell shows: what it prints, and values and errors as text of a bounded length. And that it can read nothing.

import fs, { writeSync } from 'node:fs';
import { Readable, Writable } from 'node:stream';
import { inspect, types } from 'node:util';

import { findColumn, startsOfLines } from './kernel_source.mjs';

// As they are before any cell: what a cell declares at top level takes the place of a global for this code too.
const { Array, Atomics, Buffer, Error, Int32Array, JSON, Map, Math, Number, Object } = globalThis;
const { SharedArrayBuffer, String, Uint8Array, process } = globalThis;

// For files that are loaded when cells have run.
const { Function, Promise, Proxy, Reflect, Set, TypeError, global } = globalThis;
export const globals = {
  Array, Buffer, Error, Function, JSON, Map, Math, Number, Object, Promise, Proxy, Reflect, Set, String, TypeError, global,
};

const MAX_RESULT_BYTES = 64 << 10;
const MAX_TRACEBACK_BYTES = 32 << 10;

export function attempt(action, fallback) {
  try {
    return action();
  } catch {
    return fallback;
  }
}

export const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

// A cell that closed descriptor 1 or 2 would silence those after it. Node has no `dup` to restore one with.
export function keepOutputOpen() {
  const { close, closeSync } = fs;
  const isOutput = (fd) => fd === 1 || fd === 2;
  fs.closeSync = (fd) => (isOutput(fd) ? undefined : closeSync(fd));
  fs.close = (fd, done = () => {}) => (isOutput(fd) ? process.nextTick(done, null) : close(fd, done));
}

const NO_INPUT = 'standard input is not available in this sandbox: pass values in the code';

// Nobody is there to type: what waits for a line would wait until its time is over. It fails where it asks to read, for
// a stream that ends or fails later would not wake it.
class NoInput extends Readable {
  fd = 0;

  on(event, listener) {
    if (event === 'data' || event === 'readable') throw new Error(NO_INPUT);
    return super.on(event, listener);
  }

  addListener(event, listener) {
    return this.on(event, listener);
  }

  read() {
    throw new Error(NO_INPUT);
  }

  resume() {
    return this; // as programs do to stay alive
  }
}

export function refuseInput() {
  let stdin;
  Object.defineProperty(process, 'stdin', { configurable: true, enumerable: true, get: () => (stdin ??= new NoInput()) });
}

export function writeAtOnce(fd, chunk, encoding, done = encoding) {
  const named = typeof encoding === 'string' ? encoding : 'utf8';
  const isText = typeof chunk === 'string';
  if (!isText && !types.isUint8Array(chunk)) refuseChunk(chunk);
  let rest = isText ? Buffer.from(chunk, named) : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      sleep(1); // a child has made the pipe non-blocking
    }
  }
  if (typeof done === 'function') process.nextTick(done);
  return true;
}

// As any stream of Node does; which of the other views of bytes it takes depends on its version.
const refuseChunk = (chunk) => new Writable({ write: (_chunk, _encoding, done) => done() }).write(chunk);
export const warn = (text) => attempt(() => writeSync(2, `ringfence: ${text}\n`)); // it may have been closed

// Main may be stuck in the guest's code, so asking it to exit would not do.
export function exitAtOnce(reason) {
  if (reason) warn(reason);
  process.kill(process.pid, 'SIGKILL');
}

// For the threads in which no code of the guest's runs.
export const endWithFaults = () => process.on('uncaughtException', (error) => exitAtOnce(inspectSafely(error)));
export const inspectSafely = (value) => attempt(() => inspect(value, { maxStringLength: MAX_RESULT_BYTES }), '[unprintable]');

export function cut(text, what, maxBytes = MAX_TRACEBACK_BYTES) {
  const length = Buffer.byteLength(text);
  if (length <= maxBytes) return text;
  warn(`${what} cut to ${maxBytes} of ${length} bytes`);
  const bytes = Buffer.from(text.slice(0, maxBytes)); // the whole may be too large for a second copy
  return bytes.toString('utf8', 0, maxBytes - 2); // half a character becomes one of three bytes
}

export function shortenOutcome(outcome) {
  const isResultCut = shorten(outcome, 'result', MAX_RESULT_BYTES);
  const areCut = Object.keys(outcome.error ?? {}).map((it) => shorten(outcome.error, it));
  if (isResultCut || areCut.includes(true)) outcome.cut = true;
}

// Whether a text had to be cut.
function shorten(message, key, maxBytes) {
  const whole = message[key];
  if (whole !== null) message[key] = cut(whole, key, maxBytes);
  return message[key] !== whole;
}

// Frames of Node and of the kernel's files are left out: they are the same in every trace.
const OWN_DIRECTORY = new URL('.', import.meta.url).href;

export function formatStack(error, frames) {
  const own = frames.map(String).filter((it) => !it.includes(OWN_DIRECTORY) && !/\bnode:/.test(it));
  const lines = own.map((it) => `    at ${it.replace(/\bcell-(\d+):(\d+):(\d+)/g, showPlace)}`);
  return [attempt(() => Error.prototype.toString.call(error), 'Error'), ...lines].join('\n');
}

export const marksOfCells = new Map(); // of those whose columns have moved

function showPlace(_, id, line, column) {
  const found = findColumn(marksOfCells.get(Number(id)) ?? [], line - 1, column - 1);
  return `cell ${id}:${line}:${found + 1}`;
}

export function describeError(value) {
  const text = inspectSafely(value);
  if (!types.isNativeError(value)) return { name: 'Uncaught', message: text, traceback: `Uncaught ${text}` };
  const [name, message] = [attempt(() => String(value.name), 'Error'), attempt(() => String(value.message), '')];
  return { name, message, traceback: text };
}

export function describeSyntaxError({ id, code }, name, message, lineNumber, columnNumber) {
  const traceback = [...pointAt(`cell ${id}`, code, lineNumber, columnNumber), `${name}: ${message}`].join('\n');
  return { name, message, traceback };
}

// The place, its line and a caret. The end of input lies after the line that the kernel adds.
export function pointAt(name, code, lineNumber, columnNumber) {
  const starts = startsOfLines(code);
  const line = Math.min(lineNumber, starts.length - 1);
  const text = code.slice(starts[line], starts[line + 1]).trimEnd();
  const column = lineNumber > line ? text.length : Math.min(columnNumber, text.length);
  return [`${name}:${line + 1}:${column + 1}`, text, `${text.slice(0, column).replace(/[^\t]/g, ' ')}^`];
}

const IMAGES = { png: /^\x89PNG\r\n\x1a\n/, jpeg: /^\xff\xd8\xff/, gif: /^GIF8[79]a/, webp: /^RIFF[^]{4}WEBP/ };

export function describeDisplay(value) {
  if (typeof value === 'string') return { 'text/plain': value };
  const head = value instanceof Uint8Array ? Buffer.from(value.subarray(0, 16)).toString('latin1') : '';
  const kind = Object.keys(IMAGES).find((it) => IMAGES[it].test(head));
  if (kind) return { [`image/${kind}`]: value };
  const isPlain = Array.isArray(value) || value?.constructor === Object;
  const json = isPlain && attempt(() => JSON.stringify(value)); // none if circular or with a BigInt
  return json ? { 'application/json': json } : { 'text/plain': inspectSafely(value) };
}
