// The JavaScript kernel of a session: `node kernel.mjs FD` runs cells in one persistent context.
//
// FD is a Unix stream socket to the host: frames of a 4-byte big-endian length and UTF-8 JSON. Output of the guest goes
// to descriptors 1 and 2, never to FD. There are three threads, so that an endless loop of the guest can be interrupted,
// and the kernel notices that the host has closed FD:
//
//     main        runs the cells, in V8's REPL mode (the inspector's Runtime.evaluate)
//     controller  owns FD, passes cells to main one at a time, and stops them (kernel_controller.mjs)
//     sigint      waits for SIGINT, which a busy main thread would not notice (kernel_sigint.mjs)
//
// kernel_source.mjs turns a cell into a script for V8. mcp_bridge.mjs is loaded into main for code that calls tools of
// other servers; its calls and the responses pass through the controller.
//
// The guest shares this process and can break it, which ends only its own session: the host trusts nothing on FD.

import inspector from 'node:inspector';
import Module, { createRequire, syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { types } from 'node:util';
import { promiseHooks } from 'node:v8';
import { MessageChannel, Worker } from 'node:worker_threads';

import {
  attempt, describeBundle, describeDisplay, describeError, describeOutcome, describeSyntaxError, formatStack, isJson,
  keepOutputOpen, keepStreamOpen, marksByCell, refuseInput, showError, sleep, warn,
} from './kernel_output.mjs';
import { Modules } from './kernel_modules.mjs';
import {
  SHARED_NAMES, adaptCode, adaptDeclaration, findColumn, findDeclaration, lineStarts, mayDeclareShared,
} from './kernel_source.mjs';

// Saved before any cell runs: a top-level declaration of a cell hides a global for this code too.
const { Buffer, Error, JSON, Math, Number, Object, Promise, ReferenceError, Reflect, RegExp, Set } = globalThis;
const { String, Symbol, TypeError, URL, global, process, setImmediate } = globalThis;

const MAX_DISPLAY_ITEMS = 32;
const MAX_DISPLAY_BYTES = 8 << 20;
const MAX_ADAPTED_NAMES = 32; // per cell: V8 parses it several times for each
const { Session } = inspector;
const { listenerCount } = process;
const inspected = { value: undefined }; // passes a value to the inspector or back; the global `__inspected`
const sharedGlobals = SHARED_NAMES.map((name) => ({ name, ...Object.getOwnPropertyDescriptor(global, name) }));
const { then } = Promise.prototype; // the guest may replace it
const BROKEN_MESSAGE = 'the result cannot be shown: code has changed built-in objects; hint: start a new session';
const BROKEN = { name: 'Error', message: BROKEN_MESSAGE, traceback: '' };

function start(fd) {
  // Node makes pipes non-blocking and queues output: `done` would overtake it, and children would inherit O_NONBLOCK.
  // And a cell that is stopped inside the code of a stream would leave that stream broken.
  for (const stream of [process.stdout, process.stderr]) {
    stream._handle?.setBlocking?.(true);
    keepStreamOpen(stream);
  }
  keepOutputOpen();
  refuseInput();
  process.on('SIGINT', () => {}); // until the sigint thread has its own handler
  const { port1, port2 } = new MessageChannel();
  const startThread = (name, port) => {
    const file = new URL(`./kernel_${name}.mjs`, import.meta.url);
    return new Worker(file, { workerData: { port, fd }, transferList: [port] });
  };
  startThread('sigint', port1);
  new CellRunner(startThread('controller', port2));
}

class CellRunner {
  #controller;
  #session = new Session();
  #cell = null; // { id, code, displayed }
  #directory;
  #module = new Module('.');
  #modules = new Modules((method, params) => this.#inspect(method, params), inspected);
  #hidden = new Set(); // globals about which a warning was printed
  #unsettled = new Set(); // promises of cells, also of abandoned ones
  #guarded = new Set(); // names of constants to which their own cells may assign
  #releases = []; // functions that release the constants of the last cell
  #bridge = null; // loaded for the first cell that may call tools
  #preface = null; // the host's list of servers and saved tools

  constructor(controller) {
    this.#controller = controller;
    this.#session.connect();
    define('display', (value) => this.#display(value));
    process.exit = (code) => {
      controller.postMessage({ type: 'exit', code: String(takeExitCode(code)) });
      sleep(); // until it is terminated, which no `catch` can stop
    };
    syncBuiltinESMExports();
    process.argv.length = 1; // the guest has no arguments
    process.mainModule = this.#module;
    define('module', this.#module);
    define('exports', this.#module.exports);
    Object.defineProperty(global, '__leaveAsyncScopes', { value: leaveAsyncScopes }); // no cell can redeclare it
    Object.defineProperty(global, '__inspected', { value: inspected });
    Error.prepareStackTrace = formatStack;
    for (const event of ['uncaughtException', 'unhandledRejection']) {
      process.on(event, (error) => attempt(() => {
        const hasOther = Reflect.apply(listenerCount, process, [event]) > 1; // a listener of the guest handles it
        if (!hasOther) warn(`${event}: ${showError(error)}`);
      }));
    }
    controller.on('message', (message) => this.#receive(message));
  }

  #receive({ type, id, code, terminations, body, preface }) {
    if (type === 'answer') return this.#bridge?.receive(body);
    if (type === 'execute') return this.#start({ id, code, displayed: 0 });
    if (type === 'preface') {
      this.#preface = preface;
      return this.#bridge?.applyPreface(preface);
    }
    this.#cell = null;
    const confirm = () => this.#controller.postMessage({ type: 'abandoned', terminations });
    if (this.#endCalls()) setImmediate(confirm);
    else confirm();
  }

  #start(cell) {
    this.#cell = cell;
    try {
      if (this.#bridge || !this.#mayCall(cell)) this.#execute(cell);
      else this.#loadBridge(cell);
    } catch (error) {
      this.#fail(cell, error);
    }
  }

  #mayCall({ code }) {
    return this.#preface?.servers?.length || this.#preface?.saved?.length || /\bmcp\b/.test(code);
  }

  async #loadBridge(cell) {
    try {
      const { Bridge } = await import('./mcp_bridge.mjs');
      this.#bridge ??= new Bridge((type, id, text) => this.#controller.postMessage({ type, id, text }), this.#preface);
      if (!('mcp' in global)) define('mcp', this.#bridge.mcp);
      if (cell === this.#cell) this.#execute(cell); // unless it was abandoned meanwhile
    } catch (error) {
      this.#fail(cell, error);
    }
  }

  // If V8 refuses a name that an earlier cell has declared in another way, the cell is adapted, each name once.
  #execute(cell) {
    attempt(() => this.#updateDirectory()); // fails if the guest has frozen the globals
    attempt(() => (Error.prepareStackTrace ??= formatStack)); // a cell may have removed it
    this.#bridge?.startCell(cell);
    const source = this.#adapt(cell.code);
    for (const adapted = new Set(); ; ) {
      const { promise, refusal } = this.#evaluate(cell, source);
      if (!refusal) return this.#observe(cell, promise);
      const name = this.#findRefusedName(source, refusal);
      const isNext = name && !adapted.has(name) && adapted.size < MAX_ADAPTED_NAMES;
      const isAdapted = isNext && this.#adaptDeclaration(source, name);
      if (!isAdapted) return this.#settle(cell, () => ({ error: this.#describeRefusal(cell, source, refusal, name) }));
      adapted.add(name);
    }
  }

  #adapt(code) {
    for (const release of this.#releases.splice(0)) release();
    const isFree = (name) => this.#guarded.has(name) || !(name === '_' || Object.getOwnPropertyDescriptor(global, name));
    const source = adaptCode(code, this.#findSyntaxError, isFree);
    for (const name of source.constants) this.#guarded.add(name);
    this.#releases = source.constants.map(guardConstant);
    return source;
  }

  // V8 runs a cell as an async function. A hook gets its promise: the inspector would report a garbage-collected promise
  // at a moment when V8 aborts on JavaScript. V8 replies at once only if it refuses the cell, possibly after the promise
  // was created. Its later reply would be a copy of the value; the session is disconnected before that.
  #evaluate(cell, source) {
    const { text, marks } = source;
    if (marks.length) marksByCell.set(cell.id, marks);
    let promise;
    const release = promiseHooks.onInit((first) => {
      release();
      this.#unsettled.add((promise = first));
    });
    const expression = `${text}\n//# sourceURL=cell-${cell.id}`;
    const session = new Session();
    session.connect();
    const reply = postSync(session, 'Runtime.evaluate', { expression, replMode: true });
    session.disconnect();
    release();
    const details = reply?.exceptionDetails;
    if (!details) return { promise };
    this.#unsettled.delete(promise);
    const [, name, message] = /^(?:(\w+): )?(.*)/.exec(details.exception.description);
    return { refusal: { name, message, line: details.lineNumber, column: details.columnNumber } };
  }

  #observe(cell, promise) {
    const fail = (error) => this.#fail(cell, error, promise);
    const store = (value) => {
      if (value !== undefined) define('_', value);
      return { value };
    };
    const succeed = (value) => this.#settle(cell, () => store(value), promise);
    // A promise that is the value of a cell, as of `main()`, is awaited: otherwise its outcome would be lost.
    const finish = ({ '.repl_result': value }) => {
      if (!types.isPromise(value)) return succeed(value);
      try {
        Reflect.apply(then, value, [succeed, fail]);
      } catch (error) {
        fail(error); // raised by a constructor of the guest
      }
    };
    Reflect.apply(then, promise, [finish, fail]);
  }

  // The name that V8 refuses because an earlier cell has declared it; none if the cell itself declares it twice.
  #findRefusedName(source, { message }) {
    const name = /^Identifier '(.+)' has already been declared$/.exec(message)?.[1];
    return name && this.#findSyntaxError(source.text) < 0 ? name : undefined;
  }

  #adaptDeclaration(source, name) {
    const scope = this.#findScope(name);
    return scope && adaptDeclaration(source, name, scope, this.#findSyntaxError);
  }

  // Where earlier cells have declared a name. They have not declared read-only globals such as NaN.
  #findScope(name) {
    if (this.#inspect('Runtime.globalLexicalScopeNames', {}).names.includes(name)) return 'lexical';
    return Object.getOwnPropertyDescriptor(global, name)?.writable ? 'global' : undefined;
  }

  #describeRefusal(cell, source, { name, message, line, column }, declared) {
    if (!declared) return describeSyntaxError(cell, name, message, line, findColumn(source.marks, line, column));
    const at = source.offsetInCode(findDeclaration(source.text, declared, this.#findSyntaxError));
    const starts = lineStarts(cell.code);
    const row = Math.max(0, starts.findLastIndex((start) => start <= at));
    const advice = ' by an earlier cell in another way; hint: use the same keyword, or another name';
    const text = this.#findScope(declared) ? message + advice : message;
    return describeSyntaxError(cell, name, text, row, at - starts[row]);
  }

  #fail(cell, error, promise) {
    this.#settle(cell, () => ({ error: describeError(error) }), promise);
  }

  // `getOutcome` returns { value } or { error }. It fails if the guest has broken built-ins; `done` is sent all the same.
  #settle(cell, getOutcome, promise) {
    attempt(() => this.#unsettled.delete(promise));
    if (cell !== this.#cell) return; // abandoned
    attempt(() => this.#warnHidden(cell));
    const outcome = attempt(() => describeOutcome(getOutcome), { status: 'error', result: null, error: BROKEN });
    this.#endCalls();
    // Microtasks and ticks that the cell leaves behind, and the report of a promise that it has rejected, belong to it:
    // they can still be stopped, and their output comes before `done`.
    setImmediate(() => {
      if (cell !== this.#cell) return; // abandoned meanwhile
      this.#cell = null;
      this.#controller.postMessage({ type: 'done', id: cell.id, ...outcome });
    });
  }

  // A top-level declaration hides a global for all code: `fetch` fails if it finds the guest's `URL`.
  #warnHidden({ code }) {
    if (!mayDeclareShared(code)) return;
    const { names } = this.#inspect('Runtime.globalLexicalScopeNames', {});
    const isHidden = (entry) => (names.includes(entry.name) ? this.#differs(entry.name) : isReplaced(entry, code));
    const isNew = (entry) => !this.#hidden.has(entry.name) && isHidden(entry);
    const hidden = sharedGlobals.filter(isNew).map(({ name }) => name);
    for (const name of hidden) this.#hidden.add(name);
    const advice = 'of Node in this session: fetch and packages may fail; hint: use another name';
    if (hidden.length) warn(`${hidden.join(', ')} ${hidden.length > 1 ? 'hide globals' : 'hides a global'} ${advice}`);
  }

  // Whether a lexical name has another value than the global that it hides; `const { URL } = require('url')` has not.
  #differs(name) {
    inspected.value = inspected; // stays if the name cannot be read
    this.#inspect('Runtime.evaluate', { expression: `void (__inspected.value = ${name})` });
    const { value } = inspected;
    inspected.value = undefined;
    return value !== Reflect.get(global, name);
  }

  // Fails the calls that are open; returns whether there were any.
  #endCalls() {
    return attempt(() => this.#bridge?.endCell());
  }

  #inspect(method, params) {
    return postSync(this.#session, method, params);
  }

  // The offset of the first syntax error, or -1. The text is put into a function to allow top-level await.
  #findSyntaxError = (text) => {
    const prefix = '(async () => {\n';
    const expression = `${prefix}${text}\n})`;
    this.#inspect('Runtime.discardConsoleEntries'); // the next line would report them all
    this.#inspect('Runtime.enable');
    const reply = this.#inspect('Runtime.compileScript', { expression, sourceURL: '', persistScript: false });
    this.#inspect('Runtime.disable');
    const { lineNumber, columnNumber } = reply?.exceptionDetails ?? {};
    return lineNumber === undefined ? -1 : lineStarts(expression)[lineNumber] + columnNumber - prefix.length;
  };

  // `require` and `import` resolve from the current working directory. A cell looks like the main program there, for code
  // that checks whether it is the main module.
  #updateDirectory() {
    const directory = attempt(() => process.cwd(), this.#directory); // it may have been removed
    if (directory === this.#directory) return;
    this.#directory = directory;
    const filename = join(directory, 'cell.cjs');
    Object.assign(this.#module, { filename, path: directory, paths: Module._nodeModulePaths(directory) });
    process.argv[1] = filename;
    define('__filename', filename);
    define('__dirname', directory);
    define('require', createRequire(filename));
    define('__import', this.#modules.makeImport(directory, filename));
  }

  #display(value) {
    const cell = this.#cell;
    const bundle = value?.[Symbol.for('Jupyter.display')]?.();
    if (typeof bundle?.then === 'function') return bundle.then((forms) => this.#show(cell, describeBundle(forms)));
    this.#show(cell, bundle ? describeBundle(bundle) : describeDisplay(value));
  }

  // Sends each item in its own frame, so that each may have the maximum size.
  #show(cell, items) {
    for (const { mime, data } of items) {
      const bytes = Buffer.byteLength(data);
      const drop = (reason) => warn(`display dropped: ${reason}`);
      if (!cell || cell !== this.#cell) drop('its cell is not running');
      else if (bytes > MAX_DISPLAY_BYTES) drop(`${bytes} bytes exceed the limit of ${MAX_DISPLAY_BYTES}`);
      else if (++cell.displayed > MAX_DISPLAY_ITEMS) drop(`the limit is ${MAX_DISPLAY_ITEMS} per cell`);
      else this.#sendItem(cell.id, mime, isJson(mime) ? data : JSON.stringify(data));
    }
  }

  #sendItem(id, mime, json) {
    const text = `{"type":"display","id":${id},"items":[{"mime":${JSON.stringify(mime)},"data":${json}}]}`;
    this.#controller.postMessage({ type: 'display', id, text });
  }
}

// Returns the exit code as a parent process would see it. The setter of `exitCode` refuses invalid values.
function takeExitCode(code) {
  process.exitCode = code ?? process.exitCode;
  const status = Number(process.exitCode ?? 0) & 0xff;
  process.exitCode = undefined;
  return status;
}

// An inspector session on its own thread replies before `post` returns.
function postSync(session, method, params) {
  let result;
  session.post(method, params, (_, reply) => (result = reply));
  return result;
}

// Defines a global that the guest may replace. A `var` of the guest, which is not configurable, is not overwritten.
function define(name, value) {
  if (Object.getOwnPropertyDescriptor(global, name)?.configurable === false) return;
  Reflect.defineProperty(global, name, { value, writable: true, configurable: true }); // fails if it is frozen
}

// Makes a global a constant for the cell that declares it. Released, it is a variable, like constants of earlier cells.
function guardConstant(name) {
  const before = Object.getOwnPropertyDescriptor(global, name);
  let [isSet, value] = [false];
  const get = () => {
    if (!isSet) throw new ReferenceError(`Cannot access '${name}' before initialization`);
    return value;
  };
  const set = (given) => {
    if (isSet) throw new TypeError('Assignment to constant variable.');
    [isSet, value] = [true, given];
  };
  Reflect.defineProperty(global, name, { get, set, configurable: true });
  return () => {
    if (Object.getOwnPropertyDescriptor(global, name)?.get !== get) return; // declared again
    if (isSet) define(name, value);
    else if (before) Reflect.defineProperty(global, name, before);
    else Reflect.deleteProperty(global, name);
  };
}

// Whether a declaration has replaced a global; an assignment is intended. Globals that Node defines lazily are not read.
function isReplaced({ name, value, get }, code) {
  if (get || Object.getOwnPropertyDescriptor(global, name)?.value === value) return false;
  return new RegExp(`\\b(?:var|function)\\b[^;=]{0,80}?\\b${name}\\b`).test(code);
}

// Termination skips the code of Node that leaves the async scope of a timer or tick, and Node aborts if one is open.
// Node clears the stack in the same way after an exception.
function leaveAsyncScopes() {
  const quiet = process.noDeprecation;
  process.noDeprecation = true;
  process.binding('async_wrap').clearAsyncIdStack();
  process.noDeprecation = quiet;
}

start(Number(process.argv[2]));
