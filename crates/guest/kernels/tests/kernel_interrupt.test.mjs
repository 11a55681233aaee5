// The end of cells in the JavaScript kernel: work that is not awaited, interrupts, process.exit.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('work that a cell does not await', () => {
  // Long enough for a `done` that is sent too early to overtake the output.
  const DEFINE_WORK = 'const work = () => { for (const end = Date.now() + 300; Date.now() < end; ); }';

  const soon = (code) => `(async () => { for (let i = 0; i < 9; i++) await 0; ${code} })(); 1`;

  async function outputUntilDone(code) {
    await kernel.run(DEFINE_WORK);
    const { status, result } = await kernel.run(code);
    kernel.process.kill('SIGKILL');
    await kernel.closed;
    return { status, result, ...kernel.output };
  }

  test('is reported with the cell if it fails', async () => {
    const code = "async function main() { JSON.parse('{bad') }\nmain(); console.log('started')";
    const { status, stdout, stderr } = await outputUntilDone(`${code}; ${soon('work()')}`);
    assert.deepEqual([status, stdout], ['ok', 'started\n']);
    assert.match(stderr, /^ringfence: unhandledRejection: SyntaxError: .* JSON[^]*at main \(cell 2:1:/);
  });

  test('prints before done if it does not wait', async () => {
    const steps = "async function m() { await null; await null; work(); console.log('step'); throw new Error('late') }";
    const { stdout, stderr } = await outputUntilDone(`${steps}\nm().then(() => console.log('done')); undefined`);
    assert.equal(stdout, 'step\n');
    assert.match(stderr, /unhandledRejection: Error: late/);
  });

  test('can be a tick that throws', async () => {
    const { result, stdout, stderr } = await outputUntilDone(
      "Promise.resolve().then(() => process.nextTick(() => { work(); console.log('tick'); throw new Error('thrown') })); 7");
    assert.deepEqual([result, stdout], ['7', 'tick\n']);
    assert.match(stderr, /uncaughtException: Error: thrown/);
  });

  test('is left to listeners of the guest', async () => {
    await kernel.run("process.on('unhandledRejection', (error) => console.log('rejected', error))");
    await kernel.run("process.once('uncaughtException', (error) => console.log('thrown', error))");
    await kernel.run('Promise.reject(1); setTimeout(() => { throw 2 }, 1); 0');
    await kernel.printed('stdout', /^rejected 1\nthrown 2\n/);
    assert.equal(kernel.output.stderr, '');
    await kernel.run('setTimeout(() => { throw 3 }, 1); 0');
    await kernel.printed('stderr', /uncaughtException: 3/);
  });

  test('displays, exits and ends in its cell', async () => {
    assert.deepEqual((await kernel.run(soon("display('shown')"))).items, [{ mime: 'text/plain', data: 'shown' }]);
    const { status, error } = await kernel.run(soon('process.exit(4)'));
    assert.deepEqual([status, error.message], ['exited', '4']);
    assert.equal(await kernel.result('2'), '2');
  });
});

