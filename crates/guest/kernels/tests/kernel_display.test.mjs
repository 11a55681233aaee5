// Displays of the JavaScript kernel, and limits of its output.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('limits', () => {
  const LEFT_OUT = /\n… (\d+) characters left out …\n/;
  const isAbout = (text, limit) => text.length <= limit && text.length > limit - 1024;

  test('truncate the middle of a result over 64 Ki characters', async () => {
    for (const unit of ['é', '\\n', '\\0']) {
      const { result, cut } = await kernel.run(`'START' + '${unit}'.repeat(1e6) + 'THE END'`);
      assert.equal(cut, true);
      assert.ok(result.length <= 64 << 10 && result.length > 30 << 10);
      const [head, left, tail] = result.split(LEFT_OUT);
      assert.match(head + tail, /^'START[^]*THE END'$/);
      assert.equal(JSON.parse(`[${head},${tail}]`.replaceAll("'", '"').replaceAll('\\x', '\\u00')).join('').length + Number(left), 1e6 + 12);
    }
    const { result, cut } = await kernel.run('Array.from({ length: 100 }, (_, i) => `${i}`.repeat(1000))');
    assert.ok(cut && isAbout(result, 64 << 10));
    assert.match(result, /^\[\n  '0{1000}',[^]*9{1000}'\n\]$/);
    assert.equal(await kernel.result("'x'.repeat(65000)"), `'${'x'.repeat(65000)}'`);
    assert.equal(kernel.output.stderr, '');
    assert.match(await kernel.result("({ text: 'x'.repeat(1e5) })"), /^\{\n  text: 'x{32768}'\.\.\. 67232 more characters\n\}$/);
  });

  test('avoid copies of a large value', async () => {
    const peak = "require('fs').readFileSync('/proc/self/status', 'utf8').match(/VmHWM:\\s+(\\d+)/)[1] >> 10";
    const before = Number(await kernel.result(peak));
    for (const code of ["'x'.repeat(2 ** 27)", "throw 'x'.repeat(2 ** 27)", "throw new Error('x'.repeat(2 ** 26))"]) {
      const { cut, result, error } = await kernel.run(code);
      assert.equal(cut ?? /more characters$/.test(result), true, code);
      await kernel.run('_ = 0');
      const grown = Number(await kernel.result(peak)) - before;
      assert.ok(grown < 450, `${code}: ${grown} MiB`);
    }
  });

  test('truncate the middle of an error over 32 Ki characters', async () => {
    const { error, cut } = await kernel.run("throw new Error('x'.repeat(1e6) + 'THE END')");
    assert.equal(cut, true);
    for (const part of ['message', 'traceback']) assert.ok(isAbout(error[part], 32 << 10), part);
    assert.match(error.message, /^x+\n… \d+ characters left out …\nx+THE END$/);
    assert.match(error.traceback, /^Error: x+\n… \d+ characters left out …\nx+THE END\n    at cell 1:1:7$/);
    assert.equal(error.message.replace(LEFT_OUT, '').length + Number(LEFT_OUT.exec(error.message)[1]), 1e6 + 7);
    const { error: text } = await kernel.run("throw 'x'.repeat(1e6) + 'THE END'");
    assert.match(text.traceback, /^Uncaught 'x+'\n… \d+ characters left out …\n'x+THE END'$/);
    assert.equal(text.traceback, `Uncaught ${text.message}`);
    assert.equal(kernel.output.stderr, '');
  });

  test('drop displays over 32 per cell with a warning', async () => {
    const { items } = await kernel.run('for (let i = 0; i < 40; i++) display(String(i))');
    assert.equal(items.length, 32);
    await kernel.printed('stderr', /display dropped: the limit is 32 per cell/);
    assert.equal((await kernel.run("display('again')")).items.length, 1);
  });

  test('drop a display over 8 MiB with a warning', async () => {
    const { items } = await kernel.run("display('x'.repeat(8 << 20)); display('x'.repeat((8 << 20) + 1))");
    assert.deepEqual(items.map((item) => item.data.length), [8 << 20]);
    await kernel.printed('stderr', /display dropped: 8388609 bytes exceed the limit of 8388608/);
  });

  test('drop a display that exceeds a frame', async () => {
    assert.deepEqual((await kernel.run("display('\\0'.repeat(8 << 20))")).items, []);
    await kernel.printed('stderr', /display dropped: a frame of \d+ bytes exceeds the limit of 12582912/);
    const { items } = await kernel.run("display('\\n'.repeat(5 << 20)); display('\\n'.repeat(7 << 20))"); // 10 and 14 MiB
    assert.deepEqual(items.map((item) => item.data.length), [5 << 20]);
  });
});

