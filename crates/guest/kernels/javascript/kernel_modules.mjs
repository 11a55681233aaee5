// Imports of modules by cells: from the working directory, and again after a module that failed has been corrected.

import { readFileSync } from 'node:fs';
import Module from 'node:module';
import { URL, pathToFileURL } from 'node:url';

import { attempt, pointAt } from './kernel_output.mjs';

// Saved before any cell runs: a top-level declaration of a cell hides a global for this code too.
const { Map, Object, Promise, Reflect, SyntaxError } = globalThis;

const { register } = Module;
const { then } = Promise.prototype; // the guest may replace it
const MODULE_EVALUATED = 4; // status of V8, also of a module that still awaits

export class Modules {
  #inspect; // posts to the inspector
  #inspected; // { value } passes a value to the inspector or back; the global `__inspected`
  #loadCache; // of Node, once it is needed

  constructor(inspect, inspected) {
    this.#inspect = inspect;
    this.#inspected = inspected;
  }

  // The import() of a module resolves from the directory of its file name.
  makeImport(directory, filename) {
    const module = new Module(filename);
    module._compile('module.exports = (from, options) => import(from, options)', filename);
    const load = async (from, options) => {
      try {
        return await module.exports(from, options);
      } catch (error) {
        await this.#dropFailed(error);
        throw error;
      }
    };
    const names = async (required, from, options) => {
      const space = await load(from, options);
      const missing = required.find((name) => !(name in space));
      if (missing === undefined) return space;
      throw new SyntaxError(`The requested module '${from}' does not provide an export named '${missing}'`);
    };
    return Object.assign(load, { names, meta: { url: pathToFileURL(filename).href, dirname: directory, filename } });
  }

  // Node caches the failure of a module: a corrected file, and modules that import it, would fail again. So modules that
  // have not run to their end are removed from the cache of Node, which is reached through the function `register`.
  async #dropFailed(error) {
    try {
      this.#loadCache ??= this.#readVariable(register, 'cascadedLoader').loadCache;
      const failed = removeFailedModules(this.#loadCache);
      if (error instanceof SyntaxError) await this.#addLocation(error, failed);
    } catch {} // the error is reported all the same
    attempt(() => this.#inspect('Runtime.releaseObjectGroup', { objectGroup: 'inspected' }));
    attempt(() => (this.#inspected.value = undefined));
  }

  // Adds file and line to a syntax error: V8 knows the line, and Node the file.
  async #addLocation(error, failed) {
    let file;
    const compare = (reason, url) => {
      if (reason === error) file ??= url;
    };
    for (const { url, modulePromise } of failed) {
      Reflect.apply(then, modulePromise, [undefined, (reason) => compare(reason, url)]);
    }
    await undefined; // promises that are rejected already call back before
    if (!file || error.stack.includes(file)) return;
    const { objectId } = this.#reference(error);
    const { exceptionDetails } = this.#inspect('Runtime.getExceptionDetails', { errorObjectId: objectId });
    const { lineNumber, columnNumber } = exceptionDetails;
    const [location, ...line] = pointAt(file, readFileSync(new URL(file), 'utf8'), lineNumber, columnNumber);
    error.stack = [...line, error.stack, `    at ${location}`].join('\n');
  }

  // Reads a variable in the scope of a function.
  #readVariable(closure, name) {
    const list = ({ objectId }) => this.#inspect('Runtime.getProperties', { objectId, ownProperties: true });
    const { internalProperties } = list(this.#reference(closure));
    const scopes = internalProperties.find((property) => property.name === '[[Scopes]]').value;
    const variables = list(scopes).result.flatMap((scope) => list(scope.value).result);
    const { objectId } = variables.find((variable) => variable.name === name).value;
    const functionDeclaration = 'function () { __inspected.value = this }';
    this.#inspect('Runtime.callFunctionOn', { objectId, functionDeclaration });
    return this.#inspected.value;
  }

  // The inspector's reference to a value.
  #reference(value) {
    this.#inspected.value = value;
    return this.#inspect('Runtime.evaluate', { expression: '__inspected.value', objectGroup: 'inspected' }).result;
  }
}

// Removes modules of files that have not run to their end from the cache of Node, which maps a URL to an object of jobs.
function removeFailedModules(cache) {
  const failed = [];
  Reflect.apply(Map.prototype.forEach, cache, [(jobs, url) => {
    const isFailed = (job) => typeof job === 'object' && job.module?.getStatus() !== MODULE_EVALUATED;
    if (url.startsWith('file:')) failed.push(...Object.values(jobs).filter(isFailed));
  }]);
  for (const { url } of failed) Reflect.apply(Map.prototype.delete, cache, [url]);
  return failed;
}
