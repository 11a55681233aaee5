// The thread of the JavaScript kernel that waits for SIGINT.
//
// Signal listeners need the event loop of main; `breakOnSigint` uses a native thread. While no such watch is active
// SIGINT ends the process, so watches are nested: an outer one is active while an inner one is set up again.

import { Script } from 'node:vm';
import { workerData } from 'node:worker_threads';

import { attempt, exitOnError, sleep } from './kernel_output.mjs';

function watchForSigint(port, depth) {
  const script = new Script('body()');
  if (!depth) port.postMessage('armed');
  for (;;) {
    global.body = depth ? () => watchForSigint(port, depth - 1) : () => sleep();
    attempt(() => script.runInThisContext({ breakOnSigint: true }));
    port.postMessage('SIGINT');
  }
}

exitOnError();
watchForSigint(workerData.port, 4);
