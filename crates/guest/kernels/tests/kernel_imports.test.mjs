// `import` and `require` in cells of the JavaScript kernel.

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe } from 'node:test';

import { directory, endKernels, startKernel, test } from './kernel_driver.mjs';

let kernel;
beforeEach(async () => (kernel = await startKernel()));
afterEach(endKernels);

describe('imports', () => {
  writeFileSync(join(directory, 'one.mjs'), 'export default 1; export const two = 2; export { two as "a-b" }');
  writeFileSync(join(directory, 'none.mjs'), '');
  writeFileSync(join(directory, 'data.json'), '{"three":3}');

  test('resolve from the working directory', async () => {
    assert.equal(await kernel.result("require('./data.json').three + (await import('./one.mjs')).two"), '5');
    assert.equal(await kernel.result("(await import('node:path')).sep + require('os').EOL"), "'/\\n'");
    await kernel.run("fs = require('fs'); fs.mkdirSync('sub'); process.chdir('sub')");
    await kernel.run("fs.writeFileSync('four.mjs', 'export default 4')");
    assert.equal(await kernel.result("(await import('./four.mjs')).default"), '4');
    assert.equal(await kernel.result("require('../data.json').three"), '3');
    assert.equal(await kernel.result('import.meta.dirname === process.cwd()'), 'true');
  });

  test('find a package as soon as it is installed', async () => {
    const hint = (name) => new RegExp(`hint: run \`npm install ${name}\` with execute_command$`);
    for (const code of ["await import('later')", "import later from 'later'", "require('later')"]) {
      assert.match((await kernel.run(code)).error.traceback, hint('later'));
    }
    assert.match((await kernel.run("require('@scope/name/part')")).error.traceback, hint('@scope/name'));
    assert.doesNotMatch((await kernel.run("require('./later')")).error.traceback, /hint/);
    const installed = join(directory, 'node_modules/later');
    mkdirSync(installed, { recursive: true });
    writeFileSync(join(installed, 'package.json'), '{"name":"later","exports":{"import":"./i.mjs","require":"./r.js"}}');
    writeFileSync(join(installed, 'i.mjs'), 'export default 1');
    writeFileSync(join(installed, 'r.js'), 'module.exports = 2');
    assert.equal(await kernel.result("(await import('later')).default"), '1');
    assert.equal(await kernel.result("require('later')"), '2');
    await kernel.run("import later from 'later'");
    assert.equal(await kernel.result('later'), '1');
  });

  test('work in every static form', async () => {
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

  test('inside text and as properties are not changed', async () => {
    const code = [
      "const text = `import a from 'b' ${(await import('./one.mjs')).default} import('c')`;",
      "const it = { import: 1, y: { import(x) { return x } } }; // import d from 'e'",
      "const divided = 4 / 2 /1; /import('x')/.test(\"import('x')\");",
      "[text, it.import, it.y.import('f'), 'import g from \"h\"', divided]",
    ].join('\n');
    const expected = "[ \"import a from 'b' 1 import('c')\", 1, 'f', 'import g from \"h\"', 2 ]";
    assert.equal((await kernel.result(code)).replace(/\s+/g, ' '), expected);
  });

  test('keep line numbers of the following code', async () => {
    const { error } = await kernel.run("import {\n  two\n} from './one.mjs'\nnull.x");
    assert.match(error.traceback, /at cell 1:4:6/);
  });

  test('keep columns of the following code', async () => {
    const code = "import one from './one.mjs'; import {\n  two\n} from './one.mjs'; (await import('./one.mjs')).two.x.y";
    assert.match((await kernel.run(code)).error.traceback, /at cell 1:3:55$/);
    assert.match((await kernel.run("import one from './one.mjs'; let = ;")).error.traceback, /^cell 2:1:36\n.*\n {35}\^\n/);
  });

  test('of missing exports are refused', async () => {
    const { error } = await kernel.run("import one, { two, nope } from './one.mjs'");
    assert.equal(error.name, 'SyntaxError');
    assert.equal(error.message, "The requested module './one.mjs' does not provide an export named 'nope'");
    assert.match((await kernel.run("import none from './none.mjs'")).error.message, /named 'default'/);
  });

  test('accept the older keyword for attributes', async () => {
    assert.equal(await kernel.result("import json from './data.json' assert { type: 'json' }; json.three"), '3');
  });

  test('see the cell as the main module', async () => {
    assert.equal(await kernel.result('process.argv.slice(2)'), '[]');
    assert.equal(await kernel.result("require.main === module && import.meta.url === require('url').pathToFileURL(process.argv[1]).href"), 'true');
    assert.equal(await kernel.result('module.exports = { a: 1 }; exports.b = 2; module.exports.a'), '1');
    assert.equal(await kernel.result('__dirname === process.cwd() && __filename === module.filename'), 'true');
    assert.equal(await kernel.result("process.chdir('/'); 1"), '1');
    assert.equal(await kernel.result('[__dirname, require.main === module, process.argv[1]]'), "[ '/', true, '/cell.cjs' ]");
  });

  test('inside a function are refused', async () => {
    assert.equal((await kernel.run("function f() { import x from './one.mjs' }")).error.name, 'SyntaxError');
  });
});
