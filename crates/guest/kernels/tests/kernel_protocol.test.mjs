// Frames of the JavaScript kernel: ready, done, sizes, the end of the socket.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { Kernel, endKernels, pack, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('protocol', () => {
  test('sends ready once', async () => {
    const fresh = new Kernel();
    const ready = { type: 'ready', language: 'javascript', version: process.versions.node };
    assert.deepEqual(await fresh.next(), ready);
    assert.equal((await fresh.run('1')).type, 'done');
  });

  test('runs nothing before it can be interrupted', async () => {
    const fresh = Array.from({ length: 8 }, () => new Kernel());
    for (const each of fresh) each.control.write(each.frame('1'));
    for (const each of fresh) {
      assert.equal((await each.next()).type, 'ready');
      assert.equal((await each.next()).type, 'done');
    }
  });

  test('runs code with long comments and non-ASCII text without delay', async () => {
    const banner = `import fs from 'fs'\n${'/'.repeat(80)}\n// a // b\n${'/* c */'.repeat(40)}\n1`;
    assert.equal((await kernel.run(banner)).result, '1');
    assert.equal((await kernel.run(`const z = '${'é'.repeat(50_000)}'; z.length`)).result, '50000');
  });

  const broken = {
    'a method of arrays': 'Array.prototype.map = undefined',
    'the iterator of arrays': 'Array.prototype[Symbol.iterator] = null',
    'a method of sets': 'Set.prototype.delete = null',
    'a method of texts': 'String.prototype.matchAll = null',
    'regular expressions': 'RegExp.prototype.exec = () => { throw 1 }',
    'functions of Object': 'Object.assign = Object.keys = Object.getOwnPropertyDescriptor = null',
    'Reflect': 'Reflect.apply = Reflect.defineProperty = null',
    'Buffer': 'Buffer.from = null',
    'stack traces': 'Error.prepareStackTrace = () => { throw 1 }',
    'the kind of promises': "Object.defineProperty(Promise.prototype, 'constructor', { get() { throw 1 } })",
  };
  for (const [what, code] of Object.entries(broken)) {
    test(`sends done for each cell after one has broken ${what}`, async () => {
      await kernel.run('let keep = 1; const later = setTimeout');
      for (const cell of [`${code}; 1`, 'keep', 'null.x', '1 +', 'var keep = 2', 'later(() => null.x, 1)', 'throw keep']) {
        assert.equal((await kernel.run(cell)).type, 'done', cell);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert.equal((await kernel.run('0')).type, 'done');
    });
  }

  test('sends exactly one done per cell, in order', async () => {
    kernel.control.write(Buffer.concat([kernel.frame('1'), kernel.frame('await 2'), kernel.frame('3')]));
    for (const id of [1, 2, 3]) {
      const done = { type: 'done', id, status: 'ok', result: String(id), error: null };
      assert.deepEqual(await kernel.next(), done);
    }
  });

  test('accepts a large frame in pieces', async () => {
    const frame = kernel.frame(`"${'x'.repeat(10 << 20)}".length`);
    kernel.control.write(frame.subarray(0, 2));
    await new Promise(setImmediate);
    kernel.control.write(frame.subarray(2));
    assert.equal((await kernel.next()).result, String(10 << 20));
  });

  test('refuses a frame over 72 MiB, or over 16 MiB if it is not a response', async () => {
    kernel.control.write(Buffer.from([4, 0x80, 0, 1]));
    assert.equal(await kernel.exit, 'SIGKILL');
    await kernel.printed('stderr', /75497473 bytes, over the limit of 75497472/);
    const second = await startKernel();
    second.control.write(second.frame('x'.repeat(16 << 20)));
    assert.equal(await second.exit, 'SIGKILL');
    await second.printed('stderr', /1677\d+ bytes, over the limit of 16777216/);
  });

  test('refuses a frame of unknown type', async () => {
    kernel.control.write(pack({ type: 'verdict', id: 1 }));
    assert.equal(await kernel.exit, 'SIGKILL');
    await kernel.printed('stderr', /unknown type: verdict/);
  });

  test('ends when the host closes the socket, even in an endless loop', async () => {
    await kernel.run("console.log('up')");
    kernel.control.write(kernel.frame("console.log('looping'); while (true) {}"));
    await kernel.printed('stdout', /looping/);
    kernel.control.destroy();
    assert.equal(await kernel.exit, 'SIGKILL');
  });

  test('replaces lone surrogates in frames', async () => {
    const { items } = await kernel.run("display('a\\ud800b')");
    assert.equal(items[0].data, 'a\ufffdb');
  });
});
