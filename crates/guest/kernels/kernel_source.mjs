// What V8 is given for a cell: the code with its imports, and with declarations that a later cell may
// make again in another way.
//
// None of it parses JavaScript. V8 itself is asked where its first syntax error lies in a text that was
// changed on purpose (`findSyntaxError`: an offset, or -1), and what it does not confirm is left as it was.

// As they are before any cell: what a cell declares at top level takes the place of a global for this code too.
const { Array, Boolean, Math, Object, RegExp, Set, String } = globalThis;

const LINE_END = /\r\n|[\n\r\u2028\u2029]/g; // as V8 counts lines
// With one way to match only, or a banner of comments would be tried in all of them.
const GAP = String.raw`(?:\s|/\*(?:(?!\*/)[^])*\*/|//.*(?=[\n\r\u2028\u2029]|$))*`;
const NAME = String.raw`[\p{ID_Start}$_][\p{ID_Continue}$]*`;

export const startsOfLines = (text) => [0, ...Array.from(text.matchAll(LINE_END), (it) => it.index + it[0].length)];

// The text of a cell and what was replaced in it: lines stay what they are, columns are found again.
class Source {
  constants = []; // names that have become variables, and are to be assigned to once only
  #edits = []; // { start, end, added }, in the text as it is; in order

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

  // Where a place in the text is in the code.
  offsetInCode(offset) {
    const before = this.#edits.filter((it) => it.end <= offset);
    const within = this.#edits.find((it) => it.start < offset && offset < it.end);
    return (within?.start ?? offset) - before.reduce((sum, it) => sum + it.added, 0);
  }

