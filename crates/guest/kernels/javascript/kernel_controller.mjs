// The controller thread of the JavaScript kernel: owns the socket to the host, passes cells to main and stops them.

import inspector from 'node:inspector';
import { Socket } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

import { exitAtOnce, exitOnError, warn } from './kernel_output.mjs';

const MAX_FRAME_BYTES = 12 << 20; // sent; the host accepts no more
const MAX_CODE_BYTES = 16 << 20;
const MAX_RESPONSE_BYTES = 72 << 20;
const STOP_TIMEOUT_MS = 50; // an idle main thread replies in well under a millisecond

class Controller {
  #socket;
  #main = new inspector.Session();
  #queue = [];
  #isGuarded = false; // whether the sigint thread is ready; before that an interrupt would end the process
  #cell = null; // the id of the running cell
  #ending = null; // the outcome of a cell that is being stopped: { status, error }
  #isTerminating = false;
  #terminations = 0;
  #timer;

  constructor(fd, sigint) {
    this.#main.connectToMainThread();
    this.#socket = new Socket({ fd, readable: true, writable: true });
    for (const event of ['end', 'error', 'close']) this.#socket.on(event, () => exitAtOnce());
    readFrames(this.#socket, (body) => this.#accept(body));
    parentPort.on('message', (message) => this.#receive(message));
    const ready = { type: 'ready', language: 'javascript', version: process.versions.node };
    sigint.once('message', () => {
      this.#isGuarded = true;
      this.#send(ready);
      this.#startNext();
    });
    sigint.on('message', (event) => {
      if (event === 'SIGINT' && this.#cell !== null) this.#stop({ status: 'interrupted', error: null });
    });
  }

  // A response may be large, so only main parses it.
  #accept(body) {
    const { type, id, code, ...rest } = isResponse(body) ? { type: 'answer' } : JSON.parse(body);
    if (type === 'answer') {
      const isAlone = body.length === body.buffer.byteLength; // otherwise it shares its memory with other frames
      const bytes = isAlone ? body : new Uint8Array(body);
      return parentPort.postMessage({ type, body: bytes }, [bytes.buffer]);
    }
    if (body.length > MAX_CODE_BYTES) refuseFrame(body.length, MAX_CODE_BYTES);
    if (type === 'execute') this.#queue.push({ type, id, code });
    else if (type === 'preface') this.#queue.push({ type, preface: rest });
    else exitAtOnce(`the host sent a frame of an unknown type: ${type}`);
    this.#startNext();
  }

  // A preface applies to the cells after it, so it waits in the same queue.
  #startNext() {
    while (this.#isGuarded && this.#cell === null && !this.#ending && this.#queue.length) {
      const next = this.#queue.shift();
      if (next.type === 'execute') this.#cell = next.id;
      parentPort.postMessage(next);
    }
  }

  #receive(message) {
    const { type, id, code, terminations } = message;
    if (type === 'exit') {
      if (this.#cell === null) warn(`process.exit(${code}) outside a cell is ignored`);
      this.#stop({ status: 'exited', error: { name: 'Exit', message: code, traceback: '' } });
      this.#terminate();
    } else if (type === 'abandoned') {
      const isStopped = this.#ending && !this.#isTerminating && terminations === this.#terminations;
      if (isStopped) this.#finish({ type: 'done', id: this.#cell, result: null, ...this.#ending });
    } else if (id === this.#cell && !this.#ending) {
      if (type === 'done') this.#finish(message);
      else this.#send(message);
    }
  }

  // Main is asked to abandon the cell; if it does not reply in time, the code that keeps it busy is terminated. A
  // termination that finds main idle stops whatever runs there next. That must not be the next cell, so main has to reply
  // once more after V8 has reported the termination.
  #stop(ending) {
    if (this.#ending) return;
    this.#ending = ending;
    this.#requestAbandon(STOP_TIMEOUT_MS);
  }

  #requestAbandon(timeoutMs) {
    parentPort.postMessage({ type: 'abandon', terminations: this.#terminations });
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#terminate();
      this.#requestAbandon(2 * timeoutMs); // main may be slow and not stuck
    }, timeoutMs);
  }

  #terminate() {
    if (this.#isTerminating) return;
    this.#isTerminating = true;
    this.#main.post('Runtime.evaluate', { expression: '__leaveAsyncScopes()' });
    this.#main.post('Runtime.terminateExecution', () => {
      this.#isTerminating = false;
      this.#terminations++;
      this.#requestAbandon(10 * STOP_TIMEOUT_MS);
    });
  }

  #finish(done) {
    clearTimeout(this.#timer);
    if (this.#cell !== null) this.#send(done);
    this.#cell = this.#ending = null;
    this.#startNext();
  }

  #send(message) {
    // A lone surrogate is not valid UTF-8, and the host would refuse its escape.
    const json = message.text ?? JSON.stringify(message);
    const text = json.replace(/\\(?:\\|ud[89a-f]..)/g, (escape) => (escape === '\\\\' ? escape : '\\ufffd'));
    const frame = Buffer.from(`\0\0\0\0${text}`);
    const bytes = frame.length - 4;
    if (bytes > MAX_FRAME_BYTES) {
      return warn(`${message.type} dropped: a frame of ${bytes} bytes exceeds the limit of ${MAX_FRAME_BYTES}`);
    }
    frame.writeUInt32BE(bytes);
    this.#socket.write(frame);
  }
}

function readFrames(socket, accept) {
  let length;
  socket.on('readable', () => {
    while ((length ??= socket.read(4)?.readUInt32BE()) !== undefined) {
      if (length > MAX_RESPONSE_BYTES) refuseFrame(length, MAX_RESPONSE_BYTES);
      const body = socket.read(length);
      if (!body) return;
      length = undefined;
      accept(body);
    }
  });
}

const RESPONSE_HEAD = '{"type":"answer",';
const isResponse = (body) => body.latin1Slice(0, RESPONSE_HEAD.length) === RESPONSE_HEAD;
const refuseFrame = (bytes, limit) => exitAtOnce(`the host sent a frame of ${bytes} bytes, over the limit of ${limit}`);

exitOnError();
new Controller(workerData.fd, workerData.port);
