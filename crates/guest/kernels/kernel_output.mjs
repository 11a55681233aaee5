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

const MAX_RESULT = 64 << 10; // characters, as is the next
const MAX_TRACEBACK = 32 << 10;

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

// What ends these streams ends the output of a program, and every cell is one. `destroy` is undone by Node itself.
export function keepStreamOpen(stream) {
  stream.setMaxListeners(0); // a pipeline leaves some to a stream that has come to its end
  stream.write = (chunk, encoding, done) => writeAtOnce(stream.fd, chunk, encoding, done);
  stream.end = (...given) => {
    const [chunk, encoding] = given.filter((it) => typeof it !== 'function');
    const done = given.find((it) => typeof it === 'function');
    if (chunk !== undefined && chunk !== null) stream.write(chunk, encoding);
    if (done) stream.once('finish', done);
    for (const event of ['finish', 'close']) process.nextTick(() => stream.emit(event));
    return stream;
  };
}

function writeAtOnce(fd, chunk, encoding, done = encoding) {
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

export function inspectSafely(value, limit = MAX_RESULT) {
  const isText = typeof value === 'string';
  if (isText && value.length > limit) return attempt(() => inspectEnds(value, limit), '[unprintable]');
  return attempt(() => inspect(value, { maxStringLength: isText ? limit : limit >> 1 }), '[unprintable]');
}

let isCut = false; // whether something of the outcome that is described is left out

function trim(text, limit = MAX_TRACEBACK) {
  if (text.length <= limit) return text;
  const kept = (limit - MARK_ROOM) >> 1;
  return joinEnds(text.slice(0, kept), text.length - 2 * kept, text.slice(-kept));
}

const MARK_ROOM = 64;

function joinEnds(head, left, tail) {
  isCut = true;
  return `${head}\n… ${left} characters left out …\n${tail}`;
}

// The whole may be too large for a second copy. As many characters as there is room for when they are escaped.
function inspectEnds(text, limit) {
  for (let kept = (limit - MARK_ROOM - 4) >> 1; ; kept >>= 1) {
    const ends = [text.slice(0, kept), text.slice(-kept)];
    const [head, tail] = ends.map((it) => inspect(it, { breakLength: Infinity, maxStringLength: Infinity }));
    if (head.length + tail.length + MARK_ROOM <= limit) return joinEnds(head, text.length - 2 * kept, tail);
  }
}

// `tell` gives { value } or { error }.
export function describeOutcome(tell) {
  isCut = false;
  const { value, error = null } = tell();
  const result = value === undefined ? null : trim(inspectSafely(value), MAX_RESULT);
  for (const key of Object.keys(error ?? {})) error[key] = trim(error[key]);
  return { status: error ? 'error' : 'ok', result, error, ...(isCut && { cut: true }) };
}

// Frames of Node and of the kernel's files are left out: they are the same in every trace.
const OWN_DIRECTORY = new URL('.', import.meta.url).href;
const isOwn = (frame) => frame.includes(OWN_DIRECTORY) || /\bnode:|^\[worker eval\]-wrapper:/.test(frame);
const showFrame = (frame) => `at ${frame.replace(/\bcell-(\d+):(\d+):(\d+)/g, showPlace)}`;

export function formatStack(error, frames) {
  const lines = frames.map(String).filter((it) => !isOwn(it)).map((it) => `    ${showFrame(it)}`);
  return [attempt(() => Error.prototype.toString.call(error), 'Error'), ...lines].join('\n');
}

// The same for a stack that was written without `formatStack`: in a thread of the guest's, or after it has been replaced.
export function showError(error) {
  const text = trim(inspectSafely(error, MAX_TRACEBACK));
  const show = (_, start, frame, brace = '') => (isOwn(frame) ? '' : start + showFrame(frame)) + brace;
  return text.replace(/(\n +)at (.+?)( \{)?$/gm, show); // the brace opens the error's own properties
}

export const marksOfCells = new Map(); // of those whose columns have moved

function showPlace(_, id, line, column) {
  const found = findColumn(marksOfCells.get(Number(id)) ?? [], line - 1, column - 1);
  return `cell ${id}:${line}:${found + 1}`;
}

// `DOMException`, and what comes from another thread, are errors of no native kind.
const isError = (value) => types.isNativeError(value) || attempt(() => value instanceof Error, false);

export function describeError(value) {
  if (!isError(value)) {
    const text = inspectSafely(value, MAX_TRACEBACK - 'Uncaught '.length);
    return { name: 'Uncaught', message: text, traceback: `Uncaught ${text}` };
  }
  const [name, message] = [attempt(() => String(value.name), 'Error'), attempt(() => String(value.message), '')];
  return { name, message, traceback: showError(value) };
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

// What is shown of a value: items of a mime type and of data as the host takes it.
export function describeDisplay(value) {
  if (typeof value === 'string') return [{ mime: 'text/plain', data: value }];
  const head = value instanceof Uint8Array ? Buffer.from(value.subarray(0, 16)).toString('latin1') : '';
  const kind = Object.keys(IMAGES).find((it) => IMAGES[it].test(head));
  if (kind) return describeBundle({ [`image/${kind}`]: value });
  const isPlain = Array.isArray(value) || value?.constructor === Object;
  const json = isPlain && attempt(() => JSON.stringify(value)); // none if circular or with a BigInt
  return [json ? { mime: 'application/json', data: json } : { mime: 'text/plain', data: inspectSafely(value) }];
}

export const describeBundle = (bundle) =>
  Object.entries(bundle).map(([mime, content]) => ({ mime, data: encodeContent(mime, content) }));

export const isJson = (mime) => mime === 'application/json' || mime.endsWith('+json');

// Text and JSON as they are, all else in base64. By Jupyter's convention the text of an image is that already, unless
// the image is written in XML.
function encodeContent(mime, content) {
  if (isJson(mime)) return JSON.stringify(content) ?? 'null';
  const isText = typeof content === 'string';
  if (isText && mime.startsWith('image/') && !mime.endsWith('+xml')) return content.replace(/\s+/g, '');
  const bytes = isText || content instanceof Uint8Array ? content : String(JSON.stringify(content));
  return Buffer.from(bytes).toString(mime.startsWith('text/') ? 'utf8' : 'base64');
}
