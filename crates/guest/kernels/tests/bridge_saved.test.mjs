// Memory and saved tools in the JavaScript kernel.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { Host } from './bridge_driver.mjs';
import { endKernels, startKernel, test } from './kernel_driver.mjs';

let host;
beforeEach(async () => (host = await startKernel(Host)));
afterEach(endKernels);

describe('memory', () => {
  test('is stored by the host', async () => {
    const stored = new Map();
    host.results['memory/save'] = ({ key, ...rest }) => (stored.set(key, rest), { key, created: 1, updated: 2 });
    host.results['memory/load'] = ({ key }) => ({ key, found: stored.has(key), ...stored.get(key) });
    host.results['memory/delete'] = ({ key }) => ({ deleted: stored.delete(key) });
    host.results['memory/list'] = () => ({ memories: [...stored.keys()].map((key) => ({ key, size: 1 })) });
    host.results['memory/info'] = ({ key }) => (stored.has(key) ? { found: true, key, size: 1 } : { found: false, key });
    await host.run("await mcp.memory.save('a', { x: 1 }, { tag: 't' })");
    assert.deepEqual(stored.get('a'), { value: { x: 1 }, metadata: { tag: 't' } });
    assert.deepEqual(await host.json("[await mcp.memory.load('a'), await mcp.memory.load('b'), await mcp.memory.load('b', 7)]"), [{ x: 1 }, null, 7]);
    assert.deepEqual(await host.json("mcp.memory.update('a', { y: 2 })"), { x: 1, y: 2 });
    assert.equal(await host.json("mcp.memory.update('n', (n) => n + 1, 0)"), 1);
    assert.deepEqual(stored.get('a').metadata, { tag: 't' });
    assert.deepEqual(await host.json("[await mcp.memory.exists('a'), await mcp.memory.exists('b')]"), [true, false]);
    assert.deepEqual(await host.json("[await mcp.memory.info('a'), await mcp.memory.info('b')]"), [{ key: 'a', size: 1 }, null]);
    assert.deepEqual(await host.json('mcp.memory.list()'), [{ key: 'a', size: 1 }, { key: 'n', size: 1 }]);
    assert.deepEqual(await host.json("[await mcp.memory.delete('a'), await mcp.memory.delete('a')]"), [true, false]);
  });
});

describe('saved tools', () => {
  const load = (sources) => (host.results['saved/load'] = ({ name }) => ({ name, version: 1, doc: '', source: sources[name] }));
  const saved = (...names) => names.map((name) => ({ name, version: 1, doc: '' }));

  test('are saved by their source', async () => {
    host.results['saved/save'] = ({ name }) => ({ name, version: 1 });
    const code = "/** Adds.\n * Twice. */\nfunction add(a, b) { return a + b }\nasync function open() { /** Opens. */ return import('node:fs') }";
    assert.equal(await host.result(`${code}\nawait mcp.saveTool(open); await mcp.saveTool(add)`), "{ name: 'add', version: 1 }");
    const [opened, added] = host.calls.map((frame) => frame.params);
    assert.deepEqual(added, { name: 'add', source: 'function add(a, b) { return a + b }', doc: 'Adds.\nTwice.' });
    assert.deepEqual([opened.name, opened.doc], ['open', 'Opens.']);
    await host.run("const half = (n) => n / 2; await mcp.saveTool(half, { doc: 'Halves.' })");
    assert.deepEqual(host.calls[2].params, { name: 'half', source: '(n) => n / 2', doc: 'Halves.' });
    const refused = ['() => 1', 'Math.max', 'half.bind(1)', 'class A {}', '({ m() {} }).m', '5', 'null', 'function fetch() {}'];
    for (const value of refused) assert.equal((await host.failure(`mcp.saveTool(${value})`)).kind, 'invalid', value);
    assert.equal(host.calls.length, 3);
  });

  test('are globals and loaded when they are called', async () => {
    load({ add: 'function add(a, b) { return a + b }', open: "async () => (await __import('node:path')).sep + (await import('node:os')).EOL" });
    host.preface([], saved('add', 'open', 'fetch'));
    assert.equal(await host.result('[typeof add, add.name, typeof fetch, fetch.name].join()'), "'function,add,function,fetch'");
    assert.deepEqual(host.calls, []);
    assert.equal(await host.result('await add(1, 2) + await add(3, 4)'), '10');
    assert.equal(await host.result('await open()'), "'/\\n'");
    assert.deepEqual(host.calls.map((frame) => frame.params), [{ name: 'add' }, { name: 'open' }]);
  });

  test('follow the preface and do not replace functions of the guest', async () => {
    load({ add: '() => 1', mine: '() => 1' });
    await host.run('function mine() { return 2 }');
    host.preface([], saved('add', 'mine'));
    assert.equal(await host.result('[await add(), mine()].join()'), "'1,2'");
    load({ add: '() => 3' });
    host.preface([], [{ name: 'add', version: 2 }]);
    assert.equal(await host.result('await add()'), '3');
    host.preface([], []);
    assert.equal(await host.result('[typeof add, typeof mine].join()'), "'undefined,function'");
    host.preface([], saved('add'));
    assert.equal(await host.result('let add = 4; add'), '4');
    host.preface([], saved('other'));
    await host.run('function other() { return 5 }');
    host.preface([], []);
    assert.equal(await host.result('other()'), '5');
  });

  test('that are broken fail when they are called', async () => {
    load({ torn: 'function (', five: '5', free: '() => nowhere' });
    host.preface([], saved('torn', 'five', 'free'));
    assert.match((await host.failure('torn()')).message, /^the saved tool torn cannot be loaded: SyntaxError/);
    assert.match((await host.failure('five()')).message, /cannot be loaded: TypeError: it is not a function; hint: save it again/);
    const { error } = await host.run('await free()');
    assert.match(error.traceback, /^ReferenceError: nowhere is not defined\n    at saved-free:1:8/);
  });

  test('are listed and deleted', async () => {
    host.results['saved/list'] = { tools: saved('add') };
    host.results['saved/delete'] = { deleted: true };
    host.preface([], saved('add'));
    assert.deepEqual(await host.json('mcp.savedTools()'), saved('add'));
    assert.equal(await host.result("await mcp.deleteTool('add')"), 'true');
    assert.equal(await host.result('typeof add'), "'undefined'");
  });
});
