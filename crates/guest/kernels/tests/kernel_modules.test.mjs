// Modules that fail when a cell of the JavaScript kernel imports them, and are imported again after a correction.

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe } from 'node:test';

import { directory, endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

const write = (name, text) => writeFileSync(join(directory, name), text);
const WRONG = {
  'throws': "export const a = 1\nthrow new Error('wrong')",
  'throws after an await': "export const a = 1\nawait 0; throw new Error('wrong')",
  'has a syntax error': 'export const a = ;',
  'imports a missing module': "import './none-such.mjs'; export const a = 1",
  'imports a missing name': "import { nope } from 'node:fs'; export const a = 1",
};
const IMPORTS = {
  'by import()': (name) => `(await import('./${name}')).a`,
  'by a statement': (name) => `import { a } from './${name}'; a`,
};

describe('a module that has failed', () => {
  for (const [how, wrong] of Object.entries(WRONG)) {
    for (const [way, load] of Object.entries(IMPORTS)) {
      test(`because it ${how} can be imported ${way} after a correction`, async () => {
        write('lib.mjs', wrong);
        for (let i = 0; i < 2; i++) assert.equal((await kernel.run(load('lib.mjs'))).status, 'error');
        write('lib.mjs', 'export const a = 2; globalThis.runs = (globalThis.runs ?? 0) + 1');
        assert.equal(await kernel.result(load('lib.mjs')), '2');
        write('lib.mjs', 'export const a = 3');
        assert.equal(await kernel.result(load('lib.mjs')), '2');
        assert.equal(await kernel.result('runs'), '1');
      });
    }

    test(`because it ${how} can be corrected for its importers, and other modules run once`, async () => {
      write('base.mjs', 'globalThis.runs = (globalThis.runs ?? 0) + 1');
      write('deep.mjs', wrong);
      write('main.mjs', "import './base.mjs'; export { a } from './deep.mjs'");
      assert.equal((await kernel.run("import './base.mjs'")).status, 'ok');
      assert.equal((await kernel.run("import { a } from './main.mjs'")).status, 'error');
      write('deep.mjs', 'export const a = 2');
      assert.equal(await kernel.result("import { a } from './main.mjs'; a"), '2');
      assert.equal(await kernel.result("(await import('./deep.mjs')).a + runs"), '3');
    });
  }

  test('has its path in the traceback', async () => {
    write('lib.mjs', WRONG['throws']);
    for (let i = 1; i < 3; i++) {
      const { traceback } = (await kernel.run("import './lib.mjs'")).error;
      assert.equal(traceback, `Error: wrong\n    at file://${directory}/lib.mjs:2:7\n    at async cell ${i}:1:1`);
    }
  });

  test('is reported after code has broken built-in functions', async () => {
    write('lib.mjs', WRONG['has a syntax error']);
    await kernel.run('Map.prototype.forEach = () => { throw 1 }; Object.values = null');
    assert.equal((await kernel.run("import './lib.mjs'")).error.name, 'SyntaxError');
    assert.equal(await kernel.result('1'), '1');
  });
});

describe('a module with a syntax error', () => {
  test('is reported with its line', async () => {
    write('bad.mjs', 'export const a = 1\n\texport const b = ;\n');
    write('outer.mjs', "\n\n\nimport './bad.mjs'");
    const traceback = [
      '\texport const b = ;', '\t                 ^', "SyntaxError: Unexpected token ';'", `    at file://${directory}/bad.mjs:2:19`,
    ].join('\n');
    for (const name of ['bad.mjs', 'outer.mjs']) {
      const { error } = await kernel.run(`import './${name}'`);
      assert.deepEqual(error, { name: 'SyntaxError', message: "Unexpected token ';'", traceback });
    }
    const both = "await Promise.all([import('./bad.mjs').catch((error) => error.stack), import('./bad.mjs').catch((error) => error.stack)])";
    assert.equal(await kernel.result(`const [first, second] = ${both}; first === second && first.match(/bad.mjs/g).length`), '1');
  });
});
