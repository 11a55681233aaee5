// kernel.sh as the host sees it: a process, a pipe for requests, a pipe for replies, two for output.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, beforeEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const KERNEL = fileURLToPath(new URL('../kernel.sh', import.meta.url));
const test = (name, body) => it(name, { timeout: 20_000 }, body);
const directory = mkdtempSync(join(tmpdir(), 'shell-test-'));
after(() => rmSync(directory, { recursive: true }));

class Shell {
  output = { stdout: '', stderr: '' };
  #lastId = 0;
  #held = '';
  #lines = [];
  #waiting = [];

  constructor() {
    const command = ['--norc', '--noprofile', KERNEL, '3', '4'];
    const env = { ...process.env, LC_ALL: 'C.UTF-8' };
    this.process = spawn('bash', command, { stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe'], cwd: directory, env });
    this.exit = new Promise((resolve) => this.process.on('exit', (code, signal) => resolve(signal ?? code)));
    this.closed = new Promise((resolve) => this.process.on('close', () => resolve(true)));
    this.requests = this.process.stdio[3].on('error', () => {});
    this.process.stdio[4].on('data', (chunk) => this.#receive(chunk)).on('error', () => {});
    this.process.stdout.on('data', (chunk) => (this.output.stdout += chunk));
    this.process.stderr.on('data', (chunk) => (this.output.stderr += chunk));
  }

  #receive(chunk) {
    const lines = (this.#held + chunk).split('\n');
    this.#held = lines.pop();
    for (const line of lines) {
      if (this.#waiting.length) this.#waiting.shift()(line);
      else this.#lines.push(line);
    }
  }

  next() {
    if (this.#lines.length) return this.#lines.shift();
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  request(code) {
    return `${++this.#lastId} ${Buffer.byteLength(code)}\n${code}`;
  }

  async status(code, meanwhile = () => {}) {
    this.requests.write(this.request(code));
    const id = this.#lastId;
    await meanwhile();
    const [replied, status] = (await this.next()).split(' ');
    assert.equal(Number(replied), id);
    return Number(status);
  }

  // What the code prints up to a mark: output and replies come on different pipes.
  async print(code) {
    this.output.stdout = '';
    await this.status(`${code}\n`);
    await this.status('echo "<end>"');
    await this.printed('stdout', /<end>\n/);
    return this.output.stdout.replace('<end>\n', '');
  }

  async printed(stream, pattern) {
    for (let isOver = false; !pattern.test(this.output[stream]); ) {
      assert.ok(!isOver, `${pattern} was not printed: ${this.output[stream].slice(0, 1000)}`);
      isOver = await Promise.race([this.closed, new Promise((resolve) => setTimeout(resolve, 5))]);
    }
  }

  // The shell, and whatever the code of a test has started in its process group, is the supervisor's child.
  end() {
    const { pid } = this.process;
    for (const stream of this.process.stdio) stream?.destroy();
    try {
      const groups = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean);
      for (const group of groups) process.kill(-group, 'SIGKILL');
    } catch (error) {
      if (!['ENOENT', 'ESRCH'].includes(error.code)) throw error; // it has ended by itself
    }
    this.process.kill('SIGKILL');
  }

  // As the host does it: an interrupt can come at a moment when it is lost, so it is repeated.
  async interrupt(code) {
    this.output.stdout = '';
    let signals;
    const status = await this.status(`echo running\n${code}`, async () => {
      await this.printed('stdout', /running\n/);
      this.process.kill('SIGINT');
      signals = setInterval(() => this.process.kill('SIGINT'), 500).unref();
    });
    clearInterval(signals);
    return status;
  }
}

let shell;
beforeEach(async () => {
  shell = new Shell();
  assert.match(await shell.next(), /^ready \d+\.\d+\.\d+/);
});
afterEach(() => shell.end());

describe('requests', () => {
  test('report the status of the code, in order', async () => {
    shell.requests.write(shell.request('true') + shell.request('(exit 7)') + shell.request(''));
    for (const line of ['1 0', '2 7', '3 0']) assert.equal(await shell.next(), line);
  });

  test('count bytes, also in a locale with wide characters', async () => {
    assert.equal(await shell.print('echo ü'), 'ü\n');
    assert.equal(await shell.print("x='größe €'; echo \"$x ${#x}\""), 'größe € 7\n');
    assert.equal(await shell.print(`x='${'é'.repeat(50_000)}'; echo \${#x}`), '50000\n');
  });

  test('keep line breaks, here-documents and backslashes', async () => {
    assert.equal(await shell.print("cat <<'X'\n  a\\n  b\n\nX\nprintf '%s' '\\\\ '"), '  a\\n  b\n\n\\\\ ');
  });

  test('end with the input', async () => {
    shell.requests.end();
    assert.equal(await shell.exit, 0);
  });

  test('read an empty stdin', async () => {
    assert.equal(await shell.print('cat; read -r x; echo "$? [$x]"'), '1 []\n');
  });

  test('print to 1 and 2 and never to the replies', async () => {
    await shell.status('echo out; sh -c "echo err >&2"');
    await shell.printed('stdout', /^out\n$/);
    await shell.printed('stderr', /^err\n$/);
  });

  test('do not give the control descriptors to commands', async () => {
    const list = 'for f in /proc/self/fd/*; do readlink "$f"; done; readlink /proc/self/fd/250 /proc/self/fd/251 || echo none';
    assert.match(await shell.print(`bash -c '${list}'`), /none\n$/);
    const [requests, replies] = [250, 251].map((fd) => readlinkSync(`/proc/${shell.process.pid}/fd/${fd}`));
    for (const after of ['', 'exit 1']) {
      await shell.status(after);
      const held = await shell.print("ls -l /proc/self/fd; sh -c 'ls -l /proc/$$/fd; :'");
      assert.ok(!held.includes(requests) && !held.includes(replies), held);
    }
  });
});

const STATE = [
  "x=1; declare -A map=([k]='v w'); list=(1 $'two\\nlines'); export shown=yes; readonly fixed=5; declare -i number=4",
  'say() { echo "said $1"; }; alias hi="echo hello"; cd /usr; shopt -s nullglob; set -o pipefail; set -- one "two 3"',
  "trap 'echo usr1' USR1; umask 027; exec 7>&1; IFS=:",
].join('\n');
const SHOW = [
  'echo "$x|${map[k]}|${list[1]}|$fixed|$number|$IFS|$*"; sh -c \'echo $shown\'; say it; hi; pwd',
  'shopt -q nullglob && [[ -o pipefail ]] && echo options; kill -USR1 $$; umask; echo seven >&7; (fixed=6) 2>/dev/null || echo readonly',
].join('\n');
const SHOWN = '1|v w|two\nlines|5|4|:|one:two 3\nyes\nsaid it\nhello\n/usr\noptions\nusr1\n0027\nseven\nreadonly\n';

describe('state', () => {
  test('stays from request to request', async () => {
    assert.equal(await shell.status(STATE), 0);
    assert.equal(await shell.print(SHOW), SHOWN);
  });

  test('of declare at top level is global', async () => {
    await shell.status('declare d=1; typeset -a t=(2)');
    assert.equal(await shell.print('echo $d ${t[0]}'), '1 2\n');
  });

  test('does not carry options into the kernel', async () => {
    await shell.status('set -fux; IFS=0123456789; TMOUT=1; LC_ALL=C; shopt -s extglob; read() { :; }; printf() { :; }');
    assert.equal(await shell.status('echo still'), 0);
    await new Promise((resolve) => setTimeout(resolve, 1500));
    assert.equal(await shell.status('(exit 3)'), 3);
  });
});

const ENDINGS = {
  'exit 3': 3,
  'false || exit 4': 4,
  '(exit 5); exit': 5,
  'f() { local x=local y=local; exit 6; }; f': 6,
  'f() { local x=local y=local; g; }; g() { if true; then exit 7; fi; }; f | cat; f': 7,
  'builtin exit 8': 8,
  'source <(echo "exit 9")': 9,
  'set -e; false': 1,
  'set -u; echo $unset_variable': 127,
  'echo ${unset_variable:?gone}': 127,
};

describe('the end of a shell', () => {
  for (const [code, status] of Object.entries(ENDINGS)) {
    test(`by ${code} is that of the request alone`, async () => {
      await shell.status(STATE);
      assert.equal(await shell.status(`x=2; ${code}\necho unreached`), status);
      assert.equal(await shell.print(`set +eu\n${SHOW}; echo "[$y]"`), SHOWN.replace('1|', '2|') + '[]\n');
      assert.ok(!shell.output.stdout.includes('unreached'));
    });
  }

  test('by set -e in a function loses the local variables alone', async () => {
    assert.equal(await shell.status('x=1; set -e; f() { local x=2 y=3; (exit 10); }; f'), 10);
    assert.equal(await shell.print('echo "$x [$y]"'), '1 []\n');
  });

  test('keeps set -e for the next request', async () => {
    assert.equal(await shell.status('set -e; true'), 0);
    assert.equal(await shell.status('false; echo unreached'), 1);
    assert.equal(await shell.print('[[ -o errexit ]] && echo on'), 'on\n');
  });

  test('leaves no descriptors behind', async () => {
    const count = 'echo /proc/$$/fd/*';
    await shell.status('exit 1');
    const before = await shell.print(count);
    for (let i = 0; i < 5; i++) await shell.status('exit 1');
    assert.equal(await shell.print(count), before);
  });

  test('does not end background jobs', async () => {
    await shell.status('sleep 50 & pid=$!; exit 2');
    assert.equal(await shell.print('kill -0 $pid && echo alive; kill $pid'), 'alive\n');
  });

  test('runs the EXIT trap of the guest, once', async () => {
    assert.equal(await shell.print("trap 'echo bye; exit 9' EXIT; exit 3"), 'bye\n');
    assert.equal(await shell.print('exit 4'), '');
    assert.equal(await shell.print("(trap 'echo sub' EXIT)"), 'sub\n');
  });

  test('by exec ends the kernel', async () => {
    shell.requests.write(shell.request('exec sh -c "exit 12"'));
    assert.equal(await shell.exit, 12);
  });
});

describe('interrupt', () => {
  const endless = {
    'a command': 'sleep 100',
    'a loop': 'while :; do :; done',
    'a pipeline': 'yes | cat >/dev/null',
    'a loop of commands': 'while :; do sleep 100; done',
    'a command in a condition': 'if sleep 100; then :; fi',
    'a substitution': 'z=$(sleep 100)',
    'a subshell': '( while :; do :; done )',
    'a loop in functions': 'f() { local x=local; g; }; g() { local y=local; while :; do :; done; }; f',
    'a wait': 'sleep 5 & wait',
    'a loop whose traps were taken': "trap '' INT; trap - INT EXIT; while :; do :; done",
  };
  for (const [name, code] of Object.entries(endless)) {
    test(`stops ${name} and keeps the state`, async () => {
      await shell.status(STATE);
      assert.equal(await shell.interrupt(`x=2; ${code}\necho unreached`), 130);
      assert.equal(await shell.print(`${SHOW}; echo "[$y]"`), SHOWN.replace('1|', '2|') + '[]\n');
    });
  }

  test('runs the INT trap of the guest', async () => {
    assert.equal(await shell.interrupt("trap 'echo stopped' INT; sleep 100"), 130);
    await shell.printed('stdout', /stopped\n/);
  });

  // bash is not made for signals without end (its handlers allocate), so each comes once, at another moment.
  test('is ignored between requests, also while the shell is replaced', async () => {
    await shell.status('x=kept');
    for (let i = 0; i < 12; i++) {
      const signal = new Promise((resolve) => setTimeout(() => resolve(shell.process.kill('SIGINT')), i / 2));
      assert.ok([1, 130].includes(await shell.status('exit 1')));
      await signal;
    }
    assert.equal(await shell.print('echo $x'), 'kept\n');
  });

  test('reaches only the process group of the shell', async () => {
    assert.match(await shell.print('ps -o pgid= -p $$; echo $$'), /^\s*(\d+)\n\1\n$/);
  });
});

describe('messages', () => {
  test('of syntax errors come with status 2 and without the kernel', async () => {
    assert.equal(await shell.status('echo before\nif )'), 2);
    await shell.printed('stderr', /`if \)'\n/);
    assert.equal(shell.output.stderr, "bash: eval: line 2: syntax error near unexpected token `)'\nbash: eval: line 2: `if )'\n");
    await shell.printed('stdout', /before/);
    assert.equal(await shell.status('echo "open'), 2);
    assert.equal(await shell.print('echo alive'), 'alive\n');
  });

  test('of commands have the line of the request', async () => {
    assert.equal(await shell.status(':\n:\nnone-such'), 127);
    await shell.printed('stderr', /\n/);
    assert.equal(shell.output.stderr, 'bash: line 3: none-such: command not found\n');
  });
});