  // Where the columns of lines are no longer those of the code: what `findColumn` needs to know of this text.
  get marks() {
    if (!this.#edits.length) return [];
    const [inText, inCode] = [startsOfLines(this.text), startsOfLines(this.code)];
    const mark = (offset, isWithin) => {
      const line = inText.findLastIndex((it) => it <= offset);
      const original = Math.max(0, this.offsetInCode(offset) - inCode[Math.min(line, inCode.length - 1)]);
      return { line, column: offset - inText[line], original, isWithin };
    };
    return this.#edits.flatMap(({ start, end }) => [mark(start, true), mark(end, false)]);
  }
}

export function findColumn(marks, line, column) {
  const mark = marks.findLast((it) => it.line === line && it.column <= column);
  if (!mark) return column;
  return mark.isWithin ? mark.original : mark.original + column - mark.column;
}

// `isFree` says of a name whether it may become a property of the global object.
export function adaptCode(code, findSyntaxError, isFree) {
  const source = new Source(code);
  for (const adapt of [adaptObject, adaptImports, adaptConstants]) adapt(source, findSyntaxError, isFree);
  return source;
}

// As in Node's own REPL, what can be an object is no block.
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

// Scripts compiled by the inspector may not import, so each `import` of a cell becomes `__import`.
// V8 itself tells code from text: with ` 0` after every `import`, its first syntax error lies at an
// `import` that is code, or at the 0 after a property of that name.
function adaptImports(source, findSyntaxError) {
  for (let from = 0; ; ) {
    const spots = [...source.text.matchAll(IMPORT_WORD)].map((it) => it.index).filter((it) => it >= from);
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
  const listed = names.replace(/\/\*[^]*?\*\/|\/\/.*/g, '').split(',').map((it) => it.trim()).filter(Boolean);
  const pairs = [...(main ? [['default', main]] : []), ...listed.map((it) => it.split(/\s+as\s+/))];
  const pattern = `{ ${pairs.map((it) => it.join(': ')).join(', ')} }`;
  const wanted = pairs.map(([name]) => (/^['"]/.test(name) ? name : `'${name}'`));
  const call = `await __import.names([${wanted}], ${from}, ${attributes && `{ with: ${attributes} }`})`;
  const binding = space ? `let ${space} = ${call}, ${pattern} = ${space}` : `let ${pattern} = ${call}`;
  return [match[0], `${binding};${match[0].replace(/[^\n]/g, '')}`]; // what follows keeps its line numbers
}

const MAX_PROBES = 64; // for one cell; they take a parse each
const MAX_LINE = 300; // what is further from the start of its line is not looked at
const MAX_ADAPTED_LENGTH = 1 << 20; // code that is longer is mostly data

const CONST_WORD = new RegExp(`(?<![\\w$.#])const(?=\\s+[\\p{ID_Start}$_]|\\s*[[{])`, 'gu');
const DECLARED = new RegExp(`^\\s*(?:${NAME}|[[{](?:(?!\\bof\\b)[^=;])*)`, 'u');
const DECLARED_NAME = new RegExp(`${NAME}(?![\\p{ID_Continue}$]|\\s*:)`, 'gu');
const EMPTY_CONST = new RegExp(`const\\s+${NAME}(?![\\p{ID_Continue}$])${GAP}(?=[^=\\s/]|$)`, 'uy');
const OPERATOR = String.raw`\s{0,9}(?:(?:[-+*/%&|^]|\*\*|<<|>>>?|&&|\|\||\?\?)?=(?![=>])|\+\+|--)`;
const ASSIGNED = new RegExp(
  `(?<![\\p{ID_Continue}$.]|(?:const|let|var)\\s{1,9})${NAME}(?=${OPERATOR})|(?<=(?:\\+\\+|--)\\s{0,9})${NAME}`, 'gu');

// V8 lets a later cell declare `let a` again, and `const a`, but neither as the other. So `const` at top level
// becomes `let`, unless its own cell seems to assign to it, or gives it no value, and is to be told.
function adaptConstants(source, findSyntaxError, isFree) {
  const { text } = source;
  if (text.length > MAX_ADAPTED_LENGTH || !text.includes('const')) return;
  const assigned = new Set(text.match(ASSIGNED));
  const isAssigned = (spot) => namesAfter(text, spot).some((it) => assigned.has(it));
  const isEmpty = (spot) => {
    EMPTY_CONST.lastIndex = spot;
    return EMPTY_CONST.test(text);
  };
  const spots = findConstants(text, findSyntaxError).filter((it) => !isAssigned(it) && !isEmpty(it));
  const ends = [...spots.slice(1), text.length];
  const parts = spots.map((spot, i) => `let  ${text.slice(spot + 'const'.length, ends[i])}`);
  if (spots.length) source.text = text.slice(0, spots[0]) + parts.join(''); // it is as long as before
  const adapted = new Set(spots.flatMap((it) => namesAfter(text, it)));
  const choose = (name) => (!isFree(name) ? 'let' : assigned.has(name) ? 'var' : undefined);
  adaptOtherConstants(source, adapted, findSyntaxError, choose);
}

// Those that are left, if not all are nested. What its cell may assign to becomes a property of the global object, which
// any later cell can declare in its own way, and which can be guarded meanwhile. `choose` gives the keyword that a name
// needs, if it needs one: the names of a pattern share theirs.
function adaptOtherConstants(source, adapted, findSyntaxError, choose) {
  const find = (names) => findDeclaration(source.text, names, findSyntaxError);
  const spots = Array.from(source.text.matchAll(CONST_WORD), (it) => it.index);
  const names = [...new Set(spots.flatMap((it) => namesAfter(source.text, it)))].filter((it) => !adapted.has(it));
  if (!names.length || find(names.join()) < 0 || findSyntaxError(source.text) >= 0) return;
  const declared = names.slice(0, MAX_PROBES).filter((it) => find(it) >= 0);
  const ranked = ['let', 'var', undefined].flatMap((wanted) => declared.filter((it) => choose(it) === wanted));
  for (const name of ranked) {
    const keyword = findKeyword(source.text, find(name), name, findSyntaxError);
    if (!keyword || !wasConst(source, keyword)) continue;
    const word = keyword[0] === 'const' ? (choose(name) ?? 'let') : keyword[0];
    if (word === 'var') source.constants.push(name);
    source.text = splice(source.text, keyword.index, keyword[0].length, word.padEnd(keyword[0].length));
  }
}

const wasConst = (source, { index }) => source.code.startsWith('const', source.offsetInCode(index));

// What a `const` there may declare; keys of patterns are no names.
function namesAfter(text, spot) {
  const [declared] = DECLARED.exec(text.slice(spot + 'const'.length, spot + MAX_LINE)) ?? [''];
  return declared.match(DECLARED_NAME) ?? [];
}

// Where a statement starts, on a line that is indented as the first one is. At the very start of a line which no text
// or comment can reach from above, it is code; elsewhere V8 is asked.
function findConstants(text, findSyntaxError) {
  const indent = /^[ \t]{0,99}(?=\S)/m.exec(text)?.[0] ?? '';
  const open = text.search(/`|\/\*|\\[\r\n]/);
  let probes = 0;
  const isCode = (spot) => findSyntaxError(splice(text, spot, 'const'.length, 'const 0')) === spot + 'const '.length;
  return Array.from(text.matchAll(CONST_WORD), (it) => it.index).filter((spot) => {
    const before = spot < MAX_LINE ? `\n${text.slice(0, spot)}` : text.slice(spot - MAX_LINE, spot);
    const line = /\n.*$/.exec(before)?.[0] ?? '';
    if (line === `\n${indent}` && (open < 0 || spot < open)) return true;
    const mayBe = line === `\n${indent}` || (line.startsWith(`\n${indent}`) && /[;}][ \t]*$/.test(line));
    return mayBe && ++probes <= MAX_PROBES && isCode(spot);
  });
}

const splice = (text, start, length, replacement) => text.slice(0, start) + replacement + text.slice(start + length);

// V8 has refused `name`, which an earlier cell has declared in another way: as a lexical name or as a property of the
// global object. The declaration becomes one of that kind. Whether that could be done is the answer.
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
  if (isLexical && word.startsWith('let') && !wasConst(source, keyword)) return false; // there it is a `const`
  const wanted = (!isLexical ? 'var' : word.startsWith('let') ? 'const' : 'let').padEnd(word.length);
  if (findSyntaxError(splice(source.text, index, word.length, wanted)) >= 0) return false; // a second one is there
  source.replace(index, word.length, wanted);
  if (!isLexical) source.replace(0, 0, `${name} = undefined; `); // as `let a` would make it
  return true;
}

// Where `name` is declared at top level: at the name, or where its class or function starts; below 0 if it is not.
export function findDeclaration(text, name, findSyntaxError) {
  const prefix = `let ${name};`;
  return findSyntaxError(prefix + text) - prefix.length;
}

// The nearest keyword which, as `let` and only so, makes V8 refuse the name after `var`; none where the name is nested.
function findKeyword(text, at, name, findSyntaxError) {
  const words = [...text.slice(0, at).matchAll(/(?<![\w$.#])(?:const|let(?: {2})?|var)(?![\w$])/g)].reverse();
  const isRefused = ({ 0: { length }, index }, other) => {
    const prefix = `var ${name};`;
    return findSyntaxError(prefix + splice(text, index, length, other.padEnd(length))) === prefix.length + at;
  };
  return words.slice(0, MAX_PROBES).find((it) => isRefused(it, 'let') && !isRefused(it, 'var'));
}

// `class A {}` and `function a() {}` become values of a variable; not if a function is spoken of before, where
// it would have had its value. Their end is the first brace with which they are whole.
function adaptDefinition(source, at, name, keyword, findSyntaxError) {
  const { text } = source;
  const isFunction = !text.startsWith('class', at);
  if (isFunction && text.slice(0, at).match(new RegExp(NAME, 'gu'))?.includes(name)) return false;
  const ends = Array.from(text.slice(at).matchAll(/\}/g), (it) => at + it.index + 1).slice(0, MAX_PROBES);
  const end = ends.find((it) => findSyntaxError(`(${text.slice(at, it)}\n)`) < 0);
  const head = `${keyword} ${name} = `;
  if (!end || findSyntaxError(splice(splice(text, end, 0, ';'), at, 0, head)) >= 0) return false;
  source.replace(end, 0, ';');
  source.replace(at, 0, head);
  return true;
}

// The globals that other code relies on: what makes objects, and timers.
export const SHARED_NAMES = Object.getOwnPropertyNames(globalThis).filter(
  (it) => /^(?!NaN$|Infinity$)(?:[A-Z]|set[A-Z]|clear[A-Z]|queueMicrotask$|structuredClone$)/.test(it),
);
const SHARED_DECLARATION = new RegExp(
  `(?<![\\w$.#])(?:const|let|var|class|function|import)(?![\\w$])[^;=]{0,80}?(?<![\\w$.])(?:${SHARED_NAMES.join('|')})(?![\\w$])`);

// At a glance: it takes many for declarations that are none.
export const mayDeclareShared = (code) => code.length <= MAX_ADAPTED_LENGTH && SHARED_DECLARATION.test(code);
