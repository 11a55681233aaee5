// The thread of the JavaScript kernel that speaks with the host: it hands cells to main one at a time, and stops them.

import inspector from 'node:inspector';
import { Socket } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

import { endWithFaults, exitAtOnce, warn } from './kernel_output.mjs';

const MAX_FRAME_BYTES = 12 << 20; // to the host, which takes no more
const MAX_CODE_BYTES = 16 << 20;
const MAX_ANSWER_BYTES = 72 << 20;
const STOP_PATIENCE_MS = 50; // an idle main thread answers in well under a millisecond

class Controller {
  #socket;
  #main = new inspector.Session();
  #queue = [];
  #isGuarded = false; // before the sentinel watches, an interrupt would end it all
  #cell = null; // the id of the cell that runs
  #ending = null; // how what runs is being stopped: { status, error }
  #terminating = false;
  #generation = 0; // terminations so far
  #timer;

  constructor(fd, sentinel) {
    this.#main.connectToMainThread();
    this.#socket = new Socket({ fd, readable: true, writable: true });
    for (const event of ['end', 'error', 'close']) this.#socket.on(event, () => exitAtOnce());
    readFrames(this.#socket, (body) => this.#accept(body));
    parentPort.on('message', (message) => this.#hear(message));
    const ready = { type: 'ready', language: 'javascript', version: process.versions.node };
    sentinel.once('message', () => {
      this.#isGuarded = true;
      this.#send(ready);
      this.#startNext();
    });
    sentinel.on('message', (event) => {
      if (event === 'SIGINT' && this.#cell !== null) this.#stop({ status: 'interrupted', error: null });
    });
  }

  // An answer may be large: main alone takes it apart.
  #accept(body) {
    const { type, id, code, ...rest } = startsLikeAnswer(body) ? { type: 'answer' } : JSON.parse(body);
    if (type === 'answer') {
      const isWhole = body.length === body.buffer.byteLength; // else it shares its memory with other frames
      const own = isWhole ? body : new Uint8Array(body);
      return parentPort.postMessage({ type, body: own }, [own.buffer]);
    }
    if (body.length > MAX_CODE_BYTES) refuseFrame(body.length, MAX_CODE_BYTES);
    if (type === 'execute') this.#queue.push({ type, id, code });
    else if (type === 'preface') this.#queue.push({ type, preface: rest });
    else exitAtOnce(`the host sent a frame of an unknown type: ${type}`);
    this.#startNext();
  }

  // A preface is about the cells that come after it.
  #startNext() {
    while (this.#isGuarded && this.#cell === null && !this.#ending && this.#queue.length) {
      const next = this.#queue.shift();
      if (next.type === 'execute') this.#cell = next.id;
      parentPort.postMessage(next);
    }
  }

  #hear(message) {
    const { type, id, code, generation } = message;
    if (type === 'exit') {
      if (this.#cell === null) warn(`process.exit(${code}) outside a cell is ignored`);
      this.#stop({ status: 'exited', error: { name: 'Exit', message: code, traceback: '' } });
      this.#terminate();
    } else if (type === 'abandoned') {
      const isStopped = this.#ending && !this.#terminating && generation === this.#generation;
      if (isStopped) this.#finish({ type: 'done', id: this.#cell, result: null, ...this.#ending });
    } else if (id === this.#cell && !this.#ending) {
      if (type === 'done') this.#finish(message);
      else this.#send(message);
    }
  }

  // Main is asked to let go of the cell; if it does not answer, the guest's code that keeps it busy is
  // terminated. A termination that finds main idle strikes what runs there next. That must not be
  // the next cell, so main has to answer once more after V8 has reported the termination.
  #stop(ending) {
    if (this.#ending) return;
    this.#ending = ending;
    this.#askToAbandon(STOP_PATIENCE_MS);
  }

  #askToAbandon(patience_ms) {
    parentPort.postMessage({ type: 'abandon', generation: this.#generation });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#terminate();
      this.#askToAbandon(2 * patience_ms); // main may be slow and not stuck
    }, patience_ms);
  }

  #terminate() {
    if (this.#terminating) return;
    this.#terminating = true;
    this.#main.post('Runtime.evaluate', { expression: '__leaveAsyncScopes()' });
    this.#main.post('Runtime.terminateExecution', () => {
      this.#terminating = false;
      this.#generation++;
      this.#askToAbandon(10 * STOP_PATIENCE_MS);
    });
  }

  #finish(done) {
    clearTimeout(this.#timer);
    if (this.#cell !== null) this.#send(done);
    this.#cell = this.#ending = null;
    this.#startNext();
  }

  #send(message) {
    // A lone surrogate has no UTF-8, and a strict reader would refuse its escape.
    const json = message.text ?? JSON.stringify(message);
    const text = json.replace(/\\(?:\\|ud[89a-f]..)/g, (it) => (it === '\\\\' ? it : '\\ufffd'));
    const frame = Buffer.from(`\0\0\0\0${text}`);
    if (frame.length - 4 > MAX_FRAME_BYTES) return warn(`${message.type} dropped: it does not fit a frame`);
    frame.writeUInt32BE(frame.length - 4);
    this.#socket.write(frame);
  }
}

function readFrames(socket, accept) {
  let length;
  socket.on('readable', () => {
    while ((length ??= socket.read(4)?.readUInt32BE()) !== undefined) {
      if (length > MAX_ANSWER_BYTES) refuseFrame(length, MAX_ANSWER_BYTES);
      const body = socket.read(length);
      if (!body) return;
      length = undefined;
      accept(body);
    }
  });
}

const ANSWER_HEAD = '{"type":"answer",';
const startsLikeAnswer = (body) => body.latin1Slice(0, ANSWER_HEAD.length) === ANSWER_HEAD;
const refuseFrame = (bytes, most) => exitAtOnce(`the host sent a frame of ${bytes} bytes, over ${most}`);

endWithFaults();
new Controller(workerData.fd, workerData.port);
