// Calls of code in the JavaScript kernel to the host.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { GITHUB, Host, TOOLS, never, text } from './bridge_driver.mjs';
import { endKernels, pack, startKernel, test } from './kernel_driver.mjs';

let host;
beforeEach(async () => (host = await startKernel(Host)));
afterEach(endKernels);

describe('calls', () => {
  test('reach the host with exact names and return the result', async () => {
    host.preface();
    host.tools['create-issue'] = ({ title }) => text(`made ${title}`);
    assert.equal(await host.result("await mcp.githubIssues.createIssue({ title: 'A' })"), "'made A'");
    const [list, call] = host.calls;
    assert.deepEqual(list, { type: 'call', id: 1, call: 1, method: 'tools/list', params: { server: 'GitHub Issues' } });
    const params = { server: 'GitHub Issues', tool: 'create-issue', arguments: { title: 'A' } };
    assert.deepEqual(call, { type: 'call', id: 1, call: 2, method: 'tools/call', params });
  });

  test('accept the exact name of a tool, its alias and camel case', async () => {
    host.preface();
    for (const { name } of TOOLS) host.tools[name] = text(`this is ${name}`);
    const paths = {
      "mcp.githubIssues['create-issue']": 'create-issue',
      'mcp.github_issues.create_issue': 'create-issue',
      "mcp['GitHub Issues'].createIssue": 'create-issue',
      "mcp.server('githubIssues').createIssue": 'create-issue',
      'mcp.githubIssues.list_items': 'list_items',
      'mcp.githubIssues.listItems': 'listItems',
    };
    for (const [path, tool] of Object.entries(paths)) assert.equal(await host.result(`await ${path}()`), `'this is ${tool}'`, path);
    assert.equal(await host.result("await mcp.callTool('githubIssues', 'createIssue')"), "'this is create-issue'");
    assert.equal(host.methods().filter((method) => method === 'tools/list').length, 1);
  });

  test('run at the same time in Promise.all', async () => {
    host.preface();
    const begun = Date.now();
    host.tools.echo = async ({ n }) => {
      while (host.maxOpen < 20 && Date.now() - begun < 3000) await sleep(5);
      return text(String(n));
    };
    const code = 'await Promise.all(Array.from({ length: 20 }, (_, n) => mcp.githubIssues.echo({ n })))';
    assert.deepEqual(await host.json(code), Array.from({ length: 20 }, (_, n) => n));
    assert.equal(host.maxOpen, 20);
    assert.ok(Date.now() - begun < 3000, 'one after the other');
  });

  test('are limited to 256 open ones and sent in order', async () => {
    host.preface();
    host.tools.echo = async ({ n }) => (await sleep(5), text(String(n)));
    const code = 'Array.from({ length: 5000 }, (_, n) => mcp.githubIssues.echo({ n }))';
    assert.equal(await host.result(`(await Promise.all(${code})).reduce((a, b) => a + b)`), String((4999 * 5000) / 2));
    assert.equal(host.maxOpen, 256);
    const numbers = host.calls.map((frame) => frame.call);
    assert.deepEqual(numbers, numbers.map((_, i) => i + 1));
  });

  test('return results of 100 KB and 50 MB', async () => {
    host.preface();
    host.tools.echo = ({ size }) => text('ä"'.repeat(size / 2));
    for (const size of [100_000, 25_000_000]) {
      const code = `const result = await mcp.githubIssues.echo({ size: ${size} }); [result.length, result.at(-2), new Set(result).size].join()`;
      assert.equal(await host.result(code), `'${size},ä,2'`);
    }
    host.tools.echo = text('x'.repeat(50_000_000));
    assert.equal(await host.result('(await mcp.githubIssues.echo()).length'), '50000000');
    assert.equal(await host.result('1'), '1');
  });

  test('send their timeout', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run("await mcp.githubIssues.echo({}, { timeout: 7 }); await mcp.callTool('github_issues', 'echo', {}, { timeout: 8 })");
    assert.deepEqual(host.calls.slice(1).map((frame) => frame.params.timeout), [7, 8]);
  });

  test('with arguments that are too large or not JSON are not sent', async () => {
    host.preface();
    const large = await host.failure("mcp.githubIssues.echo({ value: 'x'.repeat(8 << 20) })");
    assert.deepEqual([large.kind, large.mayHaveRun, large.isMcp], ['limit', false, true]);
    assert.match(large.message, /GitHub Issues\.echo was not sent: .* exceed the limit of 8388608/);
    assert.match((await host.failure('mcp.githubIssues.echo({ value: 1n })')).message, /cannot be sent as JSON: .*BigInt/);
    const positional = await host.failure("mcp.githubIssues.createIssue('title')");
    assert.equal(positional.message, 'createIssue needs one object of arguments: createIssue({ title, body? })');
    assert.ok(!host.methods().includes('tools/call'));
  });

  test('replace lone surrogates, also in keys', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run("await mcp.githubIssues.echo({ 'a\\ud800': '\\udc00\\\\ud800' })");
    assert.deepEqual(host.calls.at(-1).params.arguments, { 'a\ufffd': '\ufffd\\ud800' });
  });

  test('are sent in the order of their numbers, even if toJSON makes calls', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run('await mcp.githubIssues.echo(); let inner');
    await host.run('await mcp.githubIssues.echo({ value: { toJSON() { inner = mcp.githubIssues.echo(); return 1 } } }); await inner');
    assert.deepEqual(host.calls.map((frame) => frame.call), [1, 2, 3, 4]);
  });

  test('are cancelled by an AbortSignal', async () => {
    host.preface();
    host.tools.echo = never;
    const code = "const stop = new AbortController(); setTimeout(() => stop.abort(new Error('enough')), 50); const { signal } = stop";
    const error = await host.failure(`(() => { ${code}; return mcp.githubIssues.echo({}, { signal }) })()`);
    assert.deepEqual([error.kind, error.mayHaveRun, error.message], ['cancelled', true, 'GitHub Issues.echo was aborted; it may have run']);
    assert.deepEqual(host.cancels, [{ type: 'cancel', id: 1, call: 2 }]);
    const early = await host.failure('mcp.githubIssues.echo({}, { signal: AbortSignal.abort() })');
    assert.equal(early.mayHaveRun, false);
    assert.equal(host.calls.length, 2);
  });

  test('that are queued are aborted without the host', async () => {
    host.preface();
    host.tools.echo = never;
    const code = `const stop = new AbortController();
      const calls = Array.from({ length: 300 }, () => mcp.githubIssues.echo({}, { signal: stop.signal }));
      setTimeout(() => stop.abort(), 200);
      (await Promise.allSettled(calls)).filter(({ reason }) => reason.mayHaveRun).length`;
    assert.equal(await host.result(code), '256');
    assert.equal(host.cancels.length, 256);
    assert.equal(host.calls.length, 257);
  });
});

