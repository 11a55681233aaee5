// Cells of the JavaScript kernel may declare any name, even that of a global that the kernel itself uses.

import assert from 'node:assert/strict';
import { afterEach, describe } from 'node:test';

import { endKernels, startKernel, test } from './kernel_driver.mjs';

afterEach(endKernels);

const NAMES = [
  'Buffer', 'Set', 'Error', 'Object', 'Reflect', 'Array', 'Math', 'String', 'Number', 'Boolean', 'RegExp', 'Promise', 'JSON',
  'Map', 'Symbol', 'Function', 'Proxy', 'Atomics', 'SharedArrayBuffer', 'Int32Array', 'Uint8Array', 'SyntaxError',
  'TypeError', 'URL', 'process', 'setTimeout', 'setImmediate', 'clearTimeout', 'queueMicrotask', 'global', 'globalThis',
];
// All globals that can be declared; `undefined` cannot.
const ALL = Object.getOwnPropertyNames(globalThis).filter(
  (name) => name !== 'console' && Object.getOwnPropertyDescriptor(globalThis, name).configurable,
);
const DECLARATIONS = {
  class: (name) => `class ${name} { constructor(n) { this.n = n } }\nvar made = new ${name}(1)`,
  const: (name) => `const ${name} = 1`,
  var: (name) => `var ${name} = 5`,
  function: (name) => `function ${name}() {}`,
};

async function start() {
  const kernel = await startKernel();
  await kernel.run("const later = setTimeout, { exit, stdout } = process, bundle = Symbol.for('Jupyter.display'); var varied = 1");
  await kernel.run('const stable = 40');
  return kernel;
}

// Uses no global but `console`.
async function checkCells(kernel, after) {
  kernel.output.stdout = '';
  assert.equal((await kernel.run("console.log('printed', [1]); const u = stable + 2; u")).result, '42', after);
  await kernel.printed('stdout', /^printed \[ 1 \]$/m);
  assert.equal((await kernel.run('let varied = 2; ({ varied })')).result, '{ varied: 2 }', after);
  const { error } = await kernel.run('1\nnull.x');
  assert.equal(error?.message, "Cannot read properties of null (reading 'x')", after);
  assert.match(error.traceback, /^TypeError: Cannot read [^]* at cell[ -]\d+:2:6/, after);
  assert.match((await kernel.run('1 +')).error.traceback, /^cell \d+:1:4\n1 \+\n {3}\^\nSyntaxError: /, after);
  assert.equal((await kernel.run("import { sep } from 'node:path'; sep")).result, "'/'", after);
  assert.equal((await kernel.run("import { none } from 'node:path'")).error?.name, 'SyntaxError', after);
  assert.match((await kernel.run('for (var stable of [1]) {}')).error.message, /^Identifier 'stable' has already/, after);
  assert.equal((await kernel.run("await { then: (go) => stdout.write('', go) }; 1")).result, '1', after);
  const items = [{ mime: 'application/json', data: { a: 1 } }];
  assert.deepEqual((await kernel.run('display({ a: 1 })')).items, items, after);
  assert.deepEqual((await kernel.run("display({ [bundle]: () => ({ 'application/json': { a: 1 } }) })")).items, items, after);
}

async function checkStops(kernel, after) {
  const print = "console.log('running');";
  // A timer prints itself: an interrupt before it fires would leave its loop to the next cell.
  const loops = [`${print} while (true) {}`, `later(() => { ${print} while (true) {} }, 1); await { then() {} }`, `${print} await { then() {} }`];
  for (const loop of loops) assert.equal((await kernel.interrupt(loop)).status, 'interrupted', `${after}: ${loop}`);
  assert.equal((await kernel.run("try { exit(3) } catch { console.log('caught') }")).error?.message, '3', after);
  assert.doesNotMatch(kernel.output.stdout, /caught/, after);
  assert.equal((await kernel.run('stable')).result, '40', after);
}

describe('a cell that declares the name of a global', () => {
  for (const [keyword, declare] of Object.entries(DECLARATIONS)) {
    test(`with ${keyword} does not affect the kernel`, async () => {
      const kernel = await start();
      for (const name of NAMES) {
        const { status, error } = await kernel.run(declare(name));
        assert.equal(status, 'ok', `${name}: ${error?.traceback}`);
        await checkCells(kernel, `${keyword} ${name}`);
      }
      await checkStops(kernel, keyword);
    });
  }

  test('can declare all of them', async () => {
    const kernel = await start();
    const names = ALL.filter((name) => name !== 'display');
    assert.equal((await kernel.run(`let ${names.map((name) => `${name} = null`).join(', ')}`)).error, null);
    await checkCells(kernel, 'all');
    await checkStops(kernel, 'all');
  });

  const warnedOf = async (kernel, code) => {
    kernel.output.stderr = '';
    assert.equal((await kernel.run(`${code}\n;console.error('end')`)).error, null, code);
    await kernel.printed('stderr', /^end$/m);
    await kernel.run('0');
    return kernel.output.stderr.match(/^ringfence: (.*) hides? (?:a global|globals) of Node in this session: fetch/m)?.[1];
  };

  test('gets one warning for each that it hides', async () => {
    const kernel = await start();
    assert.equal(await warnedOf(kernel, "const URL = 'http://x'"), 'URL');
    assert.equal(await warnedOf(kernel, "const URL = 'http://y'"), undefined);
    assert.equal(await warnedOf(kernel, 'class Event {}\nfunction WeakRef() {}\nlet { a: Headers } = { a: 1 }'), 'WeakRef, Event, Headers');
    assert.equal(await warnedOf(kernel, 'var queueMicrotask = 1'), 'queueMicrotask');
    assert.equal(await warnedOf(kernel, "import { setTimeout } from 'node:timers/promises'"), 'setTimeout');
    assert.equal((await kernel.run("const Map = JSON.parse('bad')")).error.name, 'SyntaxError');
    await kernel.printed('stderr', /Map hides a global of Node/);
  });

  test('gets no warning if the value is the same or the name is local', async () => {
    const kernel = await start();
    const harmless = [
      "const process = require('process')", "const { URL, URLSearchParams } = require('url')", "const Buffer = require('buffer').Buffer",
      "import { performance } from 'node:perf_hooks'", "import { setTimeout, clearTimeout } from 'node:timers'", 'const { Headers, Response } = globalThis',
      'const fetch = async () => 1', "const name = 'x', crypto = require('crypto')", 'function f() { const Map = 1; class Set {} }',
      'class MapView {}', '{ const Event = 1 }', 'var Blob = Blob', 'globalThis.Event = class Event {}', 'globalThis.WeakRef = 1; class MyDate extends Date {}', "const s = 'const Date = 1'",
    ];
    for (const code of harmless) assert.equal(await warnedOf(kernel, code), undefined, code);
  });
});
