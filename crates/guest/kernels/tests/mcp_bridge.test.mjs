// Code mode in kernel.mjs, with a host that is played here.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Kernel, endKernels, pack, test } from './kernel_driver.mjs';

const TOOLS = [
  { name: 'create-issue', alias: 'create_issue', description: 'Opens one.', inputSchema: { properties: { body: {}, title: {} }, required: ['title'] } },
  { name: 'echo', alias: 'echo', inputSchema: {} },
  { name: 'list_items', alias: 'list_items' },
  { name: 'listItems', alias: 'listitems' },
  { name: 'then', alias: 'then' },
];
const GITHUB = { name: 'GitHub Issues', alias: 'github_issues', description: 'Issues.', version: '1' };
const MEMORY = { name: 'memory', alias: 'memory', description: 'A graph.', version: '1' };

class Host extends Kernel {
  calls = [];
  cancels = [];
  open = 0;
  mostOpen = 0;
  results = {}; // what methods answer: values, or functions of (params, frame)
  tools = {}; // what tools answer: MCP results, or functions of their arguments

  hear(frame) {
    if (frame.type === 'cancel') this.cancels.push(frame);
    else if (frame.type === 'call') this.#serve(frame);
    return frame.type === 'call' || frame.type === 'cancel';
  }

  async #serve(frame) {
    this.calls.push(frame);
    this.mostOpen = Math.max(this.mostOpen, ++this.open);
    const answer = await this.#answer(frame).catch((error) => ({ error }));
    this.open--;
    if (answer.result !== null) this.answer({ call: frame.call, ...answer });
  }

  async #answer({ method, params }) {
    const give = async (entry, given) => (typeof entry === 'function' ? entry(given) : entry);
    if (method === 'tools/call') return { result: await give(this.tools[params.tool], params.arguments, params) };
    if (method === 'tools/list' && !this.results[method]) return { result: { server: GITHUB, tools: TOOLS } };
    return { result: await give(this.results[method], params) };
  }

  answer(frame) {
    this.control.write(pack({ type: 'answer', ...frame }));
  }

  preface(servers = [GITHUB], saved = []) {
    this.control.write(pack({ type: 'preface', servers, saved }));
  }

  methods() {
    return this.calls.map((it) => it.method);
  }
}

const text = (it) => ({ content: [{ type: 'text', text: it }] });
const never = () => null; // no answer at all
const json = async (code) => JSON.parse(await evaluate(`JSON.stringify(await (async () => ${code})())`));
const evaluate = async (code) => (0, eval)(await host.result(code)); // of a string
const failure = (code) => json(`${code}.then((it) => ({ unexpected: it }), (it) => ({ message: it.message, ...it, isMcp: it instanceof mcp.MCPError }))`);

let host;
beforeEach(async () => {
  host = new Host();
  assert.equal((await host.next()).type, 'ready');
});
afterEach(endKernels);

