// The global `mcp` of the JavaScript kernel: servers and discovery.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { GITHUB, Host, MEMORY, TOOLS, text } from './bridge_driver.mjs';
import { endKernels, startKernel, test } from './kernel_driver.mjs';

let host;
beforeEach(async () => (host = await startKernel(Host)));
afterEach(endKernels);

describe('servers', () => {
  test('change with the preface', async () => {
    host.tools.echo = text('ok');
    assert.equal(await host.result('mcp.servers'), '[]');
    host.preface([MEMORY]);
    assert.equal(await host.result('mcp.servers'), "[ 'memory' ]");
    const error = await host.failure('mcp.githubIssues.echo()');
    assert.equal(error.message, "the server 'githubIssues' is not loaded in this session (loaded: memory); hint: name it in `servers` of the call");
    assert.deepEqual([error.kind, error.server], ['not_found', 'githubIssues']);
    host.preface([MEMORY, GITHUB]);
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
    host.preface([{ ...GITHUB, version: '2' }]);
    await host.run('await mcp.githubIssues.echo()');
    await host.run('await mcp.githubIssues.echo()');
    assert.equal(host.methods().filter((method) => method === 'tools/list').length, 2, 'once per version');
  });

  test('of a preface apply to the cells after it', async () => {
    host.control.write(host.frame("await new Promise((go) => setTimeout(go, 50)); mcp.servers.length"));
    host.preface();
    host.control.write(host.frame('mcp.servers.length'));
    assert.deepEqual([(await host.next()).result, (await host.next()).result], ['0', '1']);
  });

  test('are queried from the host without a preface', async () => {
    host.results['servers/list'] = { servers: [{ ...GITHUB, loaded: true }, { ...MEMORY, loaded: false }] };
    host.tools.echo = text('ok');
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
    assert.match((await host.failure("mcp.server('memory').x()")).message, /the server 'memory' is not loaded/);
    assert.deepEqual((await host.json('mcp.listServers()')).map((server) => server.name), ['GitHub Issues', 'memory']);
  });

  test('are not mistaken for promises', async () => {
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

  test('do not replace a global mcp of the guest', async () => {
    await host.run("globalThis['m' + 'cp'] = 5");
    host.preface();
    assert.equal(await host.result('mcp'), '5');
    assert.equal(await host.result('const mcp = 6; mcp'), '6');
  });
});

describe('discovery', () => {
  test('lists and describes tools', async () => {
    host.preface();
    assert.deepEqual(await host.json("mcp.listTools('githubIssues')"), TOOLS);
    const names = { server: 'GitHub Issues', server_alias: 'github_issues', tool: 'create-issue', alias: 'create_issue' };
    const common = { serverAlias: 'github_issues', toolAlias: 'create_issue' };
    const doc = { ...names, ...common, call: 'mcp.githubIssues.createIssue({ title, body? })', description: 'Opens one.' };
    assert.deepEqual(await host.json("mcp.docs('githubIssues', 'createIssue')"), doc);
    assert.deepEqual((await host.json("mcp.docs('GitHub Issues', undefined, { detail: 'full' })"))[0], { ...doc, inputSchema: TOOLS[0].inputSchema, input_schema: TOOLS[0].inputSchema });
    assert.match((await host.failure("mcp.docs('githubIssues', 'none')")).message, /has no tool 'none' \(tools: createIssue, /);
  });

  test('lists the tools of a server unless it has a tool of this name', async () => {
    host.preface();
    assert.deepEqual(await host.json('mcp.githubIssues.listTools()'), TOOLS);
    assert.deepEqual(await host.json('mcp.githubIssues.list_tools()'), TOOLS);
    host.results['tools/list'] = { server: MEMORY, tools: [{ name: 'list-tools', alias: 'list_tools' }] };
    host.tools['list-tools'] = text('called');
    host.preface([MEMORY]);
    assert.equal(await host.result("await mcp.server('memory').listTools()"), "'called'");
  });

  test('searches tools and shows how to call them', async () => {
    host.preface([MEMORY]);
    const found = { server: 'memory', server_alias: 'memory', tool: 'read-graph', alias: 'read_graph', description: 'd', score: 1 };
    host.results['tools/search'] = { tools: [found, { ...found, server_alias: 'git_hub' }] };
    const tools = await host.json("mcp.searchTools('graph', { limit: 3, detail: 'full' })");
    assert.deepEqual(tools.map((found) => found.call), ["mcp.server('memory').readGraph", 'mcp.gitHub.readGraph']);
    assert.deepEqual(tools.map((found) => [found.serverAlias, found.toolAlias]), [['memory', 'read_graph'], ['git_hub', 'read_graph']]);
    assert.deepEqual(host.calls.at(-1).params, { query: 'graph', limit: 3, detail: 'full' });
    assert.match(await host.evaluate('mcp.help()'), /Loaded: mcp\.server\('memory'\)/);
  });
});

describe('a session without code mode', () => {
  test('does not load the bridge', async () => {
    const kind = "typeof globalThis['m' + 'cp']";
    assert.equal(await host.result(kind), "'undefined'");
    host.preface([], []);
    assert.equal(await host.result(kind), "'undefined'");
    host.preface([GITHUB], []);
    assert.equal(await host.result(kind), "'object'");
  });
});
