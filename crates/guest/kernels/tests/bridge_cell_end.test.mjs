// Calls that are open at the end of a cell of the JavaScript kernel.

import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Host, never, text } from './bridge_driver.mjs';
import { endKernels, startKernel, test } from './kernel_driver.mjs';

let host;
beforeEach(async () => (host = await startKernel(Host)));
afterEach(endKernels);

describe('a cell that ends', () => {
  const PRINT = "console.log('running');";
  const ENDED = 'the cell ended before GitHub Issues.echo got a response; it may have run; hint: await calls in the cell that makes them';

  for (const [name, wait] of Object.entries({ awaits: 'await call', loops: 'while (true) {}' })) {
    test(`by an interrupt while it ${name} fails its calls, and the next cell works`, async () => {
      host.preface();
      host.tools.echo = ({ reply }) => (reply ? text(reply) : null);
      // Calls are sent in order: the first was sent when the second has its response.
      const both = "var call = mcp.githubIssues.echo(); await mcp.githubIssues.echo({ reply: 'second' });";
      const { status } = await host.interrupt(`${both} ${PRINT} ${wait}`);
      assert.equal(status, 'interrupted');
      const error = await host.failure('call');
      assert.deepEqual([error.message, error.kind, error.mayHaveRun], [ENDED, 'cancelled', true]);
      assert.equal(await host.result("await mcp.githubIssues.echo({ reply: 'again' })"), "'again'");
    });
  }

  test('by a termination rejects every call', async () => {
    host.preface();
    host.results['memory/load'] = never;
    const { status } = await host.interrupt(`var calls = [mcp.githubIssues.echo(), mcp.memory.load('a')]; ${PRINT} while (true) {}`);
    assert.equal(status, 'interrupted');
    const early = await host.failure('calls[0]');
    assert.match(early.message, /^the cell ended before .*\.echo was sent; it has not run; hint: /);
    assert.deepEqual([early.kind, early.mayHaveRun], ['cancelled', false]);
    assert.match((await host.failure('calls[1]')).message, /^the cell ended before mcp\.memory\.load got a response/);
  });

  test('by an interrupt drops queued calls', async () => {
    host.preface();
    host.tools.echo = ({ reply }) => (reply ? text(reply) : null);
    const calls = 'var calls = Array.from({ length: 1000 }, () => mcp.githubIssues.echo())';
    await host.interrupt(`${calls}; setTimeout(() => { ${PRINT} }, 200); await Promise.all(calls)`);
    const sent = 'calls.map((call) => call.catch((error) => error.mayHaveRun))';
    assert.equal(await host.result(`(await Promise.all(${sent})).filter(Boolean).length`), '256');
    assert.equal(await host.result("await mcp.githubIssues.echo({ reply: 'again' })"), "'again'");
  });

  test('makes no further calls after it was stopped', async () => {
    host.preface();
    host.tools.echo = ({ reply }) => (reply ? text(reply) : null);
    const forms = {
      finite: 'for (let i = 0; i < 1000; i++) { try { await mcp.githubIssues.echo() } catch (error) { seen.push(error) } }',
      endless: 'for (;;) { try { await mcp.githubIssues.echo() } catch (error) { seen.push(error) } }',
      stuck: 'try { await mcp.githubIssues.echo() } catch { for (;;) {} }',
    };
    for (const [name, code] of Object.entries(forms)) {
      host.calls = [];
      assert.equal((await host.interrupt(`var seen = []; setTimeout(() => { ${PRINT} }, 100); ${code}`)).status, 'interrupted', name);
      assert.equal(await host.result("await mcp.githubIssues.echo({ reply: 'again' })"), "'again'", name);
      const sent = host.calls.filter((frame) => frame.method === 'tools/call');
      assert.equal(sent.length, 2, name);
    }
  });

  test('can be interrupted repeatedly', async () => {
    host.preface();
    host.tools.echo = ({ reply }) => (reply ? text(reply) : null);
    for (let i = 0; i < 8; i++) {
      const immediate = i % 2 ? 'setImmediate(() => { for (;;) {} });' : '';
      const code = `mcp.githubIssues.echo().catch(() => {}); await new Promise((go) => setTimeout(go, 20)); ${PRINT} ${immediate} await mcp.githubIssues.echo()`;
      assert.equal((await host.interrupt(code)).status, 'interrupted');
      assert.equal(await host.result(`await mcp.githubIssues.echo({ reply: 'n${i}' })`), `'n${i}'`);
    }
  });

  test('while code mode is loaded is stopped, and the next cell works', async () => {
    for (const delayMs of [1, 2, 3, 5, 9, 17]) {
      const fresh = await startKernel(Host);
      fresh.preface();
      fresh.tools.echo = text('ok');
      const signals = setInterval(() => fresh.process.kill('SIGINT'), delayMs).unref();
      const { status } = await fresh.run('await new Promise(() => mcp)');
      clearInterval(signals);
      assert.equal(status, 'interrupted');
      await sleep(50); // for late signals
      assert.equal(await fresh.result('await mcp.githubIssues.echo()'), "'ok'");
      fresh.end();
    }
  });

  test('while it lists tools leaves no incomplete list', async () => {
    host.preface();
    host.results['tools/list'] = never;
    host.tools.echo = text('ok');
    await host.interrupt(`setTimeout(() => { ${PRINT} }, 100); await mcp.githubIssues.echo()`);
    delete host.results['tools/list'];
    assert.equal(await host.result('await mcp.githubIssues.echo()'), "'ok'");
  });

  test('by itself fails calls that it did not await', async () => {
    host.preface();
    host.tools.echo = never;
    await host.run('await mcp.listTools("github_issues")');
    const { status } = await host.run('mcp.githubIssues.echo(); await new Promise((go) => setTimeout(go, 50)); 1');
    assert.equal(status, 'ok');
    assert.match(host.output.stderr, /unhandledRejection: \[MCPError: the cell ended before GitHub Issues\.echo got a response; it may have run/);
  });

  test('is not delayed by code that retries without end', async () => {
    host.preface();
    host.tools.echo = never;
    const retry = '(async () => { for (;;) await mcp.githubIssues.echo().catch(() => {}) })()';
    assert.equal((await host.run(`${retry}; await new Promise((go) => setTimeout(go, 50)); 1`)).result, '1');
    assert.equal(await host.result('2'), '2');
  });

  test('by process.exit fails its calls', async () => {
    host.preface();
    host.tools.echo = never;
    await host.run('await mcp.listTools("github_issues")');
    assert.equal((await host.run('var call = mcp.githubIssues.echo(); await new Promise((go) => setTimeout(go, 50)); process.exit(2)')).status, 'exited');
    assert.equal((await host.failure('call')).message, ENDED);
  });

  test('refuses later calls', async () => {
    host.preface();
    host.tools.echo = text('ok');
    await host.run('var late; setTimeout(() => { late = mcp.githubIssues.echo().catch((error) => error); console.log("fired") }, 50); await mcp.githubIssues.echo()');
    await host.printed('stdout', /fired/);
    const error = await host.failure('(async () => { throw await late })()');
    assert.deepEqual([error.kind, error.mayHaveRun], ['refused', false]);
    assert.match(error.message, /was not sent: no cell is running/);
  });
});
