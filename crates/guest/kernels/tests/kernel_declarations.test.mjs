// Declarations and results of cells in the JavaScript kernel.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe } from 'node:test';

import { directory, endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('declarations', () => {
  writeFileSync(join(directory, 'one.mjs'), 'export const two = 2');

  test('persist and can be repeated', async () => {
    await kernel.run('let a = 1; const b = 2; class C { m() { return 3 } } function d() { return 4 } var e = 5');
    assert.equal(await kernel.result('[a, b, new C().m(), d(), e]'), '[ 1, 2, 3, 4, 5 ]');
    await kernel.run('let a = 6; const b = 7; class C { m() { return 8 } } function d() { return 9 } var e = 10');
    assert.equal(await kernel.result('[a, b, new C().m(), d(), e]'), '[ 6, 7, 8, 9, 10 ]');
  });

  test('can be repeated after a failure', async () => {
    assert.equal((await kernel.run('const x = (() => { throw 1 })()')).status, 'error');
    assert.equal(await kernel.result('const x = 2; x'), '2');
  });

  test('can be repeated as any other kind', async () => {
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

  test('replace properties of the global object', async () => {
    await kernel.run('var x = 1');
    assert.equal(await kernel.result('let x\ntypeof x'), "'undefined'");
    await kernel.run('const y = JSON.parse("bad")');
    assert.equal(await kernel.result('let y = 2; y'), '2');
  });

  test('that conflict are refused with position and hint', async () => {
    await kernel.run('let i = 1; const main = 2');
    const { status, error } = await kernel.run('1 + 1\nfor (var i = 0; i < 3; i++) {}');
    const message = "Identifier 'i' has already been declared by an earlier cell in another way; hint: use the same keyword, or another name";
    const traceback = `cell 2:2:10\nfor (var i = 0; i < 3; i++) {}\n         ^\nSyntaxError: ${message}`;
    assert.deepEqual([status, error], ['error', { name: 'SyntaxError', message, traceback }]);
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

  // The time limit of the test fails work that grows with the square of the length.
  test('work in very large code', async () => {
    const lines = Array.from({ length: 5000 }, (_, i) => `const v${i} = ${i}`);
    assert.equal(await kernel.result(`${lines.join('\n')}\n1`), '1');
    assert.match((await kernel.run(`${lines.join(';')};1`)).error.message, /another name/); // over the limit
    assert.equal(await kernel.result(`${lines.join(';').replaceAll('v', 'w')};1`), '1');
    assert.equal(await kernel.result(`"${'const x = 1; '.repeat(5e5)}".length`), '6500000');
    assert.equal(await kernel.result(`${' '.repeat(1e6)}const spaced = 1;${' '.repeat(1e6)}spaced`), '1');
  });

  test('of constants refuse assignments in the same cell', async () => {
    for (const code of ['const a = 1; a = 2', 'const b = 1\nb += 2', 'const { c } = { c: 1 }\nc++', 'const d = 1; --d']) {
      assert.equal((await kernel.run(code)).error?.message, 'Assignment to constant variable.', code);
      assert.equal((await kernel.run(code)).error?.message, 'Assignment to constant variable.', code);
    }
    assert.equal(await kernel.result('const a = 5; a'), '5');
  });

  test('of constants can be corrected after a refused assignment', async () => {
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

  test('of constants that code may assign to stay constants in their cell', async () => {
    assert.match((await kernel.run('early; const early = 1; early = 2')).error.message, /^Cannot access 'early' before/);
    assert.equal((await kernel.run('early')).error.name, 'ReferenceError');
    assert.match((await kernel.run('const two = 1; two = 2; const two = 3')).error.message, /^Identifier 'two' has already/);
    await kernel.run('const stable = 1; const later = (stable = 2) => stable; let other = 1');
    assert.match((await kernel.run('const stable = 5; stable = 6; for (var other of []) {}')).error.message, /'other' has already/);
    assert.equal(await kernel.result('[stable, later()]'), '[ 1, 2 ]');
    await kernel.run('const { URL, own } = { own: 1 }; const g = (own = 2) => own; const _ = 3; const h = (_ = 4) => _');
    assert.equal(await kernel.result("5; new globalThis.URL('a:b').href"), "'a:b'");
    assert.equal(await kernel.result('[own, _]'), '[ 1, 3 ]');
    assert.equal(await kernel.result("function nested() { try {\nconst own = 1; own = 2 } catch { return 'caught' } }\nnested()"), "'caught'");
  });

  test('of constants need a value', async () => {
    for (const code of ['const none', 'const none;', 'const none, b = 1', 'const none // = 1', 'const none\n1', '1; const none;']) {
      assert.equal((await kernel.run(code)).error?.message, 'Missing initializer in const declaration', code);
    }
    assert.equal(await kernel.result('const some /* ; */\n= 1; const none$ = 2\nsome + none$'), '3');
    assert.equal(await kernel.result('let some = 4; some'), '4');
  });

  test('inside text are not changed', async () => {
    const code = 'const text = `\nconst a = 1; const b = 2;\n`; const more = "; const c";\n/*\nconst d\n*/ text + more';
    assert.equal(await kernel.result(code), "'\\nconst a = 1; const b = 2;\\n; const c'");
    assert.equal(await kernel.result('const {} = {}, [] = []; 1'), '1');
    await kernel.run('var x = 1');
    assert.equal(await kernel.result('let y = "let ", x = 2; y + x'), "'let 2'");
  });
});

describe('a result', () => {
  test('is the last value, with top-level await', async () => {
    assert.equal(await kernel.result('const v = await new Promise((go) => setTimeout(go, 5, 7)); v + 1'), '8');
    assert.equal(await kernel.result("'text'"), "'text'");
    for (const code of ['undefined', '', '// nothing', 'let q = 1']) assert.equal(await kernel.result(code), null);
    assert.equal(await kernel.result('{ a: 1, b: 2 } // an object'), '{ a: 1, b: 2 }');
    assert.equal(await kernel.result('{ let q = 2; q + 1 }'), '3');
    assert.equal(await kernel.result('{ a: 1 };'), '1');
  });

  test('is awaited if it is a promise', async () => {
    const later = 'new Promise((go) => setTimeout(go, 20))';
    const main = `async function main(x) { await ${later}; console.log('went on'); if (x) throw new RangeError(x); return 5 }`;
    assert.equal(await kernel.result(`${main}\nmain()`), '5');
    await kernel.printed('stdout', /^went on$/m);
    assert.equal(await kernel.result('_ + 1'), '6');
    const { status, error } = await kernel.run("main('bad')");
    assert.deepEqual([status, error.message], ['error', 'bad']);
    assert.match(error.traceback, /^RangeError: bad\n    at main \(cell 1:1:/);
    assert.equal(await kernel.result("main('bad').catch((error) => error.message)"), "'bad'");
    assert.equal((await kernel.run('Promise.reject(1)')).error.message, '1');
    assert.equal(await kernel.result('({ then: (go) => go(1) })').then((result) => /then/.test(result)), true);
    const odd = 'class Odd extends Promise { static get [Symbol.species]() { throw new Error("odd") } }; Odd.resolve(1)';
    assert.equal((await kernel.run(odd)).error.message, 'odd');
    assert.doesNotMatch(kernel.output.stderr, /unhandledRejection/);
  });

  test('does not await a promise that is only stored', async () => {
    assert.equal(await kernel.result('const never = new Promise(() => {})'), null);
    assert.equal(await kernel.result('[never]'), '[ Promise { <pending> } ]');
  });

  test('is stored in _', async () => {
    await kernel.run('41');
    await kernel.run('undefined');
    assert.equal(await kernel.result('_ + 1'), '42');
  });

  test('does not replace a _ of the guest', async () => {
    await kernel.run("var _ = 'mine'");
    await kernel.run('5');
    assert.equal(await kernel.result('_'), "'mine'");
  });
});
