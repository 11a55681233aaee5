// The modules of cells: imported from where a cell is, and again once they are put right.

import { readFileSync } from 'node:fs';
import Module from 'node:module';
import { URL, pathToFileURL } from 'node:url';

import { attempt, pointAt } from './kernel_output.mjs';

// As they are before any cell: what a cell declares at top level takes the place of a global for this code too.
const { Map, Object, Promise, Reflect, SyntaxError } = globalThis;

const { register } = Module;
const { then } = Promise.prototype; // the guest may replace it
const MODULE_EVALUATED = 4; // to V8, also if it has yet to come back from an `await`

export class Modules {
  #ask; // the inspector
  #exhibit; // { value }: what it is shown, or shows; the global `__exhibit`
  #table; // Node's own, once it is needed

  constructor(ask, exhibit) {
    this.#ask = ask;
    this.#exhibit = exhibit;
  }

  // A module's own import() resolves from where its file is said to be.
  makeImport(directory, filename) {
    const module = new Module(filename);
    module._compile('module.exports = (from, options) => import(from, options)', filename);
    const load = async (from, options) => {
      try {
        return await module.exports(from, options);
      } catch (error) {
        await this.#forgetFailure(error);
        throw error;
      }
    };
    const names = async (wanted, from, options) => {
      const space = await load(from, options);
      const missing = wanted.find((it) => !(it in space));
      if (missing === undefined) return space;
      throw new SyntaxError(`The requested module '${from}' does not provide an export named '${missing}'`);
    };
    return Object.assign(load, { names, meta: { url: pathToFileURL(filename).href, dirname: directory, filename } });
  }

  // Node keeps what a module has failed with: a file that was put right would fail for ever, and what imports it. So
  // what did not get as far as its end is taken out of Node's own table, which is a variable of the function `register`.
  async #forgetFailure(error) {
    try {
      this.#table ??= this.#reachVariable(register, 'cascadedLoader').loadCache;
      const failed = takeFailedModules(this.#table);
      if (error instanceof SyntaxError) await this.#addPlace(error, failed);
    } catch {} // the error is told all the same
    attempt(() => this.#ask('Runtime.releaseObjectGroup', { objectGroup: 'exhibit' }));
    attempt(() => (this.#exhibit.value = undefined));
  }

  // V8 knows the line of a module that it cannot read, and Node its file.
  async #addPlace(error, failed) {
    let file;
    const compare = (it, url) => {
      if (it === error) file ??= url;
    };
    for (const { url, modulePromise } of failed) Reflect.apply(then, modulePromise, [undefined, (it) => compare(it, url)]);
    await undefined; // those that have failed say so before
    if (!file || error.stack.includes(file)) return;
    const { objectId } = this.#refer(error);
    const { exceptionDetails } = this.#ask('Runtime.getExceptionDetails', { errorObjectId: objectId });
    const { lineNumber, columnNumber } = exceptionDetails;
    const [place, ...line] = pointAt(file, readFileSync(new URL(file), 'utf8'), lineNumber, columnNumber);
    error.stack = [...line, error.stack, `    at ${place}`].join('\n');
  }

  #reachVariable(closure, name) {
    const list = ({ objectId }) => this.#ask('Runtime.getProperties', { objectId, ownProperties: true });
    const scopes = list(this.#refer(closure)).internalProperties.find((it) => it.name === '[[Scopes]]').value;
    const variables = list(scopes).result.flatMap((it) => list(it.value).result);
    const { objectId } = variables.find((it) => it.name === name).value;
    this.#ask('Runtime.callFunctionOn', { objectId, functionDeclaration: 'function () { __exhibit.value = this }' });
    return this.#exhibit.value;
  }

  // A value as the inspector refers to it.
  #refer(value) {
    this.#exhibit.value = value;
    return this.#ask('Runtime.evaluate', { expression: '__exhibit.value', objectGroup: 'exhibit' }).result;
  }
}

// Those of files that have not run to their end, by the table of Node's that has an object of jobs for each address.
function takeFailedModules(table) {
  const failed = [];
  Reflect.apply(Map.prototype.forEach, table, [(jobs, url) => {
    const isFailed = (it) => typeof it === 'object' && it.module?.getStatus() !== MODULE_EVALUATED;
    if (url.startsWith('file:')) failed.push(...Object.values(jobs).filter(isFailed));
  }]);
  for (const { url } of failed) Reflect.apply(Map.prototype.delete, table, [url]);
  return failed;
}
