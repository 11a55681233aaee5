// The thread of the JavaScript kernel that sleeps until SIGINT.
//
// Listeners for signals need main's event loop; `breakOnSigint` has a native thread behind it. Without
// such a watch SIGINT kills: each level guards the one in it while that is set up again.

import { Script } from 'node:vm';
import { workerData } from 'node:worker_threads';

import { attempt, endWithFaults, sleep } from './kernel_output.mjs';

function watchForSigint(port, depth) {
  const script = new Script('body()');
  if (!depth) port.postMessage('armed');
  for (;;) {
    global.body = depth ? () => watchForSigint(port, depth - 1) : () => sleep();
    attempt(() => script.runInThisContext({ breakOnSigint: true }));
    port.postMessage('SIGINT');
  }
}

endWithFaults();
watchForSigint(workerData.port, 4);
