// An agent of the AI SDK: `node ai_sdk.mjs URL`. It needs Node.js 22.

import { readFileSync } from 'node:fs';
import { createMCPClient } from '@ai-sdk/mcp';
import { generateText, isStepCount } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';

const calls = JSON.parse(readFileSync(new URL('calls.json', import.meta.url)));

// In place of a real model.
const respond = (content, unified) => ({
  content: [content], finishReason: { unified }, usage: { inputTokens: {}, outputTokens: {} }, warnings: [],
});
const turns = calls.map(([toolName, args]) =>
  respond({ type: 'tool-call', toolCallId: toolName, toolName, input: JSON.stringify(args) }, 'tool-calls'));
const model = new MockLanguageModelV4({ doGenerate: [...turns, respond({ type: 'text', text: 'done' }, 'stop')] });

const client = await createMCPClient({ transport: { type: 'http', url: process.argv[2] } });
const tools = await client.tools();
await generateText({ model, tools, stopWhen: isStepCount(20), prompt: 'What is 41 + 1?' });
await client.close();

for (const { role, content } of model.doGenerateCalls.at(-1).prompt) {
  if (role !== 'tool') continue;
  const blocks = content[0].output.value;
  const texts = blocks.filter((block) => block.type === 'text').map((block) => block.text);
  const images = blocks.filter((block) => block.type === 'file').map((block) => block.mediaType);
  console.log(JSON.stringify({ text: texts.join('\n'), images }));
}