describe('calls', () => {
  test('reach the host with exact names and give the answer', async () => {
    host.preface();
    host.tools['create-issue'] = ({ title }) => text(`made ${title}`);
    assert.equal(await host.result("await mcp.githubIssues.createIssue({ title: 'A' })"), "'made A'");
    const [list, call] = host.calls;
    assert.deepEqual(list, { type: 'call', id: 1, call: 1, method: 'tools/list', params: { server: 'GitHub Issues' } });
    const params = { server: 'GitHub Issues', tool: 'create-issue', arguments: { title: 'A' } };
    assert.deepEqual(call, { type: 'call', id: 1, call: 2, method: 'tools/call', params });
  });

  test('know a tool by its exact name, its alias and camel case', async () => {
    host.preface();
    for (const { name } of TOOLS) host.tools[name] = text(`it is ${name}`);
    const ways = {
      "mcp.githubIssues['create-issue']": 'create-issue',
      'mcp.github_issues.create_issue': 'create-issue',
      "mcp['GitHub Issues'].createIssue": 'create-issue',
      "mcp.server('githubIssues').createIssue": 'create-issue',
      'mcp.githubIssues.list_items': 'list_items',
      'mcp.githubIssues.listItems': 'listItems',
    };
    for (const [way, tool] of Object.entries(ways)) assert.equal(await host.result(`await ${way}()`), `'it is ${tool}'`, way);
    assert.equal(await host.result("await mcp.callTool('githubIssues', 'createIssue')"), "'it is create-issue'");
    assert.equal(host.methods().filter((it) => it === 'tools/list').length, 1);
  });

  test('run at once in Promise.all', async () => {
    host.preface();
    host.tools.echo = async ({ n }) => (await sleep(300), text(String(n)));
    const begun = Date.now();
    const code = 'await Promise.all(Array.from({ length: 20 }, (_, n) => mcp.githubIssues.echo({ n })))';
    assert.deepEqual(await json(code), Array.from({ length: 20 }, (_, n) => n));
    assert.equal(host.mostOpen, 20);
    assert.ok(Date.now() - begun < 3000, 'one after the other');
  });

  test('are open 256 at a time, in order, however many there are', async () => {
    host.preface();
    host.tools.echo = async ({ n }) => (await sleep(5), text(String(n)));
    const code = 'Array.from({ length: 5000 }, (_, n) => mcp.githubIssues.echo({ n }))';
    assert.equal(await host.result(`(await Promise.all(${code})).reduce((a, b) => a + b)`), String((4999 * 5000) / 2));
    assert.equal(host.mostOpen, 256);
    const numbers = host.calls.map((it) => it.call);
    assert.deepEqual(numbers, numbers.map((_, i) => i + 1));
  });

  test('bring back 100 KB and 50 MB whole', async () => {
    host.preface();
    host.tools.echo = ({ size }) => text('ä"'.repeat(size / 2));
    for (const size of [100_000, 25_000_000]) {
      const code = `const it = await mcp.githubIssues.echo({ size: ${size} }); [it.length, it.at(-2), new Set(it).size].join()`;
      assert.equal(await host.result(code), `'${size},ä,2'`);
    }
    host.tools.echo = text('x'.repeat(50_000_000));
    assert.equal(await host.result('(await mcp.githubIssues.echo()).length'), '50000000');
    assert.equal(await host.result('1'), '1');
  });

  test('carry their timeout', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run("await mcp.githubIssues.echo({}, { timeout: 7 }); await mcp.callTool('github_issues', 'echo', {}, { timeout: 8 })");
    assert.deepEqual(host.calls.slice(1).map((it) => it.params.timeout), [7, 8]);
  });

  test('that are too large or no JSON are not sent', async () => {
    host.preface();
    const large = await failure("mcp.githubIssues.echo({ it: 'x'.repeat(8 << 20) })");
    assert.deepEqual([large.kind, large.mayHaveRun, large.isMcp], ['limit', false, true]);
    assert.match(large.message, /GitHub Issues\.echo was not sent: .* over 8388608/);
    assert.match((await failure('mcp.githubIssues.echo({ it: 1n })')).message, /cannot be sent as JSON: .*BigInt/);
    const positional = await failure("mcp.githubIssues.createIssue('title')");
    assert.equal(positional.message, 'createIssue takes one object of arguments: createIssue({ title, body? })');
    assert.ok(!host.methods().includes('tools/call'));
  });

  test('send what has no UTF-8 as something that has, in keys too', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run("await mcp.githubIssues.echo({ 'a\\ud800': '\\udc00\\\\ud800' })");
    assert.deepEqual(host.calls.at(-1).params.arguments, { 'a\ufffd': '\ufffd\\ud800' });
  });

  test('go out in the order of their numbers, whatever toJSON does', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run('await mcp.githubIssues.echo(); let inner');
    await host.run('await mcp.githubIssues.echo({ it: { toJSON() { inner = mcp.githubIssues.echo(); return 1 } } }); await inner');
    assert.deepEqual(host.calls.map((it) => it.call), [1, 2, 3, 4]);
  });

  test('are cancelled by an AbortSignal', async () => {
    host.preface();
    host.tools.echo = never;
    const code = "const stop = new AbortController(); setTimeout(() => stop.abort(new Error('enough')), 50); const { signal } = stop";
    const error = await failure(`(() => { ${code}; return mcp.githubIssues.echo({}, { signal }) })()`);
    assert.deepEqual([error.kind, error.mayHaveRun, error.message], ['cancelled', true, 'GitHub Issues.echo was aborted; it may have run']);
    assert.deepEqual(host.cancels, [{ type: 'cancel', id: 1, call: 2 }]);
    const early = await failure('mcp.githubIssues.echo({}, { signal: AbortSignal.abort() })');
    assert.equal(early.mayHaveRun, false);
    assert.equal(host.calls.length, 2);
  });

  test('that wait in the queue are aborted without the host', async () => {
    host.preface();
    host.tools.echo = never;
    const code = `const stop = new AbortController();
      const calls = Array.from({ length: 300 }, () => mcp.githubIssues.echo({}, { signal: stop.signal }));
      setTimeout(() => stop.abort(), 200);
      (await Promise.allSettled(calls)).filter((it) => it.reason.mayHaveRun).length`;
    assert.equal(await host.result(code), '256');
    assert.equal(host.cancels.length, 256);
    assert.equal(host.calls.length, 257);
  });
});

