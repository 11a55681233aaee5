// Turns a cell into a script for V8: with its imports, and with declarations that a later cell may repeat in another way.
//
// Nothing here parses JavaScript. To find out what a part of the text is, it is changed on purpose, and V8 returns the
// offset of the first syntax error (`findSyntaxError`; -1 for none). A part that V8 does not confirm stays unchanged.

// Saved before any cell runs: a top-level declaration of a cell hides a global for this code too.
const { Array, Boolean, Math, Object, RegExp, Set, String } = globalThis;

const LINE_END = /\r\n|[\n\r\u2028\u2029]/g; // as V8 counts lines
// Matches in one way only: with several, a long run of comments would take exponential time.
const GAP = String.raw`(?:\s|/\*(?:(?!\*/)[^])*\*/|//.*(?=[\n\r\u2028\u2029]|$))*`;
const NAME = String.raw`[\p{ID_Start}$_][\p{ID_Continue}$]*`;

export const lineStarts = (text) => [0, ...Array.from(text.matchAll(LINE_END), (match) => match.index + match[0].length)];

// The text of a cell and the edits in it. Edits do not change the number of a line; columns are mapped back.
class Source {
  constants = []; // names that have become variables and may be assigned once
  #edits = []; // { start, end, added }: offsets in the current text, in order

  constructor(code) {
    this.code = this.text = code;
  }

  replace(start, length, replacement) {
    const added = replacement.length - length;
    this.text = this.text.slice(0, start) + replacement + this.text.slice(start + length);
    for (const edit of this.#edits) {
      if (edit.start < start) continue;
      edit.start += added;
      edit.end += added;
    }
    if (added) this.#edits.push({ start, end: start + replacement.length, added });
    this.#edits.sort((a, b) => a.start - b.start);
  }

  // Maps an offset in the text to one in the code.
  offsetInCode(offset) {
    const before = this.#edits.filter((edit) => edit.end <= offset);
    const within = this.#edits.find((edit) => edit.start < offset && offset < edit.end);
    return (within?.start ?? offset) - before.reduce((sum, edit) => sum + edit.added, 0);
  }

