// The JavaScript kernel of a session: `node kernel.mjs FD` runs cells in one persistent context.
//
// FD is a Unix stream socket to the host: frames of a 4-byte big-endian length and UTF-8 JSON. What
// the guest prints goes to descriptors 1 and 2, never to FD. Three threads share the work, so that a
// guest that loops for ever can be interrupted and the host's hanging up is noticed all the same:
//
//     main        runs the cells, in V8's own REPL mode (the inspector's Runtime.evaluate)
//     controller  owns FD, hands cells to main one at a time, and stops them (kernel_controller.mjs)
//     sentinel    sleeps until SIGINT, which a busy main thread would not notice (kernel_sentinel.mjs)
//
// V8 runs scripts that stand alone; kernel_source.mjs makes one of a cell.
//
// Where code calls the tools of other servers, mcp_bridge.mjs is loaded into main; its questions to the
// host, and the answers, pass through the controller like cells.
//
// The guest shares this process and can break it, which costs it its own session and no more: the
// host trusts nothing that arrives on FD.

import inspector from 'node:inspector';
import Module, { createRequire, syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { types } from 'node:util';
import { promiseHooks } from 'node:v8';
import { MessageChannel, Worker } from 'node:worker_threads';

import {
  attempt, describeBundle, describeDisplay, describeError, describeOutcome, describeSyntaxError, formatStack, isJson,
  keepOutputOpen, keepStreamOpen, marksOfCells, refuseInput, showError, sleep, warn,
} from './kernel_output.mjs';
import { Modules } from './kernel_modules.mjs';
import {
  SHARED_NAMES, adaptCode, adaptDeclaration, findColumn, findDeclaration, mayDeclareShared, startsOfLines,
} from './kernel_source.mjs';

// As they are before any cell: what a cell declares at top level takes the place of a global for this code too.
const { Buffer, Error, JSON, Math, Number, Object, Promise, ReferenceError, Reflect, RegExp, Set } = globalThis;
const { String, Symbol, TypeError, URL, global, process, setImmediate } = globalThis;

const MAX_DISPLAY_ITEMS = 32;
const MAX_DISPLAY_BYTES = 8 << 20;
const MAX_ADAPTED_NAMES = 32; // in a cell: each takes V8 several parses
const { Session } = inspector;
const { listenerCount } = process;
const exhibit = { value: undefined }; // by which the inspector is shown a value, and shows one
const sharedGlobals = SHARED_NAMES.map((name) => ({ name, ...Object.getOwnPropertyDescriptor(global, name) }));
const { then } = Promise.prototype; // the guest may replace it
const BROKEN = { name: 'Error', message: 'the outcome cannot be shown: the code has broken what shows it', traceback: '' };

function startGuest(fd) {
  // Node leaves pipes non-blocking and queues what does not fit: `done` would overtake output, and
  // children would inherit O_NONBLOCK. And a cell that is stopped in the middle of a stream's own code
  // would leave the stream as it was then, never to print again.
  for (const stream of [process.stdout, process.stderr]) {
    stream._handle?.setBlocking?.(true);
    keepStreamOpen(stream);
  }
  keepOutputOpen();
  refuseInput();
  process.on('SIGINT', () => {}); // until the sentinel's own handler replaces this one
  const { port1, port2 } = new MessageChannel();
  const start = (name, port) => {
    const file = new URL(`./kernel_${name}.mjs`, import.meta.url);
    return new Worker(file, { workerData: { port, fd }, transferList: [port] });
  };
  start('sentinel', port1);
  new Guest(start('controller', port2));
}

class Guest {
  #controller;
  #session = new Session();
  #cell = null; // { id, code, displayed }
  #directory;
  #module = new Module('.');
  #modules = new Modules((method, params) => this.#ask(method, params), exhibit);
  #hidden = new Set(); // the globals that cells have been told of
  #unsettled = new Set(); // the promises of cells, also of those that were abandoned
  #guarded = new Set(); // the names of constants that their own cells may assign to
  #releases = []; // of those of the last cell
  #bridge = null; // for code that calls tools; loaded for the first cell that may
  #preface = null; // what the host has said of servers and saved tools

  constructor(controller) {
    this.#controller = controller;
    this.#session.connect();
    define('display', (value) => this.#display(value));
    process.exit = (code) => {
      controller.postMessage({ type: 'exit', code: String(takeExitCode(code)) });
      sleep(); // it is terminated: that, unlike an exception, passes any `catch`
    };
    syncBuiltinESMExports();
    process.argv.length = 1; // the descriptor is no argument of the guest's
    process.mainModule = this.#module;
    define('module', this.#module);
    define('exports', this.#module.exports);
    Object.defineProperty(global, '__leaveAsyncScopes', { value: leaveAsyncScopes }); // which no cell can declare
    Object.defineProperty(global, '__exhibit', { value: exhibit });
    Error.prepareStackTrace = formatStack;
    for (const event of ['uncaughtException', 'unhandledRejection']) {
      process.on(event, (error) => attempt(() => {
        const hasOther = Reflect.apply(listenerCount, process, [event]) > 1; // the guest's own deals with it
        if (!hasOther) warn(`${event}: ${showError(error)}`);
      }));
    }
    controller.on('message', (message) => this.#hear(message));
  }

  #hear({ type, id, code, generation, body, preface }) {
    if (type === 'answer') return this.#bridge?.answer(body);
    if (type === 'execute') return this.#start({ id, code, displayed: 0 });
    if (type === 'preface') {
      this.#preface = preface;
      return this.#bridge?.tell(preface);
    }
    this.#cell = null;
    const answer = () => this.#controller.postMessage({ type: 'abandoned', generation });
    if (this.#endCalls()) setImmediate(answer);
    else answer();
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
      if (cell === this.#cell) this.#execute(cell); // or it was abandoned meanwhile
    } catch (error) {
      this.#fail(cell, error);
    }
  }

  // What an earlier cell has declared in another way is adapted when V8 refuses it, each name once.
  #execute(cell) {
    attempt(() => this.#followDirectory()); // the guest may have frozen what it is told in
    attempt(() => (Error.prepareStackTrace ??= formatStack)); // or a cell has removed it
    this.#bridge?.begin(cell);
    const source = this.#adapt(cell.code);
    for (const adapted = new Set(); ; ) {
      const { promise, refusal } = this.#evaluate(cell, source);
      if (!refusal) return this.#follow(cell, promise);
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

  // A cell is an async function to V8. Its promise is taken hold of with a hook and not through the
  // inspector, which reports a promise that was collected at a moment when V8 aborts on JavaScript.
  // V8 answers at once only where it refuses the cell, also one that has its promise by then. What it would answer
  // later is a copy of the value: a session that is over by then is not told.
  #evaluate(cell, source) {
    const { text, marks } = source;
    if (marks.length) marksOfCells.set(cell.id, marks);
    let promise;
    const release = promiseHooks.onInit((first) => {
      release();
      this.#unsettled.add((promise = first));
    });
    const expression = `${text}\n//# sourceURL=cell-${cell.id}`;
    const session = new Session();
    session.connect();
    const reply = ask(session, 'Runtime.evaluate', { expression, replMode: true });
    session.disconnect();
    release();
    const details = reply?.exceptionDetails;
    if (!details) return { promise };
    this.#unsettled.delete(promise);
    const [, name, message] = /^(?:(\w+): )?(.*)/.exec(details.exception.description);
    return { refusal: { name, message, line: details.lineNumber, column: details.columnNumber } };
  }

  #follow(cell, promise) {
    const fail = (error) => this.#fail(cell, error, promise);
    const tell = (value) => {
      if (value !== undefined) define('_', value);
      return { value };
    };
    const succeed = (value) => this.#settle(cell, () => tell(value), promise);
    // What a cell ends with, as `main()`, is a part of it: nobody would see how it goes on.
    const finish = ({ '.repl_result': value }) => {
      if (!types.isPromise(value)) return succeed(value);
      try {
        Reflect.apply(then, value, [succeed, fail]);
      } catch (error) {
        fail(error); // its constructor is the guest's
      }
    };
    Reflect.apply(then, promise, [finish, fail]);
  }

  // The name that V8 will not have declared again, if not the cell itself does so twice.
  #findRefusedName(source, { message }) {
    const name = /^Identifier '(.+)' has already been declared$/.exec(message)?.[1];
    return name && this.#findSyntaxError(source.text) < 0 ? name : undefined;
  }

  #adaptDeclaration(source, name) {
    const scope = this.#findScope(name);
    return scope && adaptDeclaration(source, name, scope, this.#findSyntaxError);
  }

  // Where earlier cells have declared a name. What cannot be written there, such as NaN, is none of theirs.
  #findScope(name) {
    if (this.#ask('Runtime.globalLexicalScopeNames', {}).names.includes(name)) return 'lexical';
    return Object.getOwnPropertyDescriptor(global, name)?.writable ? 'global' : undefined;
  }

  #describeRefusal(cell, source, { name, message, line, column }, declared) {
    if (!declared) return describeSyntaxError(cell, name, message, line, findColumn(source.marks, line, column));
    const at = source.offsetInCode(findDeclaration(source.text, declared, this.#findSyntaxError));
    const starts = startsOfLines(cell.code);
    const row = Math.max(0, starts.findLastIndex((it) => it <= at));
    const advice = ': an earlier cell did so in another way. Use the same keyword, or another name';
    const whole = this.#findScope(declared) ? message + advice : message;
    return describeSyntaxError(cell, name, whole, row, at - starts[row]);
  }

  #fail(cell, error, promise) {
    this.#settle(cell, () => ({ error: describeError(error) }), promise);
  }

  // `tell` gives { value } or { error }. The guest can break what that takes; its cell is answered all the same.
  #settle(cell, tell, promise) {
    attempt(() => this.#unsettled.delete(promise));
    if (cell !== this.#cell) return; // abandoned
    attempt(() => this.#tellHidden(cell));
    const outcome = attempt(() => describeOutcome(tell), { status: 'error', result: null, error: BROKEN });
    this.#endCalls();
    // What the cell leaves to run at once is a part of it, and so is the report of a promise that it has rejected: it is
    // still stopped if it does not end, and what it prints comes before `done`.
    setImmediate(() => {
      if (cell !== this.#cell) return; // abandoned meanwhile
      this.#cell = null;
      this.#controller.postMessage({ type: 'done', id: cell.id, ...outcome });
    });
  }

  // A name that is declared at top level is another one for all code, and `fetch` fails where it finds the guest's `URL`.
  #tellHidden({ code }) {
    if (!mayDeclareShared(code)) return;
    const { names } = this.#ask('Runtime.globalLexicalScopeNames', {});
    const isHidden = (it) => (names.includes(it.name) ? this.#isOther(it.name) : isReplaced(it, code));
    const hidden = sharedGlobals.filter((it) => !this.#hidden.has(it.name) && isHidden(it)).map((it) => it.name);
    for (const name of hidden) this.#hidden.add(name);
    const advice = "Node's own in this session: fetch and packages may fail, better use another name";
    if (hidden.length) warn(`${hidden.join(', ')} ${hidden.length > 1 ? 'hide' : 'hides'} ${advice}`);
  }

  // Whether a lexical name is not the global that it hides, as it is with `const { URL } = require('url')`.
  #isOther(name) {
    exhibit.value = exhibit; // if the name cannot be read
    this.#ask('Runtime.evaluate', { expression: `void (__exhibit.value = ${name})` });
    const { value } = exhibit;
    exhibit.value = undefined;
    return value !== Reflect.get(global, name);
  }

  // Calls that are open fail with their cell. Whether any were.
  #endCalls() {
    return attempt(() => this.#bridge?.end());
  }

  #ask(method, params) {
    return ask(this.#session, method, params);
  }

  // The offset of the first syntax error, or -1; in a function, for the sake of top-level await.
  #findSyntaxError = (text) => {
    const prefix = '(async () => {\n';
    const expression = `${prefix}${text}\n})`;
    this.#ask('Runtime.discardConsoleEntries'); // they would all be reported by the next line
    this.#ask('Runtime.enable');
    const reply = this.#ask('Runtime.compileScript', { expression, sourceURL: '', persistScript: false });
    this.#ask('Runtime.disable');
    const { lineNumber, columnNumber } = reply?.exceptionDetails ?? {};
    return lineNumber === undefined ? -1 : startsOfLines(expression)[lineNumber] + columnNumber - prefix.length;
  };

  // `require` and `import` resolve from the working directory, wherever a cell has moved it: to the guest, a
  // cell is a program there, so that what asks whether it is the main one runs.
  #followDirectory() {
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
    if (typeof bundle?.then === 'function') return bundle.then((it) => this.#show(cell, describeBundle(it)));
    this.#show(cell, bundle ? describeBundle(bundle) : describeDisplay(value));
  }

  // An item a frame, so that the largest fit.
  #show(cell, items) {
    for (const { mime, data } of items) {
      const bytes = Buffer.byteLength(data);
      if (!cell || cell !== this.#cell) warn('display dropped: its cell is not running');
      else if (bytes > MAX_DISPLAY_BYTES) warn(`display dropped: ${bytes} bytes, over ${MAX_DISPLAY_BYTES}`);
      else if (++cell.displayed > MAX_DISPLAY_ITEMS) warn(`display dropped: over ${MAX_DISPLAY_ITEMS} in a cell`);
      else this.#sendItem(cell.id, mime, isJson(mime) ? data : JSON.stringify(data));
    }
  }

  #sendItem(id, mime, json) {
    const text = `{"type":"display","id":${id},"items":[{"mime":${JSON.stringify(mime)},"data":${json}}]}`;
    this.#controller.postMessage({ type: 'display', id, text });
  }
}

// As the parent of a process would see it. What Node refuses is refused by the setter of `exitCode`.
function takeExitCode(code) {
  process.exitCode = code ?? process.exitCode;
  const seen = Number(process.exitCode ?? 0) & 0xff;
  process.exitCode = undefined;
  return seen;
}

// A session on its own thread answers before `post` returns.
function ask(session, method, params) {
  let answer;
  session.post(method, params, (_, reply) => (answer = reply));
  return answer;
}

// A global that the guest may replace; its own `var` of that name (not configurable) is left alone.
function define(name, value) {
  if (Object.getOwnPropertyDescriptor(global, name)?.configurable === false) return;
  Reflect.defineProperty(global, name, { value, writable: true, configurable: true }); // or it is frozen
}

// A constant to the cell that declares it. Released it is a variable, as constants are to later cells.
function guardConstant(name) {
  const before = Object.getOwnPropertyDescriptor(global, name);
  let [isSet, value] = [false];
  const get = () => {
    if (!isSet) throw new ReferenceError(`Cannot access '${name}' before initialization`);
    return value;
  };
  const set = (it) => {
    if (isSet) throw new TypeError('Assignment to constant variable.');
    [isSet, value] = [true, it];
  };
  Reflect.defineProperty(global, name, { get, set, configurable: true });
  return () => {
    if (Object.getOwnPropertyDescriptor(global, name)?.get !== get) return; // it has been declared anew
    if (isSet) define(name, value);
    else if (before) Reflect.defineProperty(global, name, before);
    else Reflect.deleteProperty(global, name);
  };
}

// By a declaration, and not by an assignment, which is meant. What Node defines when it is first read is not read for this.
function isReplaced({ name, value, get }, code) {
  if (get || Object.getOwnPropertyDescriptor(global, name)?.value === value) return false;
  return new RegExp(`\\b(?:var|function)\\b[^;=]{0,80}?\\b${name}\\b`).test(code);
}

// Termination skips the code of Node that would leave a timer's or tick's async scope, and Node
// aborts when it finds one open. Emptying the stack is what it does itself after an exception.
function leaveAsyncScopes() {
  const quiet = process.noDeprecation;
  process.noDeprecation = true;
  process.binding('async_wrap').clearAsyncIdStack();
  process.noDeprecation = quiet;
}

startGuest(Number(process.argv[2]));
