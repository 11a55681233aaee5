// A host for tests of code mode in the JavaScript kernel.

import { Kernel, pack } from './kernel_driver.mjs';

export const TOOLS = [
  { name: 'create-issue', alias: 'create_issue', description: 'Opens one.', inputSchema: { properties: { body: {}, title: {} }, required: ['title'] } },
  { name: 'echo', alias: 'echo', inputSchema: {} },
  { name: 'list_items', alias: 'list_items' },
  { name: 'listItems', alias: 'listitems' },
  { name: 'then', alias: 'then' },
];
export const GITHUB = { name: 'GitHub Issues', alias: 'github_issues', description: 'Issues.', version: '1' };
export const MEMORY = { name: 'memory', alias: 'memory', description: 'A graph.', version: '1' };

// Starts a kernel and responds to its calls.
export class Host extends Kernel {
  calls = [];
  cancels = [];
  open = 0;
  maxOpen = 0;
  results = {}; // by method: a value, or a function of the params
  tools = {}; // by tool: an MCP result, or a function of its arguments

  handle(frame) {
    if (frame.type === 'cancel') this.cancels.push(frame);
    else if (frame.type === 'call') this.#serve(frame);
    return frame.type === 'call' || frame.type === 'cancel';
  }

  async #serve(frame) {
    this.calls.push(frame);
    this.maxOpen = Math.max(this.maxOpen, ++this.open);
    const response = await this.#getResponse(frame).catch((error) => ({ error }));
    this.open--;
    if (response.result !== null) this.respond({ call: frame.call, ...response });
  }

  async #getResponse({ method, params }) {
    const resolve = async (entry, given) => (typeof entry === 'function' ? entry(given) : entry);
    if (method === 'tools/call') return { result: await resolve(this.tools[params.tool], params.arguments) };
    if (method === 'tools/list' && !this.results[method]) return { result: { server: GITHUB, tools: TOOLS } };
    return { result: await resolve(this.results[method], params) };
  }

  respond(frame) {
    this.control.write(pack({ type: 'answer', ...frame }));
  }

  preface(servers = [GITHUB], saved = []) {
    this.control.write(pack({ type: 'preface', servers, saved }));
  }

  methods() {
    return this.calls.map((call) => call.method);
  }

  // The value of code whose result is a string.
  async evaluate(code) {
    return (0, eval)(await this.result(code));
  }

  async json(code) {
    return JSON.parse(await this.evaluate(`JSON.stringify(await (async () => ${code})())`));
  }

  // The fields of the error with which a promise is rejected.
  failure(code) {
    const describe = '(error) => ({ message: error.message, ...error, isMcp: error instanceof mcp.MCPError })';
    return this.json(`${code}.then((value) => ({ unexpected: value }), ${describe})`);
  }
}

export const text = (content) => ({ content: [{ type: 'text', text: content }] });
export const never = () => null; // as a result: no response
