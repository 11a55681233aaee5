// kernel.mjs as the host sees it: a process, a socket, two output pipes.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe } from 'node:test';

import { KERNEL, Kernel, directory, endKernels, pack, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => {
  kernel = new Kernel();
  assert.equal((await kernel.next()).type, 'ready');
});
afterEach(endKernels);

describe('protocol', () => {
  test('says once that it is ready', async () => {
    const fresh = new Kernel();
    const ready = { type: 'ready', language: 'javascript', version: process.versions.node };
    assert.deepEqual(await fresh.next(), ready);
    assert.equal((await fresh.run('1')).type, 'done');
  });

  test('runs nothing before it can be interrupted', async () => {
    const fresh = Array.from({ length: 8 }, () => new Kernel());
    for (const it of fresh) it.control.write(it.frame('1'));
    for (const it of fresh) {
      assert.equal((await it.next()).type, 'ready');
      assert.equal((await it.next()).type, 'done');
    }
  });

  test('answers what has broken the kernel, and what is long and odd, at once', async () => {
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
    test(`answers each cell when one has broken ${what}, and lives on`, async () => {
      await kernel.run('let keep = 1; const later = setTimeout');
      for (const cell of [`${code}; 1`, 'keep', 'null.x', '1 +', 'var keep = 2', 'later(() => null.x, 1)', 'throw keep']) {
        assert.equal((await kernel.run(cell)).type, 'done', cell);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert.equal((await kernel.run('0')).type, 'done');
    });
  }

  test('answers each cell with exactly one done, in order', async () => {
    kernel.control.write(Buffer.concat([kernel.frame('1'), kernel.frame('await 2'), kernel.frame('3')]));
    for (const id of [1, 2, 3]) {
      const done = { type: 'done', id, status: 'ok', result: String(id), error: null };
      assert.deepEqual(await kernel.next(), done);
    }
  });

  test('takes a large frame in pieces', async () => {
    const frame = kernel.frame(`"${'x'.repeat(10 << 20)}".length`);
    kernel.control.write(frame.subarray(0, 2));
    await new Promise(setImmediate);
    kernel.control.write(frame.subarray(2));
    assert.equal((await kernel.next()).result, String(10 << 20));
  });

  test('refuses a frame over 72 MiB, and over 16 if it is no answer', async () => {
    kernel.control.write(Buffer.from([4, 0x80, 0, 1]));
    assert.equal(await kernel.exit, 'SIGKILL');
    await kernel.printed('stderr', /75497473 bytes, over 75497472/);
    const other = new Kernel();
    await other.next();
    other.control.write(other.frame('x'.repeat(16 << 20)));
    assert.equal(await other.exit, 'SIGKILL');
    await other.printed('stderr', /1677\d+ bytes, over 16777216/);
  });

  test('refuses a frame of a type it does not know', async () => {
    kernel.control.write(pack({ type: 'verdict', id: 1 }));
    assert.equal(await kernel.exit, 'SIGKILL');
    await kernel.printed('stderr', /unknown type: verdict/);
  });

  test('ends when the host hangs up, also in an endless loop', async () => {
    await kernel.run("console.log('up')");
    kernel.control.write(kernel.frame("console.log('looping'); while (true) {}"));
    await kernel.printed('stdout', /looping/);
    kernel.control.destroy();
    assert.equal(await kernel.exit, 'SIGKILL');
  });

  test('sends what has no UTF-8 as something that has', async () => {
    const { items } = await kernel.run("display('a\\ud800b')");
    assert.equal(items[0].data, 'a\ufffdb');
  });
});

describe('state', () => {
  test('keeps declarations and lets them be made again', async () => {
    await kernel.run('let a = 1; const b = 2; class C { m() { return 3 } } function d() { return 4 } var e = 5');
    assert.equal(await kernel.result('[a, b, new C().m(), d(), e]'), '[ 1, 2, 3, 4, 5 ]');
    await kernel.run('let a = 6; const b = 7; class C { m() { return 8 } } function d() { return 9 } var e = 10');
    assert.equal(await kernel.result('[a, b, new C().m(), d(), e]'), '[ 6, 7, 8, 9, 10 ]');
  });

  test('lets a declaration that failed be made again', async () => {
    assert.equal((await kernel.run('const x = (() => { throw 1 })()')).status, 'error');
    assert.equal(await kernel.result('const x = 2; x'), '2');
  });

  test('lets every declaration be made again as any other', async () => {
    const kinds = {
      const: (x, n) => `const ${x} = ${n}; ${x}`,
      assigned: (x, n) => `const ${x} = ${n}; const f_${x} = () => { let ${x}; ${x} = 3 }; ${x}`,
      assigned_pattern: (x, n) => `const { ${x}, a: ${x}_0 } = { ${x}: ${n} }; const g_${x} = (${x}_0 = 3) => 3; ${x}`,
      indented: (x, n) => `1\n  const ${x} = ${n}; ${x}`,
      let: (x, n) => `let ${x} = ${n}; ${x}++; ${x} - 1`,
      var: (x, n) => `var ${x} = ${n}; ${x}`,
      pattern: (x, n) => `const ${x}_0 = 0, [${x}] = [${n}]; ${x}`,
      function: (x, n) => `function ${x}() { return ${n} }\n${x}()`,
      class: (x, n) => `class ${x} { static n = ${n} }\n(${x}.n)`,
      import: (x) => `import { two as ${x} } from './one.mjs'; ${x}`,
    };
    for (const first of Object.keys(kinds)) {
      for (const second of Object.keys(kinds)) {
        const name = `${first}_${second}`;
        await kernel.result(`${kinds[first](name, 1)}\nvar see = () => ${name}`);
        const { result, error } = await kernel.run(kinds[second](name, 2));
        assert.equal(result, '2', `${name}: ${error?.traceback}`);
        assert.equal(await kernel.result(`see() === ${name}`), 'true');
      }
    }
  });

  test('makes a variable anew that was there as a property', async () => {
    await kernel.run('var x = 1');
    assert.equal(await kernel.result('let x\ntypeof x'), "'undefined'");
    await kernel.run('const y = JSON.parse("bad")');
    assert.equal(await kernel.result('let y = 2; y'), '2');
  });

  test('refuses at once, with the place and what to do, what it cannot declare', async () => {
    await kernel.run('let i = 1; const main = 2');
    const { status, error } = await kernel.run('1 + 1\nfor (var i = 0; i < 3; i++) {}');
    const advice = "Identifier 'i' has already been declared: an earlier cell did so in another way. Use the same keyword, or another name";
    const traceback = `cell 2:2:10\nfor (var i = 0; i < 3; i++) {}\n         ^\nSyntaxError: ${advice}`;
    assert.deepEqual([status, error], ['error', { name: 'SyntaxError', message: advice, traceback }]);
    assert.match((await kernel.run('main(); function main() {}')).error.message, /'main' has already.*another name/);
    assert.match((await kernel.run('var i = 1; { var i = 2 }')).error.message, /'i' has already.*another name/);
    assert.match((await kernel.run('function i() {}\nfunction i() {}')).error.message, /'i' has already.*another name/);
    assert.equal((await kernel.run('function NaN() {}')).error.message, "Identifier 'NaN' has already been declared");
    assert.equal((await kernel.run('let undefined = 1')).error.name, 'SyntaxError');
    assert.equal((await kernel.run('let twice = 1; let twice = 2')).error.message, "Identifier 'twice' has already been declared");
    await kernel.run('Object.freeze(globalThis)');
    assert.equal((await kernel.run('var b = 1')).error.name, 'TypeError');
    assert.equal(await kernel.result('i + main'), '3');
  });

  test('takes code as large as there is', async () => {
    const lines = Array.from({ length: 5000 }, (_, i) => `const v${i} = ${i}`);
    const start = performance.now();
    assert.equal(await kernel.result(`${lines.join('\n')}\n1`), '1');
    assert.match((await kernel.run(`${lines.join(';')};1`)).error.message, /another name/); // too many to be adapted
    assert.equal(await kernel.result(`${lines.join(';').replaceAll('v', 'w')};1`), '1');
    assert.equal(await kernel.result(`"${'const x = 1; '.repeat(5e5)}".length`), '6500000');
    assert.equal(await kernel.result(`${' '.repeat(1e6)}const spaced = 1;${' '.repeat(1e6)}spaced`), '1');
    assert.ok(performance.now() - start < 20_000);
  });

  test('tells a cell that it assigns to a constant', async () => {
    for (const code of ['const a = 1; a = 2', 'const b = 1\nb += 2', 'const { c } = { c: 1 }\nc++', 'const d = 1; --d']) {
      assert.equal((await kernel.run(code)).error?.message, 'Assignment to constant variable.', code);
      assert.equal((await kernel.run(code)).error?.message, 'Assignment to constant variable.', code);
    }
    assert.equal(await kernel.result('const a = 5; a'), '5');
  });

  test('lets the cell that assigned to a constant be put right', async () => {
    const wrong = 'const count = 0; var see = () => count; count++';
    const error = { name: 'TypeError', message: 'Assignment to constant variable.' };
    assert.deepEqual((await kernel.run(wrong)).error, { ...error, traceback: 'TypeError: Assignment to constant variable.\n    at cell 1:1:46' });
    assert.equal((await kernel.run(wrong)).error?.message, error.message);
    assert.equal(await kernel.result('count'), '0');
    assert.equal(await kernel.result('let count = 0; count++; [count, see()]'), '[ 1, 1 ]');
    const inner = 'const total = 0; function f() { let total; total = 1; return total } f()';
    assert.equal(await kernel.result(inner), '1');
    assert.equal(await kernel.result('total'), '0');
    assert.equal(await kernel.result('let total = 5; total'), '5');
    await kernel.run('const n = 1; let set = () => { n = 2 }');
    assert.equal(await kernel.result('n = 3; set(); var n = n + 2; n'), '4');
  });

  test('treats what may be assigned to as the constant that it is', async () => {
    assert.match((await kernel.run('early; const early = 1; early = 2')).error.message, /^Cannot access 'early' before/);
    assert.equal((await kernel.run('early')).error.name, 'ReferenceError');
    assert.match((await kernel.run('const two = 1; two = 2; const two = 3')).error.message, /^Identifier 'two' has already/);
    await kernel.run('const kept = 1; const later = (kept = 2) => kept; let other = 1');
    assert.match((await kernel.run('const kept = 5; kept = 6; for (var other of []) {}')).error.message, /'other' has already/);
    assert.equal(await kernel.result('[kept, later()]'), '[ 1, 2 ]');
    await kernel.run('const { URL, own } = { own: 1 }; const g = (own = 2) => own; const _ = 3; const h = (_ = 4) => _');
    assert.equal(await kernel.result("5; new globalThis.URL('a:b').href"), "'a:b'");
    assert.equal(await kernel.result('[own, _]'), '[ 1, 3 ]');
    assert.equal(await kernel.result("function nested() { try {\nconst own = 1; own = 2 } catch { return 'told' } }\nnested()"), "'told'");
  });

  test('refuses a constant without a value', async () => {
    for (const code of ['const none', 'const none;', 'const none, b = 1', 'const none // = 1', 'const none\n1', '1; const none;']) {
      assert.equal((await kernel.run(code)).error?.message, 'Missing initializer in const declaration', code);
    }
    assert.equal(await kernel.result('const some /* ; */\n= 1; const none$ = 2\nsome + none$'), '3');
    assert.equal(await kernel.result('let some = 4; some'), '4');
  });

  test('leaves text that looks like a declaration alone', async () => {
    const code = 'const text = `\nconst a = 1; const b = 2;\n`; const more = "; const c";\n/*\nconst d\n*/ text + more';
    assert.equal(await kernel.result(code), "'\\nconst a = 1; const b = 2;\\n; const c'");
    assert.equal(await kernel.result('const {} = {}, [] = []; 1'), '1');
    await kernel.run('var x = 1');
    assert.equal(await kernel.result('let y = "let ", x = 2; y + x'), "'let 2'");
  });

  test('awaits at top level and gives the last value', async () => {
    assert.equal(await kernel.result('const v = await new Promise((go) => setTimeout(go, 5, 7)); v + 1'), '8');
    assert.equal(await kernel.result("'text'"), "'text'");
    for (const code of ['undefined', '', '// nothing', 'let q = 1']) assert.equal(await kernel.result(code), null);
    assert.equal(await kernel.result('{ a: 1, b: 2 } // an object'), '{ a: 1, b: 2 }');
    assert.equal(await kernel.result('{ let q = 2; q + 1 }'), '3');
    assert.equal(await kernel.result('{ a: 1 };'), '1');
  });

  test('awaits a promise that is the last value', async () => {
    const later = 'new Promise((go) => setTimeout(go, 20))';
    const main = `async function main(x) { await ${later}; console.log('went on'); if (x) throw new RangeError(x); return 5 }`;
    assert.equal(await kernel.result(`${main}\nmain()`), '5');
    await kernel.printed('stdout', /^went on$/m);
    assert.equal(await kernel.result('_ + 1'), '6');
    const { status, error } = await kernel.run("main('bad')");
    assert.deepEqual([status, error.message], ['error', 'bad']);
    assert.match(error.traceback, /^RangeError: bad\n    at main \(cell 1:1:/);
    assert.equal(await kernel.result("main('bad').catch((it) => it.message)"), "'bad'");
    assert.equal((await kernel.run('Promise.reject(1)')).error.message, '1');
    assert.equal(await kernel.result('({ then: (go) => go(1) })').then((it) => /then/.test(it)), true);
    const odd = 'class Odd extends Promise { static get [Symbol.species]() { throw new Error("odd") } }; Odd.resolve(1)';
    assert.equal((await kernel.run(odd)).error.message, 'odd');
    assert.doesNotMatch(kernel.output.stderr, /unhandledRejection/);
  });

  test('awaits no promise that it only keeps', async () => {
    assert.equal(await kernel.result('const never = new Promise(() => {})'), null);
    assert.equal(await kernel.result('[never]'), '[ Promise { <pending> } ]');
  });

  test('holds the last value in _', async () => {
    await kernel.run('41');
    await kernel.run('undefined');
    assert.equal(await kernel.result('_ + 1'), '42');
  });

  test('leaves a _ of the guest alone', async () => {
    await kernel.run("var _ = 'mine'");
    await kernel.run('5');
    assert.equal(await kernel.result('_'), "'mine'");
  });
});

describe('imports', () => {
  writeFileSync(join(directory, 'one.mjs'), 'export default 1; export const two = 2; export { two as "a-b" }');
  writeFileSync(join(directory, 'none.mjs'), '');
  writeFileSync(join(directory, 'data.json'), '{"three":3}');

  test('has require and import() from the working directory', async () => {
    assert.equal(await kernel.result("require('./data.json').three + (await import('./one.mjs')).two"), '5');
    assert.equal(await kernel.result("(await import('node:path')).sep + require('os').EOL"), "'/\\n'");
    await kernel.run("fs = require('fs'); fs.mkdirSync('sub'); process.chdir('sub')");
    await kernel.run("fs.writeFileSync('four.mjs', 'export default 4')");
    assert.equal(await kernel.result("(await import('./four.mjs')).default"), '4');
    assert.equal(await kernel.result("require('../data.json').three"), '3');
    assert.equal(await kernel.result('import.meta.dirname === process.cwd()'), 'true');
  });

  test('takes every form of static import', async () => {
    const code = [
      "import one, { two, 'a-b' as ab, two as /* why */ zwei } from './one.mjs'",
      'import * as path from "node:path"; import whole, * as space from "./one.mjs"',
      "import {",
      "  readFileSync as read, // a comment, with a comma",
      "} from 'node:fs';",
      "import './one.mjs'",
      "import json from './data.json' with { type: 'json' }",
      "[one, two, ab, zwei, path.sep, whole, space.two, typeof read, json.three]",
    ].join('\n');
    assert.equal((await kernel.result(code)).replace(/\s+/g, ' '), "[ 1, 2, 2, 2, '/', 1, 2, 'function', 3 ]");
    assert.equal(await kernel.result('one + two'), '3');
  });

  test('leaves text and properties that look like imports alone', async () => {
    const code = [
      "const text = `import a from 'b' ${(await import('./one.mjs')).default} import('c')`;",
      "const it = { import: 1, y: { import(x) { return x } } }; // import d from 'e'",
      "const divided = 4 / 2 /1; /import('x')/.test(\"import('x')\");",
      "[text, it.import, it.y.import('f'), 'import g from \"h\"', divided]",
    ].join('\n');
    const expected = "[ \"import a from 'b' 1 import('c')\", 1, 'f', 'import g from \"h\"', 2 ]";
    assert.equal((await kernel.result(code)).replace(/\s+/g, ' '), expected);
  });

  test('keeps line numbers below an import', async () => {
    const { error } = await kernel.run("import {\n  two\n} from './one.mjs'\nnull.x");
    assert.match(error.traceback, /at cell 1:4:6/);
  });

  test('keeps columns after an import', async () => {
    const code = "import one from './one.mjs'; import {\n  two\n} from './one.mjs'; (await import('./one.mjs')).two.x.y";
    assert.match((await kernel.run(code)).error.traceback, /at cell 1:3:55$/);
    assert.match((await kernel.run("import one from './one.mjs'; let = ;")).error.traceback, /^cell 2:1:36\n.*\n {35}\^\n/);
  });

  test('refuses what a module does not export', async () => {
    const { error } = await kernel.run("import one, { two, nope } from './one.mjs'");
    assert.equal(error.name, 'SyntaxError');
    assert.equal(error.message, "The requested module './one.mjs' does not provide an export named 'nope'");
    assert.match((await kernel.run("import none from './none.mjs'")).error.message, /named 'default'/);
  });

  test('knows the older word for attributes', async () => {
    assert.equal(await kernel.result("import json from './data.json' assert { type: 'json' }; json.three"), '3');
  });

  test('is a program to the code: arguments, module, main', async () => {
    assert.equal(await kernel.result('process.argv.slice(2)'), '[]');
    assert.equal(await kernel.result("require.main === module && import.meta.url === require('url').pathToFileURL(process.argv[1]).href"), 'true');
    assert.equal(await kernel.result('module.exports = { a: 1 }; exports.b = 2; module.exports.a'), '1');
    assert.equal(await kernel.result('__dirname === process.cwd() && __filename === module.filename'), 'true');
    assert.equal(await kernel.result("process.chdir('/'); 1"), '1');
    assert.equal(await kernel.result('[__dirname, require.main === module, process.argv[1]]'), "[ '/', true, '/cell.cjs' ]");
  });

  test('does not import inside a function', async () => {
    assert.equal((await kernel.run("function f() { import x from './one.mjs' }")).error.name, 'SyntaxError');
  });
});

describe('output', () => {
  test('goes to 1 and 2, that of children too', async () => {
    const child = "require('child_process').spawnSync('sh', ['-c', 'echo child; echo oops >&2'], { stdio: 'inherit' })";
    await kernel.run(`console.log('one'); ${child}; console.error('two'); 0`);
    await kernel.printed('stdout', /^one\nchild\n$/);
    await kernel.printed('stderr', /^oops\ntwo\n$/);
  });

  test('does not give the control socket to children', async () => {
    const list = "require('child_process').execFileSync('readlink', ['/proc/self/fd/3'], { stdio: ['ignore', 'pipe', 'ignore'] })";
    const { status, error } = await kernel.run(`${list}.toString()`);
    assert.equal(status, 'error', 'descriptor 3 is open in a child');
    assert.match(error.message, /Command failed: readlink/);
  });

  test('leaves its pipes blocking for children', async () => {
    const flags = "require('child_process').spawnSync('cat', ['/proc/self/fdinfo/1'], { stdio: ['ignore', 'inherit', 'inherit'] })";
    await kernel.run(`console.log('used'); ${flags}; 0`);
    await kernel.printed('stdout', /flags:\s+\d+/);
    const bits = parseInt(kernel.output.stdout.match(/flags:\s+(\d+)/)[1], 8);
    assert.equal(bits & 0o4000, 0, 'O_NONBLOCK');
  });

  test('is all written before done, however slow the reader', async () => {
    // Killed at `done`, the kernel can have left nothing behind but what fits into a pipe.
    const script = '"$0" "$1" 3 | { sleep 0.5; wc -c; } >&2';
    const slow = new Kernel(['sh', '-c', script, process.execPath, KERNEL]);
    await slow.next();
    const { result } = await slow.run("process.stdout.write('x'.repeat(50 << 20)); process.pid");
    process.kill(Number(result), 'SIGKILL');
    await slow.exit;
    await slow.printed('stderr', /^\d+$/m);
    assert.equal(Number(slow.output.stderr.match(/^\d+$/m)), 50 << 20);
  });

  test('refuses what is no text and no bytes, as Node does', async () => {
    assert.match((await kernel.run('process.stdout.write(5)')).error.traceback, /TypeError.*"chunk" argument must be/);
    assert.match((await kernel.run('process.stderr.write(null)')).error.traceback, /ERR_STREAM_NULL_VALUES/);
    await kernel.run("process.stdout.write(new Uint8Array([104, 105])); process.stdout.write('21', 'hex')");
    await kernel.printed('stdout', /^hi!$/);
  });

  test('is there after a cell that closes 1 and 2', async () => {
    await kernel.run("const fs = require('fs'); fs.closeSync(1); await new Promise((go) => fs.close(2, go)); fs.close(1)");
    await kernel.run("import { closeSync } from 'node:fs'; closeSync(2); fs.createWriteStream('', { fd: 1 }).end('streamed ')");
    await kernel.run("fs.closeSync(fs.openSync('.')); console.log('shown'); console.error('too')");
    await kernel.printed('stdout', /^streamed shown$/m);
    await kernel.printed('stderr', /^too$/m);
  });
});

describe('a stream of output', () => {
  const pipe = "await require('stream/promises').pipeline(fs.createReadStream('a.txt'), process.stdout)";
  const ends = {
    'is at the end of a pipeline': pipe,
    'is ended': "process.stdout.end('a\\n'); process.stderr.end()",
    'is ended and told of': "await new Promise((go) => process.stdout.end('610a', 'hex', go)); await new Promise((go) => process.stderr.end(go))",
    'is ended and waited for': "const end = require('stream/promises').finished(process.stdout); process.stdout.end('a\\n'); await end",
    'is destroyed': "process.stdout.write('a\\n'); process.stdout.destroy(); process.stderr.destroy()",
    'is part of a pipeline that fails': `try { ${pipe.replace('a.txt', 'none')} } catch { process.stdout.write('a\\n') }`,
  };
  // With sockets, as this process makes them, and with pipes.
  const starts = { socket: undefined, pipe: ['sh', '-c', '{ "$0" "$1" 3 2>&1 >&4 | cat >&2; } 4>&1 | cat', process.execPath, KERNEL] };
  for (const [kind, command] of Object.entries(starts)) {
    for (const [how, code] of Object.entries(ends)) {
      test(`lives on if it ${how}: a ${kind}`, async () => {
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
    test(`refuses ${name} at once`, async () => {
      const { status, error } = await kernel.run(code);
      assert.deepEqual([status, error?.message], ['error', NO_INPUT]);
      assert.equal(await kernel.result('1'), '1');
    });
  }

  test('may be asked what it is and left alone', async () => {
    assert.equal(await kernel.result("process.stdin.setEncoding('utf8').pause(); [process.stdin.isTTY, process.stdin.fd]"), '[ undefined, 0 ]');
    assert.equal(await kernel.result("process.stdin.resume(); process.stdin.on('end', () => {}); 1"), '1');
  });

  test('is empty as a file and for children', async () => {
    assert.equal(await kernel.result("require('fs').readFileSync(0, 'utf8')"), "''");
    const cat = "require('child_process').spawnSync('cat', { stdio: [process.stdin, 'pipe', 'inherit'] }).stdout.length";
    assert.equal(await kernel.result(cat), '0');
  });
});

describe('what a cell does not await', () => {
  // Long enough for a `done` that is sent too early to overtake it.
  const SLOW = 'const work = () => { for (const end = Date.now() + 300; Date.now() < end; ); }';

  const soon = (code) => `(async () => { for (let i = 0; i < 9; i++) await 0; ${code} })(); 1`;

  async function outputUntilDone(code) {
    await kernel.run(SLOW);
    const { status, result } = await kernel.run(code);
    kernel.process.kill('SIGKILL');
    await kernel.closed;
    return { status, result, ...kernel.output };
  }

  test('is reported with the cell if it has failed', async () => {
    const code = "async function main() { JSON.parse('{bad') }\nmain(); console.log('started')";
    const { status, stdout, stderr } = await outputUntilDone(`${code}; ${soon('work()')}`);
    assert.deepEqual([status, stdout], ['ok', 'started\n']);
    assert.match(stderr, /^ringfence: unhandledRejection: SyntaxError: .* JSON[^]*at main \(cell 2:1:/);
  });

  test('prints before done if it waits for nothing', async () => {
    const steps = "async function m() { await null; await null; work(); console.log('step'); throw new Error('late') }";
    const { stdout, stderr } = await outputUntilDone(`${steps}\nm().then(() => console.log('done')); undefined`);
    assert.equal(stdout, 'step\n');
    assert.match(stderr, /unhandledRejection: Error: late/);
  });

  test('may be a tick, and may throw', async () => {
    const { result, stdout, stderr } = await outputUntilDone(
      "Promise.resolve().then(() => process.nextTick(() => { work(); console.log('tick'); throw new Error('thrown') })); 7");
    assert.deepEqual([result, stdout], ['7', 'tick\n']);
    assert.match(stderr, /uncaughtException: Error: thrown/);
  });

  test('is left to the listeners of the guest', async () => {
    await kernel.run("process.on('unhandledRejection', (it) => console.log('rejected', it))");
    await kernel.run("process.once('uncaughtException', (it) => console.log('thrown', it))");
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
  const RUN = "const run = () => console.log('running'); const loop = () => { run(); while (true) {} }; let kept = 0";
  const endless = {
    'a loop': 'kept = 1; loop()',
    'a promise that never settles': 'kept = 1; run(); await new Promise(() => {})',
    'a value that never settles': 'kept = 1; run(); new Promise(() => {})',
    'a loop in a value that it awaits': 'kept = 1; (async () => { await new Promise((go) => setTimeout(go, 5)); loop() })()',
    'a loop after an await': 'kept = 1; await 0; loop()',
    'a loop in a timer': 'kept = 1; setTimeout(loop, 1); await new Promise(() => {})',
    'a loop in an interval': 'kept = 1; setInterval(loop, 1); await new Promise(() => {})',
    'a loop in a tick': 'kept = 1; process.nextTick(loop); await new Promise(() => {})',
    'a loop of microtasks': 'kept = 1; run(); for (;;) await 0',
    'a blocked thread': 'kept = 1; run(); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)',
    'a loop that catches': 'kept = 1; for (;;) { try { loop() } catch {} finally { continue } }',
    'a loop that is not awaited': 'kept = 1; (async () => { for (let i = 0; i < 9; i++) await 0; loop() })(); 1',
    'a loop of microtasks that is not awaited': 'kept = 1; (async () => { for (run(); ; ) await 0 })(); 1',
    'a loop in the printing of the result': "kept = 1; ({ [Symbol.for('nodejs.util.inspect.custom')]: loop })",
  };
  for (const [name, code] of Object.entries(endless)) {
    test(`stops ${name} and keeps the state`, async () => {
      await kernel.run(RUN);
      const { status, result, error } = await kernel.interrupt(code);
      assert.deepEqual({ status, result, error }, { status: 'interrupted', result: null, error: null });
      assert.equal(await kernel.result('await new Promise((go) => setTimeout(go, 5)); kept'), '1');
    });
  }

  test('stops a cell that waits behind a loop in the background', async () => {
    await kernel.run(`${RUN}; setTimeout(loop, 1)`);
    await kernel.printed('stdout', /running/);
    // The first may come before the cell, between cells.
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

  test('works again and again', async () => {
    for (let i = 0; i < 10; i++) {
      const code = `console.log('running'); ${i % 2 ? 'while (true) {}' : 'await new Promise(() => {})'}`;
      assert.equal((await kernel.interrupt(code)).status, 'interrupted');
    }
    assert.equal(await kernel.result('1'), '1');
  });

  test('leaves promises behind that the collector does not trip over', async () => {
    await kernel.run("require('v8').setFlagsFromString('--expose-gc')");
    await kernel.interrupt("console.log('running'); await new Promise(() => {})");
    const collect = "await new Promise((go) => setTimeout(go, 5)); require('vm').runInNewContext('gc')()";
    for (let i = 0; i < 5; i++) assert.equal(await kernel.result(`${collect}; ${i}`), String(i));
  });

  test('drops what an abandoned cell says later', async () => {
    await kernel.interrupt("console.log('running'); await new Promise((go) => (later = go)); 2");
    assert.equal(await kernel.result('later(); await new Promise((go) => setTimeout(go, 5)); 3'), '3');
    assert.equal(await kernel.result('4'), '4');
  });
});

describe('process.exit', () => {
  test('ends the cell and not the kernel, whatever is caught', async () => {
    const code = "let kept = 1; try { process.exit(3) } catch { console.log('caught') } finally { console.log('finally') }";
    const { status, result, error } = await kernel.run(code);
    assert.deepEqual([status, result, error.message], ['exited', null, '3']);
    assert.equal(await kernel.result('kept'), '1');
    assert.equal(kernel.output.stdout, '');
  });

  test('does so in async code, in a timer and by its imported name', async () => {
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

  test('has a real one in reallyExit', async () => {
    kernel.control.write(kernel.frame('process.reallyExit(9)'));
    assert.equal(await kernel.exit, 9);
  });
});

describe('errors', () => {
  test('show the frames of the user alone', async () => {
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

  test('show what is thrown and is no error', async () => {
    const { status, error } = await kernel.run('throw { a: [1] }');
    const expected = { name: 'Uncaught', message: '{ a: [ 1 ] }', traceback: 'Uncaught { a: [ 1 ] }' };
    assert.deepEqual([status, error], ['error', expected]);
    assert.equal((await kernel.run('await 0; throw undefined')).error.message, 'undefined');
  });

  test('know what is an error though it is of no native kind', async () => {
    const clone = { name: 'DataCloneError', message: '()=>{} could not be cloned.' };
    const traceback = 'DOMException [DataCloneError]: ()=>{} could not be cloned.\n    at cell 1:1:1';
    assert.deepEqual((await kernel.run('structuredClone(()=>{})')).error, { ...clone, traceback });
    assert.equal((await kernel.run("atob('***')")).error.name, 'InvalidCharacterError');
    const late = await kernel.run("await new Promise((_, no) => { const it = AbortSignal.timeout(1); it.onabort = () => no(it.reason) })");
    assert.deepEqual([late.error.name, late.error.message], ['TimeoutError', 'The operation was aborted due to timeout']);
    const old = 'function Old() { this.message = "m" }; Old.prototype = Object.create(Error.prototype, { name: { value: "Old" } }); throw new Old()';
    const { name, message } = (await kernel.run(old)).error;
    assert.deepEqual([name, message], ['Old', 'm']);
  });

  test('come from another thread with their frames', async () => {
    const thread = "function f() { throw Object.assign(new RangeError('far'), { code: 7 }) }\\nf()";
    const code = `const { Worker } = require('worker_threads'); await new Promise((_, no) => new Worker("${thread}", { eval: true }).on('error', no))`;
    const { name, message, traceback } = (await kernel.run(code)).error;
    assert.deepEqual([name, message], ['RangeError', 'far']);
    assert.match(traceback, /\nRangeError: far\n    at f \(\[worker eval\]:1:\d+\)\n    at \[worker eval\]:2:1 \{\n  code: 7\n\}$/);
  });

  test('show the same frames when what formats them is gone', async () => {
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

  test('survive values that fight back', async () => {
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

  test('in the background are reported and kill nothing', async () => {
    await kernel.run("setTimeout(() => { throw new Error('late') }, 1)");
    await kernel.printed('stderr', /uncaughtException: Error: late\n    at Timeout\._onTimeout \(cell 1:1:26\)/);
    await kernel.run("Promise.reject(new Error('alone')); 0");
    await kernel.printed('stderr', /unhandledRejection: Error: alone/);
    assert.equal(await kernel.result('1'), '1');
  });
});

describe('bounds', () => {
  const LEFT_OUT = /\n… (\d+) characters left out …\n/;
  const isAbout = (text, most) => text.length <= most && text.length > most - 1024;

  test('leave out the middle of a result over 64 Ki characters and say so', async () => {
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

  test('make few copies of a value', async () => {
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

  test('leave out the middle of an error over 32 Ki characters and say so', async () => {
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

  test('drop displays beyond 32 in a cell and say so', async () => {
    const { items } = await kernel.run('for (let i = 0; i < 40; i++) display(String(i))');
    assert.equal(items.length, 32);
    await kernel.printed('stderr', /display dropped: over 32 in a cell/);
    assert.equal((await kernel.run("display('again')")).items.length, 1);
  });

  test('drop a display over 8 MiB and say so', async () => {
    const { items } = await kernel.run("display('x'.repeat(8 << 20)); display('x'.repeat((8 << 20) + 1))");
    assert.deepEqual(items.map((item) => item.data.length), [8 << 20]);
    await kernel.printed('stderr', /display dropped: 8388609 bytes, over 8388608/);
  });

  test('drop a display that does not fit a frame', async () => {
    assert.deepEqual((await kernel.run("display('\\0'.repeat(8 << 20))")).items, []);
    await kernel.printed('stderr', /display dropped: it does not fit a frame/);
    const { items } = await kernel.run("display('\\n'.repeat(5 << 20)); display('\\n'.repeat(7 << 20))"); // 10 and 14 MiB
    assert.deepEqual(items.map((item) => item.data.length), [5 << 20]);
  });
});

describe('display', () => {
  const display = async (value) => (await kernel.run(`display(${value})`)).items;

  test('knows images by their first bytes', async () => {
    const heads = { png: '89504e470d0a1a0a', jpeg: 'ffd8ffe0', gif: '474946383961', webp: '524946460000000057454250' };
    for (const [kind, head] of Object.entries(heads)) {
      const item = { mime: `image/${kind}`, data: Buffer.from(head, 'hex').toString('base64') };
      assert.deepEqual(await display(`Buffer.from('${head}', 'hex')`), [item]);
      assert.deepEqual(await display(`new Uint8Array(Buffer.from('${head}', 'hex'))`), [item]);
    }
    assert.equal((await display('Buffer.from([1, 2])'))[0].data, '<Buffer 01 02>');
  });

  test('shows text, plain objects and the rest', async () => {
    assert.deepEqual(await display("'text'"), [{ mime: 'text/plain', data: 'text' }]);
    assert.deepEqual(await display('{ a: [1] }'), [{ mime: 'application/json', data: { a: [1] } }]);
    assert.deepEqual(await display('[1, 2]'), [{ mime: 'application/json', data: [1, 2] }]);
    assert.deepEqual(await display("['\\ud800']"), [{ mime: 'application/json', data: ['\ufffd'] }]);
    assert.deepEqual(await display('new Map([[1, 2]])'), [{ mime: 'text/plain', data: 'Map(1) { 1 => 2 }' }]);
    assert.deepEqual(await display('{ big: 1n }'), [{ mime: 'text/plain', data: '{ big: 1n }' }]);
    assert.deepEqual(await display('null'), [{ mime: 'text/plain', data: 'null' }]);
  });

  test('asks the value for its own bundle, as Deno does', async () => {
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

  test('sends text and JSON as they are and the rest in base64', async () => {
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
    await kernel.printed('stderr', /display dropped: 8388612 bytes, over 8388608/);
  });

  test('gives no result and is dropped outside its cell', async () => {
    assert.equal((await kernel.run('display(1)')).result, null);
    await kernel.run("setTimeout(() => display('late'), 1)");
    await kernel.printed('stderr', /display dropped: its cell is not running/);
  });
});
