// Standard streams of the JavaScript kernel.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { KERNEL, Kernel, endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('output', () => {
  test('goes to descriptors 1 and 2, also that of children', async () => {
    const child = "require('child_process').spawnSync('sh', ['-c', 'echo child; echo oops >&2'], { stdio: 'inherit' })";
    await kernel.run(`console.log('one'); ${child}; console.error('two'); 0`);
    await kernel.printed('stdout', /^one\nchild\n$/);
    await kernel.printed('stderr', /^oops\ntwo\n$/);
  });

  test('of timers and promises goes on between cells', async () => {
    await kernel.run("var pause = (ms) => new Promise((go) => setTimeout(go, ms)); setInterval(() => console.log('tick'), 5); 0");
    await kernel.run("(async () => { for (;;) { await pause(5); console.log('step') } })(); 0");
    await kernel.printed('stdout', /(tick[^]*){9}/);
    await kernel.printed('stdout', /(step[^]*){9}/);
    assert.equal(await kernel.result('1 + 1'), '2');
  });

  test('of children does not reach the control socket', async () => {
    const list = "require('child_process').execFileSync('readlink', ['/proc/self/fd/3'], { stdio: ['ignore', 'pipe', 'ignore'] })";
    const { status, error } = await kernel.run(`${list}.toString()`);
    assert.equal(status, 'error', 'descriptor 3 is open in a child');
    assert.match(error.message, /Command failed: readlink/);
  });

  test('pipes stay blocking for children', async () => {
    const flags = "require('child_process').spawnSync('cat', ['/proc/self/fdinfo/1'], { stdio: ['ignore', 'inherit', 'inherit'] })";
    await kernel.run(`console.log('used'); ${flags}; 0`);
    await kernel.printed('stdout', /flags:\s+\d+/);
    const bits = parseInt(kernel.output.stdout.match(/flags:\s+(\d+)/)[1], 8);
    assert.equal(bits & 0o4000, 0, 'O_NONBLOCK');
  });

  test('is written completely before done, even for a slow reader', async () => {
    // After the kernel is killed at `done`, the reader gets only what was written before.
    const script = '"$0" "$1" 3 | { sleep 0.2; wc -c; } >&2';
    const slow = new Kernel(['sh', '-c', script, process.execPath, KERNEL]);
    await slow.next();
    const { result } = await slow.run("process.stdout.write('x'.repeat(50 << 20)); process.pid");
    process.kill(Number(result), 'SIGKILL');
    await slow.exit;
    await slow.printed('stderr', /^\d+$/m);
    assert.equal(Number(slow.output.stderr.match(/^\d+$/m)), 50 << 20);
  });

  test('refuses values other than text and bytes, as Node does', async () => {
    assert.match((await kernel.run('process.stdout.write(5)')).error.traceback, /TypeError.*"chunk" argument must be/);
    assert.match((await kernel.run('process.stderr.write(null)')).error.traceback, /ERR_STREAM_NULL_VALUES/);
    await kernel.run("process.stdout.write(new Uint8Array([104, 105])); process.stdout.write('21', 'hex')");
    await kernel.printed('stdout', /^hi!$/);
  });

  test('works after a cell that closes descriptors 1 and 2', async () => {
    await kernel.run("const fs = require('fs'); fs.closeSync(1); await new Promise((go) => fs.close(2, go)); fs.close(1)");
    await kernel.run("import { closeSync } from 'node:fs'; closeSync(2); fs.createWriteStream('', { fd: 1 }).end('streamed ')");
    await kernel.run("fs.closeSync(fs.openSync('.')); console.log('shown'); console.error('too')");
    await kernel.printed('stdout', /^streamed shown$/m);
    await kernel.printed('stderr', /^too$/m);
  });
});

describe('an output stream', () => {
  const pipe = "await require('stream/promises').pipeline(fs.createReadStream('a.txt'), process.stdout)";
  const ends = {
    'is at the end of a pipeline': pipe,
    'is ended': "process.stdout.end('a\\n'); process.stderr.end()",
    'is ended with a callback': "await new Promise((go) => process.stdout.end('610a', 'hex', go)); await new Promise((go) => process.stderr.end(go))",
    'is ended and awaited': "const end = require('stream/promises').finished(process.stdout); process.stdout.end('a\\n'); await end",
    'is destroyed': "process.stdout.write('a\\n'); process.stdout.destroy(); process.stderr.destroy()",
    'is part of a pipeline that fails': `try { ${pipe.replace('a.txt', 'none')} } catch { process.stdout.write('a\\n') }`,
  };
  // With sockets, which this process creates, and with pipes.
  const starts = { socket: undefined, pipe: ['sh', '-c', '{ "$0" "$1" 3 2>&1 >&4 | cat >&2; } 4>&1 | cat', process.execPath, KERNEL] };
  for (const [kind, command] of Object.entries(starts)) {
    for (const [how, code] of Object.entries(ends)) {
      test(`stays usable if it ${how} (${kind})`, async () => {
        const fresh = new Kernel(command);
        await fresh.next();
        await fresh.run("const fs = require('fs'); fs.writeFileSync('a.txt', 'a\\n')");
        for (let i = 0; i < 12; i++) assert.equal((await fresh.run(`{ ${code} }\n;0`)).error, null);
        await fresh.run(`${pipe}; console.log('out'); console.error('err'); process.stdout.end('last')`);
        await fresh.printed('stdout', /^(?:a\n){13}out\nlast$/);
        await fresh.printed('stderr', /^err\n$/);
      });
    }
  }
});

describe('standard input', () => {
  const NO_INPUT = 'standard input is not available in this sandbox: pass values in the code';
  const readers = {
    'a question': "const rl = require('readline/promises').createInterface({ input: process.stdin, output: process.stdout }); await rl.question('? ')",
    'a question that calls back': "await new Promise((go) => require('readline').createInterface({ input: process.stdin }).question('? ', go))",
    'an imported question': "import { stdin as input } from 'node:process'; import * as lines from 'node:readline/promises'; await lines.createInterface({ input }).question('?')",
    'a listener': "await new Promise((go) => process.stdin.once('data', go))",
    'a listener for keys': "require('readline').emitKeypressEvents(process.stdin); process.stdin.on('keypress', () => {})",
    'a loop': 'for await (const chunk of process.stdin) chunk',
    'a pipe': "process.stdin.pipe(new (require('stream').PassThrough)())",
    'a read': 'process.stdin.read()',
    'a consumer': "await require('stream/consumers').text(process.stdin)",
  };
  for (const [name, code] of Object.entries(readers)) {
    test(`refuses ${name} immediately`, async () => {
      const { status, error } = await kernel.run(code);
      assert.deepEqual([status, error?.message], ['error', NO_INPUT]);
      assert.equal(await kernel.result('1'), '1');
    });
  }

  test('can be inspected without reading', async () => {
    assert.equal(await kernel.result("process.stdin.setEncoding('utf8').pause(); [process.stdin.isTTY, process.stdin.fd]"), '[ undefined, 0 ]');
    assert.equal(await kernel.result("process.stdin.resume(); process.stdin.on('end', () => {}); 1"), '1');
  });

  test('is empty as a file and for children', async () => {
    assert.equal(await kernel.result("require('fs').readFileSync(0, 'utf8')"), "''");
    const cat = "require('child_process').spawnSync('cat', { stdio: [process.stdin, 'pipe', 'inherit'] }).stdout.length";
    assert.equal(await kernel.result(cat), '0');
  });
});
