// Results and errors of tools in the JavaScript kernel.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';

import { Host, text } from './bridge_driver.mjs';
import { endKernels, startKernel, test } from './kernel_driver.mjs';

let host;
beforeEach(async () => (host = await startKernel(Host)));
afterEach(endKernels);

describe('results', () => {
  const result = async (response, options = '{}') => {
    host.preface();
    host.tools.echo = response;
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

  test('are complete if raw is set', async () => {
    assert.equal(await result({ ...text('no'), isError: true }, '{ raw: true }'), "{ content: [ { type: 'text', text: 'no' } ], isError: true }");
  });

  test('that are errors throw MCPError with the message of the server', async () => {
    host.preface();
    host.tools.echo = { ...text('no such repository'), structuredContent: { status: 404 }, isError: true };
    const { status, error } = await host.run('1\nawait mcp.githubIssues.echo()');
    assert.deepEqual([status, error.name, error.message], ['error', 'MCPError', 'no such repository']);
    assert.match(error.traceback, /^MCPError: no such repository\n    at async cell 1:2:1 \{\n  kind: 'tool',/);
    assert.deepEqual(await host.failure('mcp.githubIssues.echo()'), {
      message: 'no such repository', kind: 'tool', mayHaveRun: false, server: 'GitHub Issues', tool: 'echo', data: { status: 404 }, isMcp: true,
    });
  });

  test('that are errors of the host keep their fields', async () => {
    host.preface();
    const failWith = (error) => (host.tools.echo = () => Promise.reject(error));
    failWith({ kind: 'upstream', message: 'bad params', code: -32602, data: { field: 'a' } });
    const { message, ...fields } = await host.failure('mcp.githubIssues.echo()');
    assert.equal(message, 'bad params');
    assert.deepEqual(fields, { kind: 'upstream', code: -32602, data: { field: 'a' }, mayHaveRun: false, server: 'GitHub Issues', tool: 'echo', isMcp: true });
    failWith({ kind: 'lost', message: 'gone', may_have_run: false });
    assert.equal((await host.failure('mcp.githubIssues.echo()')).mayHaveRun, false);
    failWith({ kind: 'timeout', message: 'late' });
    assert.equal((await host.failure('mcp.githubIssues.echo()')).mayHaveRun, true);
    host.tools.ech = () => Promise.reject({ kind: 'not_found', message: 'no tool ech' });
    assert.match((await host.failure('mcp.githubIssues.ech()')).message, /^no tool ech \(tools of GitHub Issues: createIssue, echo, /);
  });
});
