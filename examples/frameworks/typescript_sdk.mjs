// The TypeScript SDK of MCP: `node typescript_sdk.mjs URL`, or with a command in place of the URL.

import { readFileSync } from 'node:fs';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const calls = JSON.parse(readFileSync(new URL('calls.json', import.meta.url)));
const [target, ...args] = process.argv.slice(2);

const client = new Client({ name: 'example', version: '1' }, { versionNegotiation: { mode: 'auto' } });
await client.connect(
  target.startsWith('http')
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args }),
);
for (const [name, args] of calls) {
  const { content } = await client.callTool({ name, arguments: args });
  const texts = content.filter((block) => block.type === 'text').map((block) => block.text);
  const images = content.filter((block) => block.type === 'image').map((block) => block.mimeType);
  console.log(JSON.stringify({ text: texts.join('\n'), images }));
}
await client.close();
