// Results of tools as plain values, and failures as MCPError.

import { globals } from './kernel_output.mjs';

const { Array, Buffer, Error, JSON, Math, Number, Object, Set } = globals;

export class MCPError extends Error {
  // `kind` is `tool` for an error of the tool itself, or `refused`, `not_found`, `invalid`, `limit`, `upstream`,
  // `timeout`, `lost`, `cancelled` or `internal`. `mayHaveRun`: no response arrived, but the tool may have done its work.
  constructor(message, { cause, ...fields } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    const given = Object.entries({ kind: 'internal', mayHaveRun: false, ...fields });
    Object.assign(this, Object.fromEntries(given.filter(([, value]) => value !== undefined)));
  }
}
Object.defineProperty(MCPError.prototype, 'name', { value: 'MCPError', writable: true, configurable: true });

const UNCERTAIN = new Set(['timeout', 'lost', 'cancelled']);

export function errorOfHost({ kind = 'internal', message, code, data, may_have_run, cause }, about) {
  const mayHaveRun = may_have_run ?? UNCERTAIN.has(kind);
  return new MCPError(message ?? `the host reports an error: ${kind}`, { ...about, kind, code, data, mayHaveRun, cause });
}

export function errorOfTool(result, about) {
  const parts = Array.isArray(result.content) ? result.content : [];
  const text = parts.map((part) => part?.text).filter((text) => typeof text === 'string').join('\n');
  const message = text || `${about.server}.${about.tool} reported an error without a message`;
  return new MCPError(message, { ...about, kind: 'tool', data: result.structuredContent ?? undefined });
}

export function valueOfResult(result) {
  if (result === null || typeof result !== 'object') return result;
  if (result.structuredContent !== undefined && result.structuredContent !== null) return result.structuredContent;
  if (!Array.isArray(result.content)) return result;
  const values = result.content.map(valueOfPart);
  return values.length > 1 ? values : (values[0] ?? null);
}

function valueOfPart(part) {
  const { type, text, data, mimeType, resource } = part ?? {};
  if (type === 'text' && typeof text === 'string') return parseIfJson(text);
  if ((type === 'image' || type === 'audio') && typeof data === 'string') return bytes(data, { mimeType });
  if (type !== 'resource') return part;
  if (typeof resource?.blob === 'string') return bytes(resource.blob, { mimeType: resource.mimeType, uri: resource.uri });
  return typeof resource?.text === 'string' ? parseIfJson(resource.text) : part;
}

function bytes(base64, fields) {
  return Object.assign(Buffer.from(base64, 'base64'), { mimeType: 'application/octet-stream' }, dropUndefined(fields));
}

const dropUndefined = (fields) => JSON.parse(JSON.stringify(fields));
const JSON_START = /^\s*(?:[[{"\d-]|true|false|null)/;

// A single number that would lose digits, such as a long id, stays text.
function parseIfJson(text) {
  if (!JSON_START.test(text)) return text;
  try {
    const value = JSON.parse(text);
    return typeof value === 'number' && Math.abs(value) > Number.MAX_SAFE_INTEGER ? text : value;
  } catch {
    return text;
  }
}