describe('code that has declared the names of globals', () => {
  const NAMES = 'Array Buffer Error Function JSON Map Math Number Object Promise Proxy Reflect Set String TypeError globalThis'.split(' ');
  const SAVED = { name: 'twice', source: 'function twice(n) { return 2 * n }', version: '1' };

  // Before the first call loads what makes them, and after.
  for (const when of ['before', 'after']) {
    for (const way of ['let', 'var']) {
      test(`calls tools, with ${way} ${when} the first one`, async () => {
        const declare = `${way} ${NAMES.map((it) => `${it} = 5`).join(', ')}`;
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
        assert.match((await host.run("await mcp.docs('github_issues', 'none')")).error.message, /^github_issues has no tool 'none'/);
        assert.equal((await host.run('await mcp.githubIssues.createIssue({})')).error.message, 'no');
        host.tools.echo = never;
        assert.equal(await host.result('mcp.githubIssues.echo(); 1'), '1');
        await host.printed('stderr', /unhandledRejection: .*the cell ended before GitHub Issues\.echo/);
      });
    }
  }
});

describe('results', () => {
  const result = async (it, options = '{}') => {
    host.preface();
    host.tools.echo = it;
    return host.result(`await mcp.githubIssues.echo({}, ${options})`);
  };

  test('are plain values', async () => {
    const cases = [
      [{ structuredContent: { a: 1 }, ...text('other') }, '{ a: 1 }'],
      [text('{"a": [1, null]}'), '{ a: [ 1, null ] }'],
      [text(' [1, 2]\n'), '[ 1, 2 ]'],
      [text('true'), 'true'],
      [text('-1.5'), '-1.5'],
      [text('plain'), "'plain'"],
      [text('{not json}'), "'{not json}'"],
      [text('12345678901234567890'), "'12345678901234567890'"],
      [text(''), "''"],
      [{ content: [] }, 'null'],
      [{ content: [{ type: 'image', data: 'AQI=', mimeType: 'image/png' }] }, "<Buffer 01 02, mimeType: 'image/png'>"],
      [{ content: [{ type: 'audio', data: 'AQI=', mimeType: 'audio/wav' }] }, "<Buffer 01 02, mimeType: 'audio/wav'>"],
      [{ content: [{ type: 'resource', resource: { uri: 'a:b', blob: 'AQI=' } }] }, "<Buffer 01 02, mimeType: 'application/octet-stream', uri: 'a:b'>"],
      [{ content: [{ type: 'resource', resource: { uri: 'a:b', text: '{"a":1}' } }] }, '{ a: 1 }'],
      [{ content: [{ type: 'resource_link', uri: 'a:b' }] }, "{ type: 'resource_link', uri: 'a:b' }"],
      [{ content: [{ type: 'text', text: 'a' }, { type: 'text', text: '1' }] }, "[ 'a', 1 ]"],
      [{ content: [null, { type: 'text' }, 5] }, "[ null, { type: 'text' }, 5 ]"],
      [{ content: 'odd' }, "{ content: 'odd' }"],
    ];
    for (const [given, expected] of cases) assert.equal(await result(given), expected);
  });

  test('are given whole if they are wanted raw', async () => {
    assert.equal(await result({ ...text('no'), isError: true }, '{ raw: true }'), "{ content: [ { type: 'text', text: 'no' } ], isError: true }");
  });

  test('that are errors throw MCPError with the text of the server', async () => {
    host.preface();
    host.tools.echo = { ...text('no such repository'), structuredContent: { status: 404 }, isError: true };
    const { status, error } = await host.run('1\nawait mcp.githubIssues.echo()');
    assert.deepEqual([status, error.name, error.message], ['error', 'MCPError', 'no such repository']);
    assert.match(error.traceback, /^MCPError: no such repository\n    at async cell 1:2:1 \{\n  kind: 'tool',/);
    assert.deepEqual(await failure('mcp.githubIssues.echo()'), {
      message: 'no such repository', kind: 'tool', mayHaveRun: false, server: 'GitHub Issues', tool: 'echo', data: { status: 404 }, isMcp: true,
    });
  });

  test('of the host that are errors keep what it says', async () => {
    host.preface();
    const say = (error) => (host.tools.echo = () => Promise.reject(error));
    say({ kind: 'upstream', message: 'bad params', code: -32602, data: { field: 'a' } });
    const { message, ...fields } = await failure('mcp.githubIssues.echo()');
    assert.equal(message, 'bad params');
    assert.deepEqual(fields, { kind: 'upstream', code: -32602, data: { field: 'a' }, mayHaveRun: false, server: 'GitHub Issues', tool: 'echo', isMcp: true });
    say({ kind: 'lost', message: 'gone', may_have_run: false });
    assert.equal((await failure('mcp.githubIssues.echo()')).mayHaveRun, false);
    say({ kind: 'timeout', message: 'late' });
    assert.equal((await failure('mcp.githubIssues.echo()')).mayHaveRun, true);
    host.tools.ech = () => Promise.reject({ kind: 'not_found', message: 'no tool ech' });
    assert.match((await failure('mcp.githubIssues.ech()')).message, /^no tool ech \(tools of GitHub Issues: createIssue, echo, /);
  });
});

describe('a cell that ends', () => {
  const RUN = "console.log('running');";
  const ENDED = 'the cell ended before GitHub Issues.echo answered; it may have run (await it to have its answer)';

  for (const [name, wait] of Object.entries({ awaits: 'await call', loops: 'while (true) {}' })) {
    test(`by an interrupt while it ${name} fails its calls, and the next works`, async () => {
      host.preface();
      host.tools.echo = ({ it }) => (it ? text(it) : null);
      // Calls go out in their order: the first is on its way when the second is answered.
      const both = "var call = mcp.githubIssues.echo(); await mcp.githubIssues.echo({ it: 'second' });";
      const { status } = await host.interrupt(`${both} ${RUN} ${wait}`);
      assert.equal(status, 'interrupted');
      const error = await failure('call');
      assert.deepEqual([error.message, error.kind, error.mayHaveRun], [ENDED, 'cancelled', true]);
      assert.equal(await host.result("await mcp.githubIssues.echo({ it: 'again' })"), "'again'");
    });
  }

  test('by a termination loses no call, however early', async () => {
    host.preface();
    host.results['memory/load'] = never;
    const { status } = await host.interrupt(`var calls = [mcp.githubIssues.echo(), mcp.memory.load('a')]; ${RUN} while (true) {}`);
    assert.equal(status, 'interrupted');
    const early = await failure('calls[0]');
    assert.match(early.message, /^the cell ended before .*\.echo was sent; it has not run$/);
    assert.deepEqual([early.kind, early.mayHaveRun], ['cancelled', false]);
    assert.match((await failure('calls[1]')).message, /^the cell ended before mcp\.memory\.load answered/);
  });

  test('by an interrupt lets go of what is queued', async () => {
    host.preface();
    host.tools.echo = ({ it }) => (it ? text(it) : null);
    const calls = 'var calls = Array.from({ length: 1000 }, () => mcp.githubIssues.echo())';
    await host.interrupt(`${calls}; setTimeout(() => { ${RUN} }, 200); await Promise.all(calls)`);
    const sent = 'calls.map((it) => it.catch((error) => error.mayHaveRun))';
    assert.equal(await host.result(`(await Promise.all(${sent})).filter(Boolean).length`), '256');
    assert.equal(await host.result("await mcp.githubIssues.echo({ it: 'again' })"), "'again'");
  });

  test('does not go on calling when it was stopped', async () => {
    host.preface();
    host.tools.echo = ({ it }) => (it ? text(it) : null);
    const forms = {
      finite: 'for (let i = 0; i < 1000; i++) { try { await mcp.githubIssues.echo() } catch (error) { seen.push(error) } }',
      endless: 'for (;;) { try { await mcp.githubIssues.echo() } catch (error) { seen.push(error) } }',
      stuck: 'try { await mcp.githubIssues.echo() } catch { for (;;) {} }',
    };
    for (const [name, code] of Object.entries(forms)) {
      host.calls = [];
      assert.equal((await host.interrupt(`var seen = []; setTimeout(() => { ${RUN} }, 100); ${code}`)).status, 'interrupted', name);
      assert.equal(await host.result("await mcp.githubIssues.echo({ it: 'again' })"), "'again'", name);
      const sent = host.calls.filter((it) => it.method === 'tools/call');
      assert.equal(sent.length, 2, name);
    }
  });

  test('works again and again', async () => {
    host.preface();
    host.tools.echo = ({ it }) => (it ? text(it) : null);
    for (let i = 0; i < 8; i++) {
      const immediate = i % 2 ? 'setImmediate(() => { for (;;) {} });' : '';
      const code = `mcp.githubIssues.echo().catch(() => {}); await new Promise((go) => setTimeout(go, 20)); ${RUN} ${immediate} await mcp.githubIssues.echo()`;
      assert.equal((await host.interrupt(code)).status, 'interrupted');
      assert.equal(await host.result(`await mcp.githubIssues.echo({ it: 'n${i}' })`), `'n${i}'`);
    }
  });

  test('while code mode is loaded for it is stopped, and the next works', async () => {
    for (const patience of [0, 1, 2, 4, 8, 16]) {
      const fresh = new Host();
      await fresh.next();
      fresh.preface();
      fresh.tools.echo = text('ok');
      const signals = setInterval(() => fresh.process.kill('SIGINT'), 1 + patience).unref();
      const { status } = await fresh.run('await new Promise(() => mcp)');
      clearInterval(signals);
      assert.equal(status, 'interrupted');
      await sleep(50); // for signals that are on their way
      assert.equal(await fresh.result('await mcp.githubIssues.echo()'), "'ok'");
      fresh.end();
    }
  });

  test('while it lists the tools of a server leaves nothing half known', async () => {
    host.preface();
    host.results['tools/list'] = never;
    host.tools.echo = text('ok');
    await host.interrupt(`setTimeout(() => { ${RUN} }, 100); await mcp.githubIssues.echo()`);
    delete host.results['tools/list'];
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
  });

  test('by itself fails what it did not wait for, and says so', async () => {
    host.preface();
    host.tools.echo = never;
    await host.run('await mcp.listTools("github_issues")');
    const { status } = await host.run('mcp.githubIssues.echo(); await new Promise((go) => setTimeout(go, 50)); 1');
    assert.equal(status, 'ok');
    assert.match(host.output.stderr, /unhandledRejection: \[MCPError: the cell ended before GitHub Issues\.echo answered; it may have run/);
  });

  test('is not kept from it by code that tries for ever', async () => {
    host.preface();
    host.tools.echo = never;
    const retry = '(async () => { for (;;) await mcp.githubIssues.echo().catch(() => {}) })()';
    assert.equal((await host.run(`${retry}; await new Promise((go) => setTimeout(go, 50)); 1`)).result, '1');
    assert.equal(await host.result('2'), '2');
  });

  test('by process.exit fails its calls too', async () => {
    host.preface();
    host.tools.echo = never;
    await host.run('await mcp.listTools("github_issues")');
    assert.equal((await host.run('var call = mcp.githubIssues.echo(); await new Promise((go) => setTimeout(go, 50)); process.exit(2)')).status, 'exited');
    assert.equal((await failure('call')).message, ENDED);
  });

  test('is the only time for calls', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run('var late; setTimeout(() => { late = mcp.githubIssues.echo().catch((it) => it); console.log("fired") }, 50); await mcp.githubIssues.echo()');
    await host.printed('stdout', /fired/);
    const error = await failure('(async () => { throw await late })()');
    assert.deepEqual([error.kind, error.mayHaveRun], ['refused', false]);
    assert.match(error.message, /was not sent: no cell is running/);
  });
});

describe('answers', () => {
  test('that nobody waits for are dropped', async () => {
    host.answer({ call: 1, result: text('before any') });
    host.preface();
    host.tools.echo = ({ it }) => (it ? text(it) : null);
    await host.interrupt("await mcp.listTools('github_issues'); setTimeout(() => console.log('running'), 50); await mcp.githubIssues.echo()");
    const { call } = host.calls.at(-1);
    host.answer({ call, result: text('late') });
    host.answer({ call: call + 100, result: text('forged') });
    host.answer({ call: '1', result: text('forged') });
    host.answer({ result: text('forged') });
    assert.equal(await host.result("await mcp.githubIssues.echo({ it: 'right' })"), "'right'");
    host.answer({ call: host.calls.at(-1).call, result: text('twice') });
    assert.equal(await host.result("await mcp.githubIssues.echo({ it: 'right again' })"), "'right again'");
    assert.equal(host.output.stderr, '');
  });

  test('are known whatever the order of their fields', async () => {
    host.preface();
    host.answer = ({ call, ...rest }) => host.control.write(pack({ call, ...rest, type: 'answer' }));
    host.tools.echo = text('ok');
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
  });
});

describe('servers', () => {
  test('change with the preface', async () => {
    host.tools.echo = text('ok');
    assert.equal(await host.result('mcp.servers'), '[]');
    host.preface([MEMORY]);
    assert.equal(await host.result('mcp.servers'), "[ 'memory' ]");
    const error = await failure('mcp.githubIssues.echo()');
    assert.equal(error.message, "no server 'githubIssues' is loaded here: name it in `servers` of the call (loaded: memory)");
    assert.deepEqual([error.kind, error.server], ['not_found', 'githubIssues']);
    host.preface([MEMORY, GITHUB]);
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
    host.preface([{ ...GITHUB, version: '2' }]);
    await host.run('await mcp.githubIssues.echo()');
    await host.run('await mcp.githubIssues.echo()');
    assert.equal(host.methods().filter((it) => it === 'tools/list').length, 2, 'once a version');
  });

  test('of a preface are those of the cells that follow it', async () => {
    host.control.write(host.frame("await new Promise((go) => setTimeout(go, 50)); mcp.servers.length"));
    host.preface();
    host.control.write(host.frame('mcp.servers.length'));
    assert.deepEqual([(await host.next()).result, (await host.next()).result], ['0', '1']);
  });

  test('are asked of the host where none has come', async () => {
    host.results['servers/list'] = { servers: [{ ...GITHUB, loaded: true }, { ...MEMORY, loaded: false }] };
    host.tools.echo = text('ok');
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
    assert.match((await failure("mcp.server('memory').x()")).message, /no server 'memory' is loaded/);
    assert.deepEqual((await json('mcp.listServers()')).map((it) => it.name), ['GitHub Issues', 'memory']);
  });

  test('look like neither promises nor tools to anything else', async () => {
    host.preface();
    assert.equal(await host.result('(await mcp.githubIssues) === mcp.githubIssues && (await mcp) === mcp'), 'true');
    assert.equal(await host.result('[String(mcp), String(mcp.githubIssues), JSON.stringify(mcp.githubIssues)].join()'), "'[object Object],[object Object],{}'");
    assert.equal(await host.result('mcp'), 'mcp { servers: [github_issues], see mcp.help() }');
    assert.match(await host.result('mcp.githubIssues'), /mcp\.githubIssues \{ await mcp\.listTools/);
    assert.match(await host.result("require('util').inspect(mcp, { showProxy: true, showHidden: true, depth: 9 })"), /Proxy/);
    assert.match(await host.result("require('util').inspect([mcp.githubIssues], { showProxy: true })"), /Proxy/);
    assert.equal(await host.result('mcp.githubIssues.createIssue'), '[Function: githubIssues.createIssue]');
    assert.deepEqual(host.calls, []);
    await host.run("await mcp.listTools('githubIssues')");
    assert.equal(await host.result('Object.keys(mcp.githubIssues).join()'), "'createIssue,echo,list_items,listItems'");
    assert.equal(await host.result("'echo' in mcp.githubIssues && !('none' in mcp.githubIssues)"), 'true');
    assert.match(await host.result('mcp.githubIssues'), /mcp\.githubIssues \{ createIssue, echo/);
  });

  test('leave a global mcp of the guest alone', async () => {
    await host.run("globalThis['m' + 'cp'] = 5");
    host.preface();
    assert.equal(await host.result('mcp'), '5');
    assert.equal(await host.result('const mcp = 6; mcp'), '6');
  });
});

describe('lookups', () => {
  test('list and describe', async () => {
    host.preface();
    assert.deepEqual(await json("mcp.listTools('githubIssues')"), TOOLS);
    const doc = { server: 'GitHub Issues', tool: 'create-issue', call: 'mcp.githubIssues.createIssue({ title, body? })', description: 'Opens one.' };
    assert.deepEqual(await json("mcp.docs('githubIssues', 'createIssue')"), doc);
    assert.deepEqual((await json("mcp.docs('GitHub Issues', undefined, { detail: 'full' })"))[0], { ...doc, inputSchema: TOOLS[0].inputSchema });
    assert.match((await failure("mcp.docs('githubIssues', 'none')")).message, /has no tool 'none' \(it has: createIssue, /);
  });

  test('search, and say how to call what was found', async () => {
    host.preface([MEMORY]);
    const found = { server: 'memory', server_alias: 'memory', tool: 'read-graph', alias: 'read_graph', description: 'd', score: 1 };
    host.results['tools/search'] = { tools: [found, { ...found, server_alias: 'git_hub' }] };
    const calls = (await json("mcp.searchTools('graph', { limit: 3, detail: 'full' })")).map((it) => it.call);
    assert.deepEqual(calls, ["mcp.server('memory').readGraph", 'mcp.gitHub.readGraph']);
    assert.deepEqual(host.calls.at(-1).params, { query: 'graph', limit: 3, detail: 'full' });
    assert.match(await evaluate('mcp.help()'), /Loaded: mcp\.server\('memory'\)/);
  });
});

describe('memory', () => {
  test('is kept by the host', async () => {
    const kept = new Map();
    host.results['memory/save'] = ({ key, ...rest }) => (kept.set(key, rest), { key, created: 1, updated: 2 });
    host.results['memory/load'] = ({ key }) => ({ key, found: kept.has(key), ...kept.get(key) });
    host.results['memory/delete'] = ({ key }) => ({ deleted: kept.delete(key) });
    host.results['memory/list'] = () => ({ memories: [...kept.keys()].map((key) => ({ key, size: 1 })) });
    host.results['memory/info'] = ({ key }) => (kept.has(key) ? { found: true, key, size: 1 } : { found: false, key });
    await host.run("await mcp.memory.save('a', { x: 1 }, { tag: 't' })");
    assert.deepEqual(kept.get('a'), { value: { x: 1 }, metadata: { tag: 't' } });
    assert.deepEqual(await json("[await mcp.memory.load('a'), await mcp.memory.load('b'), await mcp.memory.load('b', 7)]"), [{ x: 1 }, null, 7]);
    assert.deepEqual(await json("mcp.memory.update('a', { y: 2 })"), { x: 1, y: 2 });
    assert.equal(await json("mcp.memory.update('n', (n) => n + 1, 0)"), 1);
    assert.deepEqual(kept.get('a').metadata, { tag: 't' });
    assert.deepEqual(await json("[await mcp.memory.exists('a'), await mcp.memory.exists('b')]"), [true, false]);
    assert.deepEqual(await json("[await mcp.memory.info('a'), await mcp.memory.info('b')]"), [{ key: 'a', size: 1 }, null]);
    assert.deepEqual(await json('mcp.memory.list()'), [{ key: 'a', size: 1 }, { key: 'n', size: 1 }]);
    assert.deepEqual(await json("[await mcp.memory.delete('a'), await mcp.memory.delete('a')]"), [true, false]);
  });
});

describe('saved tools', () => {
  const load = (sources) => (host.results['saved/load'] = ({ name }) => ({ name, version: 1, doc: '', source: sources[name] }));
  const saved = (...names) => names.map((name) => ({ name, version: 1, doc: '' }));

  test('are saved by their source', async () => {
    host.results['saved/save'] = ({ name }) => ({ name, version: 1 });
    const code = "/** Adds.\n * Twice. */\nfunction add(a, b) { return a + b }\nasync function open() { /** Opens. */ return import('node:fs') }";
    assert.equal(await host.result(`${code}\nawait mcp.saveTool(open); await mcp.saveTool(add)`), "{ name: 'add', version: 1 }");
    const [opened, added] = host.calls.map((it) => it.params);
    assert.deepEqual(added, { name: 'add', source: 'function add(a, b) { return a + b }', doc: 'Adds.\nTwice.' });
    assert.deepEqual([opened.name, opened.doc], ['open', 'Opens.']);
    await host.run("const half = (n) => n / 2; await mcp.saveTool(half, { doc: 'Halves.' })");
    assert.deepEqual(host.calls[2].params, { name: 'half', source: '(n) => n / 2', doc: 'Halves.' });
    const refused = ['() => 1', 'Math.max', 'half.bind(1)', 'class A {}', '({ m() {} }).m', '5', 'null', 'function fetch() {}'];
    for (const it of refused) assert.equal((await failure(`mcp.saveTool(${it})`)).kind, 'invalid', it);
    assert.equal(host.calls.length, 3);
  });

  test('are there by name, and loaded when they are called', async () => {
    load({ add: 'function add(a, b) { return a + b }', open: "async () => (await __import('node:path')).sep + (await import('node:os')).EOL" });
    host.preface([], saved('add', 'open', 'fetch'));
    assert.equal(await host.result('[typeof add, add.name, typeof fetch, fetch.name].join()'), "'function,add,function,fetch'");
    assert.deepEqual(host.calls, []);
    assert.equal(await host.result('await add(1, 2) + await add(3, 4)'), '10');
    assert.equal(await host.result('await open()'), "'/\\n'");
    assert.deepEqual(host.calls.map((it) => it.params), [{ name: 'add' }, { name: 'open' }]);
  });

  test('follow the preface and give way to what the guest defines', async () => {
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

  test('that are broken fail when they are used', async () => {
    load({ torn: 'function (', five: '5', free: '() => nowhere' });
    host.preface([], saved('torn', 'five', 'free'));
    assert.match((await failure('torn()')).message, /^the saved tool torn is broken: SyntaxError/);
    assert.match((await failure('five()')).message, /is broken: TypeError: it is no function/);
    const { error } = await host.run('await free()');
    assert.match(error.traceback, /^ReferenceError: nowhere is not defined\n    at saved-free:1:8/);
  });

  test('are listed and deleted', async () => {
    host.results['saved/list'] = { tools: saved('add') };
    host.results['saved/delete'] = { deleted: true };
    host.preface([], saved('add'));
    assert.deepEqual(await json('mcp.savedTools()'), saved('add'));
    assert.equal(await host.result("await mcp.deleteTool('add')"), 'true');
    assert.equal(await host.result('typeof add'), "'undefined'");
  });
});

describe('a session without code mode', () => {
  test('does not load it', async () => {
    const kind = "typeof globalThis['m' + 'cp']";
    assert.equal(await host.result(kind), "'undefined'");
    host.preface([], []);
    assert.equal(await host.result(kind), "'undefined'");
    host.preface([GITHUB], []);
    assert.equal(await host.result(kind), "'object'");
  });
});
