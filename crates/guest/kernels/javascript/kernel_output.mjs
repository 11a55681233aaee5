// Output of cells: printing, and values and errors as text of limited length. Standard input is refused.

import fs, { writeSync } from 'node:fs';
import { Readable, Writable } from 'node:stream';
import { inspect, types } from 'node:util';

import { findColumn, lineStarts } from './kernel_source.mjs';

// Saved before any cell runs: a top-level declaration of a cell hides a global for this code too.
const { Array, Atomics, Buffer, Error, Int32Array, JSON, Map, Math, Number, Object } = globalThis;
const { SharedArrayBuffer, String, Uint8Array, process } = globalThis;

// For files that are loaded after cells have run.
const { Function, Promise, Proxy, Reflect, Set, TypeError, global } = globalThis;
export const globals = {
  Array, Buffer, Error, Function, JSON, Map, Math, Number, Object, Promise, Proxy, Reflect, Set, String, TypeError,
  global,
};

const MAX_RESULT = 64 << 10; // characters
const MAX_TRACEBACK = 32 << 10; // characters

export function attempt(action, fallback) {
  try {
    return action();
  } catch {
    return fallback;
  }
}

export const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

// Ignores attempts to close descriptors 1 and 2, which later cells need. Node has no `dup` to restore them.
export function keepOutputOpen() {
  const { close, closeSync } = fs;
  const isOutput = (fd) => fd === 1 || fd === 2;
  fs.closeSync = (fd) => (isOutput(fd) ? undefined : closeSync(fd));
  fs.close = (fd, done = () => {}) => (isOutput(fd) ? process.nextTick(done, null) : close(fd, done));
}

const NO_INPUT = 'standard input is not available in this sandbox: pass values in the code';

// No person can type, so code that reads a line would wait until its timeout. It fails when it starts to read: a stream
// that ends or fails later would not wake it.
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

// Keeps a stream usable after a cell has ended it, as a program does at its end. Node itself undoes `destroy`.
export function keepStreamOpen(stream) {
  stream.setMaxListeners(0); // pipelines leave listeners on a stream that has ended
  stream.write = (chunk, encoding, done) => writeAtOnce(stream.fd, chunk, encoding, done);
  stream.end = (...given) => {
    const [chunk, encoding] = given.filter((argument) => typeof argument !== 'function');
    const done = given.find((argument) => typeof argument === 'function');
    if (chunk !== undefined && chunk !== null) stream.write(chunk, encoding);
    if (done) stream.once('finish', done);
    for (const event of ['finish', 'close']) process.nextTick(() => stream.emit(event));
    return stream;
  };
}