describe('responses', () => {
  test('that are late or unexpected are dropped', async () => {
    host.respond({ call: 1, result: text('before any') });
    host.preface();
    host.tools.echo = ({ reply }) => (reply ? text(reply) : null);
    await host.interrupt("await mcp.listTools('github_issues'); setTimeout(() => console.log('running'), 50); await mcp.githubIssues.echo()");
    const { call } = host.calls.at(-1);
    host.respond({ call, result: text('late') });
    host.respond({ call: call + 100, result: text('forged') });
    host.respond({ call: '1', result: text('forged') });
    host.respond({ result: text('forged') });
    assert.equal(await host.result("await mcp.githubIssues.echo({ reply: 'right' })"), "'right'");
    host.respond({ call: host.calls.at(-1).call, result: text('twice') });
    assert.equal(await host.result("await mcp.githubIssues.echo({ reply: 'right again' })"), "'right again'");
    assert.equal(host.output.stderr, '');
  });

  test('are recognized in any order of fields', async () => {
    host.preface();
    host.respond = ({ call, ...rest }) => host.control.write(pack({ call, ...rest, type: 'answer' }));
    host.tools.echo = text('ok');
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
  });
});

describe('code that has declared the names of globals', () => {
  const NAMES = 'Array Buffer Error Function JSON Map Math Number Object Promise Proxy Reflect Set String TypeError globalThis'.split(' ');
  const SAVED = { name: 'twice', source: 'function twice(n) { return 2 * n }', version: '1' };

  // Before the first call loads the bridge, and after.
  for (const when of ['before', 'after']) {
    for (const keyword of ['let', 'var']) {
      test(`calls tools, with ${keyword} ${when} the first call`, async () => {
        const declare = `${keyword} ${NAMES.map((name) => `${name} = 5`).join(', ')}`;
        Object.assign(host.results, { 'saved/load': SAVED, 'saved/save': { version: '1' }, 'memory/load': { found: false } });
        Object.assign(host.tools, { echo: text('[1]'), 'create-issue': { ...text('no'), isError: true } });
        if (when === 'before') await host.result(declare);
        host.preface([GITHUB], [SAVED]);
        if (when === 'after') await host.result(`mcp.servers; ${declare}`);
        assert.equal(await host.result('await mcp.githubIssues.echo({ a: 1 })'), '[ 1 ]');
        host.tools.echo = { content: [{ type: 'image', data: 'AQI=', mimeType: 'image/png' }, { type: 'text', text: '7' }] };
        assert.equal(await host.result('await mcp.githubIssues.echo()'), "[ <Buffer 01 02, mimeType: 'image/png'>, 7 ]");
        assert.equal(await host.result('mcp.githubIssues'), 'mcp.githubIssues { createIssue, echo, list_items, listItems, then }');
        assert.equal(await host.result('await twice(4)'), '8');
        assert.equal(await host.result('await mcp.saveTool(function thrice(n) { return 3 * n })'), "{ version: '1' }");
        assert.equal(await host.result("await mcp.memory.load('key', 6)"), '6');
        assert.equal(await host.result("(await mcp.docs('github_issues')).length"), '5');
        assert.match((await host.run("await mcp.docs('github_issues', 'none')")).error.message, /^the server github_issues has no tool 'none'/);
        assert.equal((await host.run('await mcp.githubIssues.createIssue({})')).error.message, 'no');
        host.tools.echo = never;
        assert.equal(await host.result('mcp.githubIssues.echo(); 1'), '1');
        await host.printed('stderr', /unhandledRejection: .*the cell ended before GitHub Issues\.echo/);
      });
    }
  }
});