  // The positions from which columns differ from those of the code, for `findColumn`.
  get marks() {
    if (!this.#edits.length) return [];
    const [inText, inCode] = [lineStarts(this.text), lineStarts(this.code)];
    const mark = (offset, isWithin) => {
      const line = inText.findLastIndex((start) => start <= offset);
      const original = Math.max(0, this.offsetInCode(offset) - inCode[Math.min(line, inCode.length - 1)]);
      return { line, column: offset - inText[line], original, isWithin };
    };
    return this.#edits.flatMap(({ start, end }) => [mark(start, true), mark(end, false)]);
  }
}

export function findColumn(marks, line, column) {
  const mark = marks.findLast((mark) => mark.line === line && mark.column <= column);
  if (!mark) return column;
  return mark.isWithin ? mark.original : mark.original + column - mark.column;
}

// `isFree(name)` returns whether a name may become a property of the global object.
export function adaptCode(code, findSyntaxError, isFree) {
  const source = new Source(code);
  for (const adapt of [adaptObject, adaptImports, adaptConstants]) adapt(source, findSyntaxError, isFree);
  return source;
}

// As in the REPL of Node, code that can be an object is not a block.
function adaptObject(source, findSyntaxError) {
  if (!/^\s*\{/.test(source.code) || /;\s*$/.test(source.code)) return;
  if (findSyntaxError(`(${source.code}\n)`) >= 0) return;
  source.replace(source.text.length, 0, '\n)');
  source.replace(0, 0, '(');
}

const IMPORT_WORD = /(?<![\w$.#])import(?![\w$])/g;
const IMPORT_STATEMENT = new RegExp(
  `import${GAP}(?:(?:(?<main>${NAME})${GAP},?${GAP})?` +
    `(?:\\*${GAP}as${GAP}(?<space>${NAME})|\\{(?<names>[^}]*)\\})?${GAP}from${GAP})?` +
    `(?<from>'[^'\\n]*'|"[^"\\n]*")(?:${GAP}(?:with|assert)${GAP}(?<attributes>\\{[^}]*\\}))?[ \\t]*;?`, 'uy');

// Scripts compiled by the inspector cannot import, so each `import` of a cell becomes `__import`. V8 distinguishes code
// from text: with ` 0` after every `import`, its first syntax error is at an `import` that is code, or at the 0 after a
// property of that name.
function adaptImports(source, findSyntaxError) {
  for (let from = 0; ; ) {
    const spots = [...source.text.matchAll(IMPORT_WORD)].map((match) => match.index).filter((spot) => spot >= from);
    if (!spots.length) return;
    const error = findSyntaxError(source.text.replace(IMPORT_WORD, (word, at) => (at < from ? word : `${word} 0`)));
    const hit = spots.findIndex((spot, i) => error === spot + 2 * i || error === spot + 2 * i + 7);
    if (hit < 0) return;
    const spot = spots[hit];
    from = spot + 'import'.length;
    if (error !== spot + 2 * hit) continue;
    const [original, replacement] = rewriteImport(source.text, spot);
    source.replace(spot, original.length, replacement);
    from = spot + replacement.length;
  }
}

function rewriteImport(text, spot) {
  IMPORT_STATEMENT.lastIndex = spot;
  const match = IMPORT_STATEMENT.exec(text);
  if (!match) return ['import', '__import']; // import(…) or import.meta
  const { main, space, names = '', from, attributes } = match.groups;
  const listed = names.replace(/\/\*[^]*?\*\/|\/\/.*/g, '').split(',').map((item) => item.trim()).filter(Boolean);
  const pairs = [...(main ? [['default', main]] : []), ...listed.map((item) => item.split(/\s+as\s+/))];
  const pattern = `{ ${pairs.map((pair) => pair.join(': ')).join(', ')} }`;
  const required = pairs.map(([name]) => (/^['"]/.test(name) ? name : `'${name}'`));
  const call = `await __import.names([${required}], ${from}, ${attributes && `{ with: ${attributes} }`})`;
  const binding = space ? `let ${space} = ${call}, ${pattern} = ${space}` : `let ${pattern} = ${call}`;
  return [match[0], `${binding};${match[0].replace(/[^\n]/g, '')}`]; // the following code keeps its line numbers
}

const MAX_PROBES = 64; // per cell; each takes a parse
const MAX_LINE = 300; // characters of a line that are examined
const MAX_ADAPTED_LENGTH = 1 << 20; // longer code is mostly data

const CONST_WORD = new RegExp(`(?<![\\w$.#])const(?=\\s+[\\p{ID_Start}$_]|\\s*[[{])`, 'gu');
const DECLARED = new RegExp(`^\\s*(?:${NAME}|[[{](?:(?!\\bof\\b)[^=;])*)`, 'u');
const DECLARED_NAME = new RegExp(`${NAME}(?![\\p{ID_Continue}$]|\\s*:)`, 'gu');
const EMPTY_CONST = new RegExp(`const\\s+${NAME}(?![\\p{ID_Continue}$])${GAP}(?=[^=\\s/]|$)`, 'uy');
const OPERATOR = String.raw`\s{0,9}(?:(?:[-+*/%&|^]|\*\*|<<|>>>?|&&|\|\||\?\?)?=(?![=>])|\+\+|--)`;
const ASSIGNED = new RegExp(
  `(?<![\\p{ID_Continue}$.]|(?:const|let|var)\\s{1,9})${NAME}(?=${OPERATOR})|(?<=(?:\\+\\+|--)\\s{0,9})${NAME}`, 'gu');

// V8 lets a later cell repeat `let a` or `const a`, but not change one into the other. So `const` at top level becomes
// `let`, unless its own cell seems to assign to it or gives it no value, which must stay an error.
function adaptConstants(source, findSyntaxError, isFree) {
  const { text } = source;
  if (text.length > MAX_ADAPTED_LENGTH || !text.includes('const')) return;
  const assigned = new Set(text.match(ASSIGNED));
  const isAssigned = (spot) => namesAfter(text, spot).some((name) => assigned.has(name));
  const isEmpty = (spot) => {
    EMPTY_CONST.lastIndex = spot;
    return EMPTY_CONST.test(text);
  };
  const spots = findConstants(text, findSyntaxError).filter((spot) => !isAssigned(spot) && !isEmpty(spot));
  const ends = [...spots.slice(1), text.length];
  const parts = spots.map((spot, i) => `let  ${text.slice(spot + 'const'.length, ends[i])}`);
  if (spots.length) source.text = text.slice(0, spots[0]) + parts.join(''); // its length stays the same
  const adapted = new Set(spots.flatMap((spot) => namesAfter(text, spot)));
  const choose = (name) => (!isFree(name) ? 'let' : assigned.has(name) ? 'var' : undefined);
  adaptOtherConstants(source, adapted, findSyntaxError, choose);
}

// Adapts the remaining constants unless all are nested. A constant that its cell may assign to becomes a property of the
// global object, which later cells can declare in any way, and which can be guarded until then. `choose` returns the
// keyword that a name needs, if any: the names of a pattern share one.
function adaptOtherConstants(source, adapted, findSyntaxError, choose) {
  const find = (names) => findDeclaration(source.text, names, findSyntaxError);
  const spots = Array.from(source.text.matchAll(CONST_WORD), (match) => match.index);
  const names = [...new Set(spots.flatMap((spot) => namesAfter(source.text, spot)))].filter((name) => !adapted.has(name));
  if (!names.length || find(names.join()) < 0 || findSyntaxError(source.text) >= 0) return;
  const declared = names.slice(0, MAX_PROBES).filter((name) => find(name) >= 0);
  const ranked = ['let', 'var', undefined].flatMap((keyword) => declared.filter((name) => choose(name) === keyword));
  for (const name of ranked) {
    const keyword = findKeyword(source.text, find(name), name, findSyntaxError);
    if (!keyword || !wasConst(source, keyword)) continue;
    const word = keyword[0] === 'const' ? (choose(name) ?? 'let') : keyword[0];
    if (word === 'var') source.constants.push(name);
    source.text = splice(source.text, keyword.index, keyword[0].length, word.padEnd(keyword[0].length));
  }
}

const wasConst = (source, { index }) => source.code.startsWith('const', source.offsetInCode(index));

// The names that a `const` at this offset may declare, without the keys of patterns.
function namesAfter(text, spot) {
  const [declared] = DECLARED.exec(text.slice(spot + 'const'.length, spot + MAX_LINE)) ?? [''];
  return declared.match(DECLARED_NAME) ?? [];
}

// Finds each `const` that starts a statement on a line that is indented like the first one. At the start of a line that
// cannot be inside a string or comment it is code; elsewhere V8 decides.
function findConstants(text, findSyntaxError) {
  const indent = /^[ \t]{0,99}(?=\S)/m.exec(text)?.[0] ?? '';
  const open = text.search(/`|\/\*|\\[\r\n]/);
  let probes = 0;
  const isCode = (spot) => findSyntaxError(splice(text, spot, 'const'.length, 'const 0')) === spot + 'const '.length;
  return Array.from(text.matchAll(CONST_WORD), (match) => match.index).filter((spot) => {
    const before = spot < MAX_LINE ? `\n${text.slice(0, spot)}` : text.slice(spot - MAX_LINE, spot);
    const line = /\n.*$/.exec(before)?.[0] ?? '';
    if (line === `\n${indent}` && (open < 0 || spot < open)) return true;
    const mayBe = line === `\n${indent}` || (line.startsWith(`\n${indent}`) && /[;}][ \t]*$/.test(line));
    return mayBe && ++probes <= MAX_PROBES && isCode(spot);
  });
}

const splice = (text, start, length, replacement) => text.slice(0, start) + replacement + text.slice(start + length);

// V8 has refused `name` because an earlier cell has declared it in another way: as a lexical name or as a property of the
// global object. Changes the declaration to that kind; returns whether that was possible.
export function adaptDeclaration(source, name, scope, findSyntaxError) {
  const isLexical = scope === 'lexical';
  const at = findDeclaration(source.text, name, findSyntaxError);
  if (at < 0) return false;
  if (/^(?:class|function|async)\b/.test(source.text.slice(at))) {
    return adaptDefinition(source, at, name, isLexical ? 'let' : 'var', findSyntaxError);
  }
  const keyword = findKeyword(source.text, at, name, findSyntaxError);
  if (!keyword) return false;
  const { 0: word, index } = keyword;
  if (isLexical && word.startsWith('let') && !wasConst(source, keyword)) return false; // the earlier one is a `const`
  const replacement = (!isLexical ? 'var' : word.startsWith('let') ? 'const' : 'let').padEnd(word.length);
  if (findSyntaxError(splice(source.text, index, word.length, replacement)) >= 0) return false; // declared twice
  source.replace(index, word.length, replacement);
  if (!isLexical) source.replace(0, 0, `${name} = undefined; `); // as after `let a`
  return true;
}

// The offset of the top-level declaration of `name`: at the name, or at the start of its class or function. Below 0 if
// there is none.
export function findDeclaration(text, name, findSyntaxError) {
  const prefix = `let ${name};`;
  return findSyntaxError(prefix + text) - prefix.length;
}

// The nearest keyword that makes V8 refuse the name after `var` if it is `let`, and only then. None for a nested name.
function findKeyword(text, at, name, findSyntaxError) {
  const words = [...text.slice(0, at).matchAll(/(?<![\w$.#])(?:const|let(?: {2})?|var)(?![\w$])/g)].reverse();
  const isRefused = ({ 0: { length }, index }, keyword) => {
    const prefix = `var ${name};`;
    return findSyntaxError(prefix + splice(text, index, length, keyword.padEnd(length))) === prefix.length + at;
  };
  return words.slice(0, MAX_PROBES).find((word) => isRefused(word, 'let') && !isRefused(word, 'var'));
}

// Turns `class A {}` and `function a() {}` into the value of a variable, unless code before a function mentions it, where
// it would have been hoisted. A definition ends with the first brace that makes it complete.
function adaptDefinition(source, at, name, keyword, findSyntaxError) {
  const { text } = source;
  const isFunction = !text.startsWith('class', at);
  if (isFunction && text.slice(0, at).match(new RegExp(NAME, 'gu'))?.includes(name)) return false;
  const ends = Array.from(text.slice(at).matchAll(/\}/g), (match) => at + match.index + 1).slice(0, MAX_PROBES);
  const end = ends.find((end) => findSyntaxError(`(${text.slice(at, end)}\n)`) < 0);
  const head = `${keyword} ${name} = `;
  if (!end || findSyntaxError(splice(splice(text, end, 0, ';'), at, 0, head)) >= 0) return false;
  source.replace(end, 0, ';');
  source.replace(at, 0, head);
  return true;
}

// Globals on which other code relies: constructors, namespaces and timers.
export const SHARED_NAMES = Object.getOwnPropertyNames(globalThis).filter(
  (name) => /^(?!NaN$|Infinity$)(?:[A-Z]|set[A-Z]|clear[A-Z]|queueMicrotask$|structuredClone$)/.test(name),
);
const SHARED_DECLARATION = new RegExp(
  `(?<![\\w$.#])(?:const|let|var|class|function|import)(?![\\w$])[^;=]{0,80}?(?<![\\w$.])(?:${SHARED_NAMES.join('|')})(?![\\w$])`);

// A fast check with many false positives.
export const mayDeclareShared = (code) => code.length <= MAX_ADAPTED_LENGTH && SHARED_DECLARATION.test(code);
