// Errors of cells in the JavaScript kernel.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('errors', () => {
  test('show only frames of the user', async () => {
    await kernel.run('function thrower() {\n  throw new TypeError("bad")\n}');
    const { status, error } = await kernel.run('const go = () => thrower()\n;[1].forEach(go)');
    assert.equal(status, 'error');
    const frames = ['thrower (cell 1:2:9)', 'go (cell 2:1:18)', 'Array.forEach (<anonymous>)', 'cell 2:2:6'];
    const traceback = ['TypeError: bad', ...frames.map((frame) => `    at ${frame}`)].join('\n');
    assert.deepEqual(error, { name: 'TypeError', message: 'bad', traceback });
  });

  test('show frames after an await, causes and properties', async () => {
    const code = "await 0;\nthrow new Error('outer', { cause: new RangeError('inner') })";
    const { error } = await kernel.run(code);
    assert.match(error.traceback, /^Error: outer\n    at cell 1:2:7 \{\n  \[cause\]: RangeError: inner\n      at cell 1:2:35\n\}$/);
    assert.match((await kernel.run("require('fs').readFileSync('/none')")).error.traceback, /code: 'ENOENT'/);
  });

  test('name the argument that loads a server', async () => {
    const hint = /\nhint: pass servers=\["git_hub"\] with the code, and call mcp\.server\("git_hub"\)$/;
    for (const code of ['await mcp_git_hub.search()', '(() => mcp_git_hub)()']) {
      assert.match((await kernel.run(code)).error.traceback, hint);
    }
    for (const code of ['mcp_', 'mcpx', 'throw new Error("mcp_time is not defined")']) {
      assert.doesNotMatch((await kernel.run(code)).error.traceback, /hint/);
    }
  });

  test('show thrown values that are not errors', async () => {
    const { status, error } = await kernel.run('throw { a: [1] }');
    const expected = { name: 'Uncaught', message: '{ a: [ 1 ] }', traceback: 'Uncaught { a: [ 1 ] }' };
    assert.deepEqual([status, error], ['error', expected]);
    assert.equal((await kernel.run('await 0; throw undefined')).error.message, 'undefined');
  });

  test('recognize errors that are not native', async () => {
    const clone = { name: 'DataCloneError', message: '()=>{} could not be cloned.' };
    const traceback = 'DOMException [DataCloneError]: ()=>{} could not be cloned.\n    at cell 1:1:1';
    assert.deepEqual((await kernel.run('structuredClone(()=>{})')).error, { ...clone, traceback });
    assert.equal((await kernel.run("atob('***')")).error.name, 'InvalidCharacterError');
    const late = await kernel.run("await new Promise((_, no) => { const signal = AbortSignal.timeout(1); signal.onabort = () => no(signal.reason) })");
    assert.deepEqual([late.error.name, late.error.message], ['TimeoutError', 'The operation was aborted due to timeout']);
    const old = 'function Old() { this.message = "m" }; Old.prototype = Object.create(Error.prototype, { name: { value: "Old" } }); throw new Old()';
    const { name, message } = (await kernel.run(old)).error;
    assert.deepEqual([name, message], ['Old', 'm']);
  });

  test('of another thread keep their frames', async () => {
    const thread = "function f() { throw Object.assign(new RangeError('far'), { code: 7 }) }\\nf()";
    const code = `const { Worker } = require('worker_threads'); await new Promise((_, no) => new Worker("${thread}", { eval: true }).on('error', no))`;
    const { name, message, traceback } = (await kernel.run(code)).error;
    assert.deepEqual([name, message], ['RangeError', 'far']);
    assert.match(traceback, /\nRangeError: far\n    at f \(\[worker eval\]:1:\d+\)\n    at \[worker eval\]:2:1 \{\n  code: 7\n\}$/);
  });

  test('show the same frames after the formatter was removed', async () => {
    const { error } = await kernel.run("delete Error.prepareStackTrace;\nfunction f() { throw Object.assign(new Error('x'), { code: 1 }) }\nf()");
    assert.equal(error.traceback, 'Error: x\n    at f (cell 1:2:36)\n    at cell 1:3:1 {\n  code: 1\n}');
    await kernel.run("Error.prepareStackTrace = undefined; setTimeout(() => { throw new Error('late') }, 1)");
    await kernel.printed('stderr', /uncaughtException: Error: late\n    at Timeout\._onTimeout \(cell 2:1:63\)\n$/);
    assert.equal(await kernel.result("new Error('y').stack"), "'Error: y\\n    at cell 3:1:1'");
  });

  test('show the line and a caret for a syntax error', async () => {
    const { error } = await kernel.run('1 + 1\n\tlet x = ;');
    const traceback = "cell 1:2:10\n\tlet x = ;\n\t        ^\nSyntaxError: Unexpected token ';'";
    assert.deepEqual(error, { name: 'SyntaxError', message: "Unexpected token ';'", traceback });
    assert.match((await kernel.run('call(\n')).error.traceback, /^cell 2:2:1\n\n\^\nSyntaxError: Unexpected end of input/);
    assert.match((await kernel.run('`')).error.traceback, /^cell 3:1:/);
  });

  test('of hostile values are reported', async () => {
    const hostile = [
      "throw Object.defineProperty(new Error(), 'message', { get() { throw 1 } })",
      "throw Object.defineProperty(new Error(), 'name', { get() { throw 1 } })",
      "throw Object.defineProperty(new Error(), 'stack', { get() { throw 1 } })",
      'throw new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 1 } })',
      "throw { [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 } }",
      'Promise.prototype.then = () => { throw 1 }; throw 1',
    ];
    for (const code of hostile) assert.equal((await kernel.run(code)).status, 'error', code);
    const result = await kernel.result("({ [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 } })");
    assert.equal(result, '[unprintable]');
  });

  test('in the background are reported and do not end the kernel', async () => {
    await kernel.run("setTimeout(() => { throw new Error('late') }, 1)");
    await kernel.printed('stderr', /uncaughtException: Error: late\n    at Timeout\._onTimeout \(cell 1:1:26\)/);
    await kernel.run("Promise.reject(new Error('alone')); 0");
    await kernel.printed('stderr', /unhandledRejection: Error: alone/);
    assert.equal(await kernel.result('1'), '1');
  });
});
