// The same steps as session_client.py, with the TypeScript SDK, which negotiates the protocol version.
//
// `session_client.mjs stdio COMMAND ARGS…` or `session_client.mjs http URL`. scripts/test downloads the SDK.

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
  const print = (name, ...values) => console.log(`${name}:`, ...values);

  print('protocol', client.getNegotiatedProtocolVersion());
  print('offered', (await client.listTools()).tools.some((tool) => tool.name === 'execute_code'));
  const created = await call('execute_code', { code: 'x = 41' });
  const { session_id } = created.structuredContent;
  print('created', created.structuredContent.session_created);
  const run = (code, options) => call('execute_code', { code, session_id, ...options });

  print('result', (await run('x + 1')).structuredContent.result);
  print('image', (await run(IMAGE)).content.find((item) => item.type === 'image').mimeType);
  const late = await run('while True: pass', { timeout: 1 });
  print('late', late.isError, late.structuredContent.status);
  print('after', (await run('print(x)')).structuredContent.stdout.trim());
  const command = await call('execute_command', { command: 'echo $((6 * 7)) | cat; exit 3', session_id });
  print('command', command.structuredContent.stdout.trim(), command.structuredContent.exit_code);
  const refused = await run('1', { template: 'cobol' });
  print('refused', refused.isError, refused.structuredContent.error_code, refused.content[0].text.includes('use one of those'));
  print('stopped', !(await call('stop_session', { session_id })).isError);
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
