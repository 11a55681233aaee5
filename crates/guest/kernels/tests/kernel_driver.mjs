// Runs a JavaScript kernel as the host does: a process, a socket, two output pipes.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, it } from 'node:test';
import { fileURLToPath } from 'node:url';

export const KERNEL = fileURLToPath(new URL('../javascript/kernel.mjs', import.meta.url));
export const test = (name, body) => it(name, { timeout: 60_000 }, body);
export const directory = mkdtempSync(join(tmpdir(), 'kernel-test-'));
after(() => rmSync(directory, { recursive: true }));

const kernels = [];
export const endKernels = () => kernels.splice(0).forEach((kernel) => kernel.end());

// Starts a kernel, or an instance of a subclass, and waits until it is ready.
export async function startKernel(Type = Kernel) {
  const kernel = new Type();
  assert.equal((await kernel.next()).type, 'ready');
  return kernel;
}

export function pack(frame) {
  const body = Buffer.from(JSON.stringify(frame));
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return Buffer.concat([head, body]);
}

export class Kernel {
  output = { stdout: '', stderr: '' };
  #lastId = 0;
  #received = Buffer.alloc(0);
  #frames = [];
  #waiting = [];

  constructor(command = [process.execPath, KERNEL, '3']) {
    const stdio = ['ignore', 'pipe', 'pipe', 'pipe'];
    this.process = spawn(command[0], command.slice(1), { stdio, cwd: directory });
    this.exit = new Promise((resolve) => this.process.on('exit', (code, signal) => resolve(signal ?? code)));
    this.closed = new Promise((resolve) => this.process.on('close', () => resolve(true)));
    this.control = this.process.stdio[3];
    kernels.push(this);
    this.control.on('data', (chunk) => this.#receive(chunk)).on('error', () => {});
    this.process.stdout.on('data', (chunk) => (this.output.stdout += chunk));
    this.process.stderr.on('data', (chunk) => (this.output.stderr += chunk));
  }

  #receive(chunk) {
    this.#received = Buffer.concat([this.#received, chunk]);
    while (this.#received.length >= 4 && this.#received.length >= 4 + this.#received.readUInt32BE()) {
      const end = 4 + this.#received.readUInt32BE();
      const text = new TextDecoder('utf-8', { fatal: true }).decode(this.#received.subarray(4, end));
      this.#received = this.#received.subarray(end);
      const frame = JSON.parse(text);
      if (this.handle(frame)) continue;
      if (this.#waiting.length) this.#waiting.shift()(frame);
      else this.#frames.push(frame);
    }
  }

  // Returns whether it has handled a frame; `next` returns the others.
  handle() {
    return false;
  }

  next() {
    if (this.#frames.length) return this.#frames.shift();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  frame(code) {
    return pack({ type: 'execute', id: ++this.#lastId, code });
  }

  // Sends a cell and returns its `done`, with the items that were displayed before it.
  async run(code, meanwhile = () => {}) {
    this.control.write(this.frame(code));
    const id = this.#lastId;
    await meanwhile();
    for (const items = []; ; ) {
      const frame = await this.next();
      assert.equal(frame.id, id);
      if (frame.type === 'done') return { ...frame, items };
      items.push(...frame.items);
    }
  }

  async result(code) {
    const { status, result, error } = await this.run(code);
    assert.equal(status, 'ok', error?.traceback);
    return result;
  }

  // Waits for output: it is written before `done`, but this process may read it later.
  async printed(stream, pattern) {
    for (let isOver = false; !pattern.test(this.output[stream]); ) {
      assert.ok(!isOver, `${pattern} was not printed: ${this.output[stream].slice(0, 1000)}`);
      isOver = await Promise.race([this.closed, new Promise((resolve) => setTimeout(resolve, 5))]);
    }
  }

  end() {
    this.process.kill('SIGKILL');
    for (const stream of this.process.stdio) stream?.destroy();
  }

  // Runs a cell and interrupts it when it prints `running`.
  async interrupt(code) {
    this.output.stdout = '';
    return this.run(code, async () => {
      await this.printed('stdout', /running/);
      this.process.kill('SIGINT');
    });
  }
}
