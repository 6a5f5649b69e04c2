// A cache directory that many processes may want to build at the same moment.
//
// Correctness rests on one thing: a directory is built aside and renamed into
// place when it is complete, so every process finds it whole, and of two
// builders the second merely finds the place taken. The lock only saves the
// others the work. Its owner touches it; one that is not touched any more
// belonged to a process that died and is taken over.

import { mkdir, mkdtemp, open, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const staleAfter = 15_000;
const touchEvery = 2_000;
const pollEvery = 250;

const exists = (path) => stat(path).then(() => true, () => false);

// ensureDirectory returns once dir exists. If it has to be made, build(aside)
// fills an empty directory beside it. It gives up when signal aborts.
export async function ensureDirectory(dir, build, { signal, log = () => {} } = {}) {
  const parent = dirname(dir);
  const lock = `${dir}.lock`;
  await mkdir(parent, { recursive: true });
  for (let waiting = false; ; ) {
    signal?.throwIfAborted();
    if (await exists(dir)) return;
    const release = await tryLock(lock);
    if (!release) {
      if (!waiting) log('waiting for another instance that installs', { dir });
      waiting = true;
      // Jitter, lest all waiters poll in step.
      await sleep(pollEvery * (0.5 + Math.random()), undefined, { signal });
      continue;
    }
    try {
      if (await exists(dir)) return;
      await sweep(dir);
      const aside = await mkdtemp(`${dir}.building-`);
      try {
        await build(aside);
        signal?.throwIfAborted();
        await rename(aside, dir).catch(async (err) => {
          if (!(await exists(dir))) throw err;
        });
      } finally {
        await rm(aside, { recursive: true, force: true });
      }
      return;
    } finally {
      await release();
    }
  }
}

// tryLock returns a function that releases the lock, or nothing if somebody
// alive holds it.
async function tryLock(lock) {
  let file;
  try {
    file = await open(lock, 'wx');
  } catch (err) {
    if (err.code !== 'EEXIST') throw err;
    const info = await stat(lock).catch(() => undefined);
    if (info && Date.now() - info.mtimeMs > staleAfter) await rm(lock, { force: true });
    return undefined;
  }
  await file.close();
  const touch = setInterval(() => utimes(lock, new Date(), new Date()).catch(() => {}), touchEvery);
  touch.unref();
  return async () => {
    clearInterval(touch);
    await rm(lock, { force: true });
  };
}

// sweep removes what builders that died left behind. An hour is far more than
// any build takes, so no running builder loses its directory.
async function sweep(dir) {
  const prefix = `${basename(dir)}.building-`;
  for (const name of await readdir(dirname(dir))) {
    if (!name.startsWith(prefix)) continue;
    const path = join(dirname(dir), name);
    const info = await stat(path).catch(() => undefined);
    if (info && Date.now() - info.mtimeMs > 3_600_000) await rm(path, { recursive: true, force: true });
  }
}