function writeAtOnce(fd, chunk, encoding, done = encoding) {
  const textEncoding = typeof encoding === 'string' ? encoding : 'utf8';
  const isText = typeof chunk === 'string';
  if (!isText && !types.isUint8Array(chunk)) refuseChunk(chunk);
  let rest = isText ? Buffer.from(chunk, textEncoding) : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
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

// Throws the error of a stream of Node; which views of bytes it accepts depends on its version.
const refuseChunk = (chunk) => new Writable({ write: (_chunk, _encoding, done) => done() }).write(chunk);
export const warn = (text) => attempt(() => writeSync(2, `ringfence: ${text}\n`)); // stderr may be closed

// Main may be stuck in guest code, so it cannot be asked to exit.
export function exitAtOnce(reason) {
  if (reason) warn(reason);
  process.kill(process.pid, 'SIGKILL');
}

// For threads that run no guest code.
export const exitOnError = () => process.on('uncaughtException', (error) => exitAtOnce(inspectSafely(error)));

export function inspectSafely(value, limit = MAX_RESULT) {
  const isText = typeof value === 'string';
  if (isText && value.length > limit) return attempt(() => inspectEnds(value, limit), '[unprintable]');
  return attempt(() => inspect(value, { maxStringLength: isText ? limit : limit >> 1 }), '[unprintable]');
}

let isTruncated = false; // whether part of the outcome was left out

function trim(text, limit = MAX_TRACEBACK) {
  if (text.length <= limit) return text;
  const half = (limit - MARK_LENGTH) >> 1;
  return joinEnds(text.slice(0, half), text.length - 2 * half, text.slice(-half));
}

const MARK_LENGTH = 64;

function joinEnds(head, omitted, tail) {
  isTruncated = true;
  return `${head}\n… ${omitted} characters left out …\n${tail}`;
}

// Shows both ends of a text that may be too large to copy, as long as they fit the limit when they are escaped.
function inspectEnds(text, limit) {
  for (let half = (limit - MARK_LENGTH - 4) >> 1; ; half >>= 1) {
    const ends = [text.slice(0, half), text.slice(-half)];
    const [head, tail] = ends.map((end) => inspect(end, { breakLength: Infinity, maxStringLength: Infinity }));
    if (head.length + tail.length + MARK_LENGTH <= limit) return joinEnds(head, text.length - 2 * half, tail);
  }
}

// `getOutcome` returns { value } or { error }.
export function describeOutcome(getOutcome) {
  isTruncated = false;
  const { value, error = null } = getOutcome();
  const result = value === undefined ? null : trim(inspectSafely(value), MAX_RESULT);
  for (const key of Object.keys(error ?? {})) error[key] = trim(error[key]);
  return { status: error ? 'error' : 'ok', result, error, ...(isTruncated && { cut: true }) };
}

// Frames of Node and of the kernel are left out: they are the same in every trace.
const KERNEL_DIRECTORY = new URL('.', import.meta.url).href;
const isInternal = (frame) => frame.includes(KERNEL_DIRECTORY) || /\bnode:|^\[worker eval\]-wrapper:/.test(frame);
const showFrame = (frame) => `at ${frame.replace(/\bcell-(\d+):(\d+):(\d+)/g, showPosition)}`;

export function formatStack(error, frames) {
  const visible = frames.map(String).filter((frame) => !isInternal(frame));
  const lines = visible.map((frame) => `    ${showFrame(frame)}`);
  return [attempt(() => Error.prototype.toString.call(error), 'Error'), ...lines].join('\n');
}

// The same for a stack that was made without `formatStack`: in a thread of the guest, or after the guest replaced it.
export function showError(error) {
  const text = trim(inspectSafely(error, MAX_TRACEBACK));
  const show = (_, start, frame, brace = '') => (isInternal(frame) ? '' : start + showFrame(frame)) + brace;
  return text.replace(/(\n +)at (.+?)( \{)?$/gm, show); // the brace opens the properties of the error
}

export const marksByCell = new Map(); // for cells whose columns have moved

function showPosition(_, id, line, column) {
  const found = findColumn(marksByCell.get(Number(id)) ?? [], line - 1, column - 1);
  return `cell ${id}:${line}:${found + 1}`;
}

// `DOMException` and errors of other threads are not native errors.
const isError = (value) => types.isNativeError(value) || attempt(() => value instanceof Error, false);

export function describeError(value) {
  if (!isError(value)) {
    const text = inspectSafely(value, MAX_TRACEBACK - 'Uncaught '.length);
    return { name: 'Uncaught', message: text, traceback: `Uncaught ${text}` };
  }
  const [name, message] = [attempt(() => String(value.name), 'Error'), attempt(() => String(value.message), '')];
  const hint = hintForMissingPackage(value, message) || hintForMissingServer(name, message);
  return { name, message, traceback: showError(value) + hint };
}

const MISSING_PACKAGE = /^Cannot find (?:package|module) '((?:@[\w.-]+\/)?[\w][\w.-]*)/;

// Names the next step if a package is not installed. A path, such as './x' or '/x', is no package.
function hintForMissingPackage(error, message) {
  const code = attempt(() => error.code);
  const found = code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND' ? message.match(MISSING_PACKAGE) : null;
  return found ? `\nhint: run \`npm install ${found[1]}\` with execute_command` : '';
}

const MISSING_SERVER = /^mcp_(\w{0,63}[a-zA-Z0-9]\w{0,63}) is not defined$/;

// Names the next step if code uses an MCP server in the way of Python.
function hintForMissingServer(name, message) {
  const found = name === 'ReferenceError' ? message.match(MISSING_SERVER) : null;
  return found ? `\nhint: pass servers=["${found[1]}"] with the code, and call mcp.server("${found[1]}")` : '';
}

export function describeSyntaxError({ id, code }, name, message, lineNumber, columnNumber) {
  const traceback = [...pointAt(`cell ${id}`, code, lineNumber, columnNumber), `${name}: ${message}`].join('\n');
  return { name, message, traceback };
}

// Returns position, source line and caret line. The end of input is on the line that the kernel appends.
export function pointAt(name, code, lineNumber, columnNumber) {
  const starts = lineStarts(code);
  const line = Math.min(lineNumber, starts.length - 1);
  const text = code.slice(starts[line], starts[line + 1]).trimEnd();
  const column = lineNumber > line ? text.length : Math.min(columnNumber, text.length);
  return [`${name}:${line + 1}:${column + 1}`, text, `${text.slice(0, column).replace(/[^\t]/g, ' ')}^`];
}

const IMAGES = { png: /^\x89PNG\r\n\x1a\n/, jpeg: /^\xff\xd8\xff/, gif: /^GIF8[79]a/, webp: /^RIFF[^]{4}WEBP/ };

// Returns the display items of a value, with data as the host expects it.
export function describeDisplay(value) {
  if (typeof value === 'string') return [{ mime: 'text/plain', data: value }];
  const head = value instanceof Uint8Array ? Buffer.from(value.subarray(0, 16)).toString('latin1') : '';
  const kind = Object.keys(IMAGES).find((name) => IMAGES[name].test(head));
  if (kind) return describeBundle({ [`image/${kind}`]: value });
  const isPlain = Array.isArray(value) || value?.constructor === Object;
  const json = isPlain && attempt(() => JSON.stringify(value)); // undefined if circular or with a BigInt
  return [json ? { mime: 'application/json', data: json } : { mime: 'text/plain', data: inspectSafely(value) }];
}

export const describeBundle = (bundle) =>
  Object.entries(bundle).map(([mime, content]) => ({ mime, data: encodeContent(mime, content) }));

export const isJson = (mime) => mime === 'application/json' || mime.endsWith('+json');

// Encodes text and JSON as they are, all else in base64. By Jupyter's convention an image that is a string is base64
// already, unless it is XML.
function encodeContent(mime, content) {
  if (isJson(mime)) return JSON.stringify(content) ?? 'null';
  const isText = typeof content === 'string';
  if (isText && mime.startsWith('image/') && !mime.endsWith('+xml')) return content.replace(/\s+/g, '');
  const bytes = isText || content instanceof Uint8Array ? content : String(JSON.stringify(content));
  return Buffer.from(bytes).toString(mime.startsWith('text/') ? 'utf8' : 'base64');
}
