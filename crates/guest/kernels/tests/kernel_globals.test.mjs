// A cell may declare any name, also that of a global which the kernel itself uses: it is the guest's from then on, and
// the kernel goes on as before.

import assert from 'node:assert/strict';
import { afterEach, describe } from 'node:test';

import { Kernel, endKernels, test } from './kernel_driver.mjs';

afterEach(endKernels);

const NAMES = [
  'Buffer', 'Set', 'Error', 'Object', 'Reflect', 'Array', 'Math', 'String', 'Number', 'Boolean', 'RegExp', 'Promise', 'JSON',
  'Map', 'Symbol', 'Function', 'Proxy', 'Atomics', 'SharedArrayBuffer', 'Int32Array', 'Uint8Array', 'SyntaxError',
  'TypeError', 'URL', 'process', 'setTimeout', 'setImmediate', 'clearTimeout', 'queueMicrotask', 'global', 'globalThis',
];
// Any global, if there is a way to declare it: `undefined` has none.
const ALL = Object.getOwnPropertyNames(globalThis).filter(
  (it) => it !== 'console' && Object.getOwnPropertyDescriptor(globalThis, it).configurable,
);
const WAYS = {
  class: (name) => `class ${name} { constructor(n) { this.n = n } }\nvar made = new ${name}(1)`,
  const: (name) => `const ${name} = 1`,
  var: (name) => `var ${name} = 5`,
  function: (name) => `function ${name}() {}`,
};

async function start() {
  const kernel = new Kernel();
  assert.equal((await kernel.next()).type, 'ready');
  await kernel.run("const later = setTimeout, { exit, stdout } = process, bundle = Symbol.for('Jupyter.display'); var varied = 1");
  await kernel.run('const kept = 40');
  return kernel;
}

// In words that need no global but `console`.
async function checkCells(kernel, after) {
  kernel.output.stdout = '';
  assert.equal((await kernel.run("console.log('printed', [1]); const u = kept + 2; u")).result, '42', after);
  await kernel.printed('stdout', /^printed \[ 1 \]$/m);
  assert.equal((await kernel.run('let varied = 2; ({ varied })')).result, '{ varied: 2 }', after);
  const { error } = await kernel.run('1\nnull.x');
  assert.equal(error?.message, "Cannot read properties of null (reading 'x')", after);
  assert.match(error.traceback, /^TypeError: Cannot read [^]* at cell[ -]\d+:2:6/, after);
  assert.match((await kernel.run('1 +')).error.traceback, /^cell \d+:1:4\n1 \+\n {3}\^\nSyntaxError: /, after);
  assert.equal((await kernel.run("import { sep } from 'node:path'; sep")).result, "'/'", after);
  assert.equal((await kernel.run("import { none } from 'node:path'")).error?.name, 'SyntaxError', after);
  assert.match((await kernel.run('for (var kept of [1]) {}')).error.message, /^Identifier 'kept' has already/, after);
  assert.equal((await kernel.run("await { then: (go) => stdout.write('', go) }; 1")).result, '1', after);
  const items = [{ mime: 'application/json', data: { a: 1 } }];
  assert.deepEqual((await kernel.run('display({ a: 1 })')).items, items, after);
  assert.deepEqual((await kernel.run("display({ [bundle]: () => ({ 'application/json': { a: 1 } }) })")).items, items, after);
}

async function checkStops(kernel, after) {
  const loops = ['while (true) {}', 'later(() => { while (true) {} }, 1); await { then() {} }', 'await { then() {} }'];
  for (const loop of loops) {
    assert.equal((await kernel.interrupt(`console.log('running'); ${loop}`)).status, 'interrupted', `${after}: ${loop}`);
  }
  assert.equal((await kernel.run("try { exit(3) } catch { console.log('caught') }")).error?.message, '3', after);
  assert.doesNotMatch(kernel.output.stdout, /caught/, after);
  assert.equal((await kernel.run('kept')).result, '40', after);
}

describe('a cell that declares the name of a global', () => {
  for (const [way, declare] of Object.entries(WAYS)) {
    test(`with ${way} leaves the kernel whole`, async () => {
      const kernel = await start();
      for (const name of NAMES) {
        const { status, error } = await kernel.run(declare(name));
        assert.equal(status, 'ok', `${name}: ${error?.traceback}`);
        await checkCells(kernel, `${way} ${name}`);
      }
      await checkStops(kernel, way);
    });
  }

  test('may declare all of them', async () => {
    const kernel = await start();
    const mine = ALL.filter((it) => it !== 'display');
    assert.equal((await kernel.run(`let ${mine.map((it) => `${it} = null`).join(', ')}`)).error, null);
    await checkCells(kernel, 'all');
    await checkStops(kernel, 'all');
  });

  const told = async (kernel, code) => {
    kernel.output.stderr = '';
    assert.equal((await kernel.run(`${code}\n;console.error('end')`)).error, null, code);
    await kernel.printed('stderr', /^end$/m);
    await kernel.run('0');
    return kernel.output.stderr.match(/^ringfence: (.*) hides? Node's own in this session: fetch/m)?.[1];
  };

  test('is told once that it hides one', async () => {
    const kernel = await start();
    assert.equal(await told(kernel, "const URL = 'http://x'"), 'URL');
    assert.equal(await told(kernel, "const URL = 'http://y'"), undefined);
    assert.equal(await told(kernel, 'class Event {}\nfunction WeakRef() {}\nlet { a: Headers } = { a: 1 }'), 'WeakRef, Event, Headers');
    assert.equal(await told(kernel, 'var queueMicrotask = 1'), 'queueMicrotask');
    assert.equal(await told(kernel, "import { setTimeout } from 'node:timers/promises'"), 'setTimeout');
    assert.equal((await kernel.run("const Map = JSON.parse('bad')")).error.name, 'SyntaxError');
    await kernel.printed('stderr', /Map hides Node's own/);
  });

  test('is told nothing if that is the same, or its own', async () => {
    const kernel = await start();
    const harmless = [
      "const process = require('process')", "const { URL, URLSearchParams } = require('url')", "const Buffer = require('buffer').Buffer",
      "import { performance } from 'node:perf_hooks'", "import { setTimeout, clearTimeout } from 'node:timers'", 'const { Headers, Response } = globalThis',
      'const fetch = async () => 1', "const name = 'x', crypto = require('crypto')", 'function f() { const Map = 1; class Set {} }',
      'class MapView {}', '{ const Event = 1 }', 'var Blob = Blob', 'globalThis.Event = class Event {}', 'globalThis.WeakRef = 1; class MyDate extends Date {}', "const s = 'const Date = 1'",
    ];
    for (const code of harmless) assert.equal(await told(kernel, code), undefined, code);
  });
});