describe('display', () => {
  const display = async (value) => (await kernel.run(`display(${value})`)).items;

  test('recognizes images by their first bytes', async () => {
    const heads = { png: '89504e470d0a1a0a', jpeg: 'ffd8ffe0', gif: '474946383961', webp: '524946460000000057454250' };
    for (const [kind, head] of Object.entries(heads)) {
      const item = { mime: `image/${kind}`, data: Buffer.from(head, 'hex').toString('base64') };
      assert.deepEqual(await display(`Buffer.from('${head}', 'hex')`), [item]);
      assert.deepEqual(await display(`new Uint8Array(Buffer.from('${head}', 'hex'))`), [item]);
    }
    assert.equal((await display('Buffer.from([1, 2])'))[0].data, '<Buffer 01 02>');
  });

  test('shows text, plain objects and other values', async () => {
    assert.deepEqual(await display("'text'"), [{ mime: 'text/plain', data: 'text' }]);
    assert.deepEqual(await display('{ a: [1] }'), [{ mime: 'application/json', data: { a: [1] } }]);
    assert.deepEqual(await display('[1, 2]'), [{ mime: 'application/json', data: [1, 2] }]);
    assert.deepEqual(await display("['\\ud800']"), [{ mime: 'application/json', data: ['\ufffd'] }]);
    assert.deepEqual(await display('new Map([[1, 2]])'), [{ mime: 'text/plain', data: 'Map(1) { 1 => 2 }' }]);
    assert.deepEqual(await display('{ big: 1n }'), [{ mime: 'text/plain', data: '{ big: 1n }' }]);
    assert.deepEqual(await display('null'), [{ mime: 'text/plain', data: 'null' }]);
  });

  test('uses the bundle of the value, as Deno does', async () => {
    const bundle = "{ 'text/html': '<b>', 'image/png': new Uint8Array([1]), 'application/json': { a: 1 } }";
    const items = [
      { mime: 'text/html', data: '<b>' },
      { mime: 'image/png', data: 'AQ==' },
      { mime: 'application/json', data: { a: 1 } },
    ];
    assert.deepEqual(await display(`{ [Symbol.for('Jupyter.display')]: () => (${bundle}) }`), items);
    const { items: later } = await kernel.run(`await display({ [Symbol.for('Jupyter.display')]: async () => (${bundle}) })`);
    assert.deepEqual(later, items);
  });

  test('sends text and JSON as they are and other data in base64', async () => {
    const encoded = async (mime, content) => (await display(`{ [Symbol.for('Jupyter.display')]: () => ({ '${mime}': ${content} }) }`))[0].data;
    const inBase64 = (text) => Buffer.from(text).toString('base64');
    assert.equal(await encoded('image/svg+xml', "'<svg>é</svg>'"), inBase64('<svg>é</svg>'));
    assert.equal(await encoded('application/pdf', "'%PDF'"), inBase64('%PDF'));
    assert.equal(await encoded('application/x', '{ a: 1 }'), inBase64('{"a":1}'));
    assert.equal(await encoded('image/png', "'AQ\\n =\\r\\n=\\n'"), 'AQ==');
    assert.deepEqual(await encoded('application/vnd.vega.v5+json', '{ a: [1] }'), { a: [1] });
    assert.equal(await encoded('application/json', "'text'"), 'text');
    assert.equal(await encoded('application/json', 'undefined'), null);
    assert.equal(await encoded('text/csv', "Buffer.from('é')"), 'é');
    await kernel.run("display([ 'x'.repeat(8 << 20) ])");
    await kernel.printed('stderr', /display dropped: 8388612 bytes exceed the limit of 8388608/);
  });

  test('returns no result and is dropped outside its cell', async () => {
    assert.equal((await kernel.run('display(1)')).result, null);
    await kernel.run("setTimeout(() => display('late'), 1)");
    await kernel.printed('stderr', /display dropped: its cell is not running/);
  });
});