describe('interrupt', () => {
  const DEFINE_LOOP = "const run = () => console.log('running'); const loop = () => { run(); while (true) {} }; let marker = 0";
  const endless = {
    'a loop': 'marker = 1; loop()',
    'a promise that never settles': 'marker = 1; run(); await new Promise(() => {})',
    'a value that never settles': 'marker = 1; run(); new Promise(() => {})',
    'a loop in a value that it awaits': 'marker = 1; (async () => { await new Promise((go) => setTimeout(go, 5)); loop() })()',
    'a loop after an await': 'marker = 1; await 0; loop()',
    'a loop in a timer': 'marker = 1; setTimeout(loop, 1); await new Promise(() => {})',
    'a loop in an interval': 'marker = 1; setInterval(loop, 1); await new Promise(() => {})',
    'a loop in a tick': 'marker = 1; process.nextTick(loop); await new Promise(() => {})',
    'a loop of microtasks': 'marker = 1; run(); for (;;) await 0',
    'a blocked thread': 'marker = 1; run(); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)',
    'a loop that catches': 'marker = 1; for (;;) { try { loop() } catch {} finally { continue } }',
    'a loop that is not awaited': 'marker = 1; (async () => { for (let i = 0; i < 9; i++) await 0; loop() })(); 1',
    'a loop of microtasks that is not awaited': 'marker = 1; (async () => { for (run(); ; ) await 0 })(); 1',
    'a loop in the printing of the result': "marker = 1; ({ [Symbol.for('nodejs.util.inspect.custom')]: loop })",
  };
  for (const [name, code] of Object.entries(endless)) {
    test(`stops ${name} and preserves the state`, async () => {
      await kernel.run(DEFINE_LOOP);
      const { status, result, error } = await kernel.interrupt(code);
      assert.deepEqual({ status, result, error }, { status: 'interrupted', result: null, error: null });
      assert.equal(await kernel.result('await new Promise((go) => setTimeout(go, 5)); marker'), '1');
    });
  }

  test('stops a cell that waits for a background loop', async () => {
    await kernel.run(`${DEFINE_LOOP}; setTimeout(loop, 1)`);
    await kernel.printed('stdout', /running/);
    // The first signal may arrive before the cell.
    const signals = setInterval(() => kernel.process.kill('SIGINT'), 100).unref();
    const { status } = await kernel.run('0');
    clearInterval(signals);
    assert.equal(status, 'interrupted');
    assert.equal(await kernel.result('1'), '1');
  });

  test('is ignored between cells', async () => {
    for (let i = 0; i < 20; i++) {
      kernel.process.kill('SIGINT');
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    assert.equal(await kernel.result('1'), '1');
  });

  test('works repeatedly', async () => {
    for (let i = 0; i < 10; i++) {
      const code = `console.log('running'); ${i % 2 ? 'while (true) {}' : 'await new Promise(() => {})'}`;
      assert.equal((await kernel.interrupt(code)).status, 'interrupted');
    }
    assert.equal(await kernel.result('1'), '1');
  });

  test('leaves promises that survive garbage collection', async () => {
    await kernel.run("require('v8').setFlagsFromString('--expose-gc')");
    await kernel.interrupt("console.log('running'); await new Promise(() => {})");
    const collect = "await new Promise((go) => setTimeout(go, 5)); require('vm').runInNewContext('gc')()";
    for (let i = 0; i < 5; i++) assert.equal(await kernel.result(`${collect}; ${i}`), String(i));
  });

  test('drops late results of an abandoned cell', async () => {
    await kernel.interrupt("console.log('running'); await new Promise((go) => (later = go)); 2");
    assert.equal(await kernel.result('later(); await new Promise((go) => setTimeout(go, 5)); 3'), '3');
    assert.equal(await kernel.result('4'), '4');
  });
});

describe('process.exit', () => {
  test('ends the cell and not the kernel, and cannot be caught', async () => {
    const code = "let marker = 1; try { process.exit(3) } catch { console.log('caught') } finally { console.log('finally') }";
    const { status, result, error } = await kernel.run(code);
    assert.deepEqual([status, result, error.message], ['exited', null, '3']);
    assert.equal(await kernel.result('marker'), '1');
    assert.equal(kernel.output.stdout, '');
  });

  test('works in async code, in a timer and as an imported function', async () => {
    assert.equal((await kernel.run('await 0; process.exit()')).error.message, '0');
    assert.equal((await kernel.run('process.exitCode = 4; await 0; process.exit()')).error.message, '4');
    assert.equal((await kernel.run('setTimeout(() => process.exit(5), 1); await new Promise(() => {})')).error.message, '5');
    assert.equal((await kernel.run("import { exit } from 'node:process'; exit(6)")).error.message, '6');
    assert.equal((await kernel.run('process.exit()')).error.message, '0');
    assert.equal((await kernel.run("process.exit('3')")).error.message, '3');
    assert.equal((await kernel.run('process.exit(-1)')).error.message, '255');
    assert.equal((await kernel.run('process.exit(null)')).error.message, '0');
    assert.equal((await kernel.run("process.exit('three')")).error.name, 'TypeError');
    assert.equal(await kernel.result('1'), '1');
  });

  test('is ignored outside a cell', async () => {
    await kernel.run('setTimeout(() => process.exit(7), 1)');
    await kernel.printed('stderr', /process\.exit\(7\) outside a cell is ignored/);
    assert.equal(await kernel.result('await new Promise((go) => setTimeout(go, 5)); 1'), '1');
  });

  test('ends the kernel as reallyExit', async () => {
    kernel.control.write(kernel.frame('process.reallyExit(9)'));
    assert.equal(await kernel.exit, 9);
  });
});
