// The same walk as session_client.py, with the TypeScript SDK, which is asked to choose the protocol version itself.
//
// `session_client.mjs stdio COMMAND ARGS…` or `session_client.mjs http URL`. The SDK is where scripts/test puts it.

import { createRequire } from 'node:module';

const require = createRequire(`${process.env.RINGFENCE_TEST_CACHE}/clients/`);
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');

const IMAGE = `
class Picture:
    def _repr_png_(self):
        return b"\\x89PNG\\r\\n\\x1a\\n and so on"
display(Picture())
`;

async function use(client) {
  const call = (name, args) => client.callTool({ name, arguments: args });
  const said = (name, ...values) => console.log(`${name}:`, ...values);

  said('protocol', client.getNegotiatedProtocolVersion());
  said('offered', (await client.listTools()).tools.some((tool) => tool.name === 'execute_code'));
  const made = await call('execute_code', { code: 'x = 41' });
  const { session_id } = made.structuredContent;
  said('created', made.structuredContent.session_created);
  const run = (code, more) => call('execute_code', { code, session_id, ...more });

  said('result', (await run('x + 1')).structuredContent.result);
  said('image', (await run(IMAGE)).content.find((item) => item.type === 'image').mimeType);
  const late = await run('while True: pass', { timeout: 1 });
  said('late', late.isError, late.structuredContent.status);
  said('after', (await run('print(x)')).structuredContent.stdout.trim());
  const command = await call('execute_command', { command: 'echo $((6 * 7)) | cat; exit 3', session_id });
  said('command', command.structuredContent.stdout.trim(), command.structuredContent.exit_code);
  said('stopped', !(await call('stop_session', { session_id })).isError);
}

const [transport, where, ...args] = process.argv.slice(2);
const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode: 'auto' } });
await client.connect(
  transport === 'http'
    ? new StreamableHTTPClientTransport(new URL(where))
    : new StdioClientTransport({ command: where, args }),
);
await use(client);
await client.close();
