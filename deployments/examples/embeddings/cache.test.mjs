import assert from 'node:assert/strict';
import { mkdtemp, readFile, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ensureDirectory } from './cache.mjs';

async function setup(t) {
  const root = await mkdtemp(join(tmpdir(), 'windlass-cache-test-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const builds = { count: 0 };
  const build = async (aside) => {
    builds.count++;
    await writeFile(join(aside, 'part'), 'first');
    await new Promise((resolve) => setImmediate(resolve));
    await writeFile(join(aside, 'done'), 'yes');
  };
  return { root, dir: join(root, 'key'), build, builds };
}

test('many that start at once build once', async (t) => {
  const { root, dir, build, builds } = await setup(t);
  await Promise.all(Array.from({ length: 8 }, () => ensureDirectory(dir, build)));
  assert.equal(builds.count, 1);
  assert.equal(await readFile(join(dir, 'done'), 'utf8'), 'yes');
  assert.deepEqual(await readdir(root), ['key'], 'no lock and no half-built directory is left');
});

test('a failed build leaves nothing, and the next one succeeds', async (t) => {
  const { root, dir, build } = await setup(t);
  await assert.rejects(ensureDirectory(dir, async (aside) => {
    await writeFile(join(aside, 'part'), 'x');
    throw new Error('disk full');
  }), /disk full/);
  assert.deepEqual(await readdir(root), []);
  await ensureDirectory(dir, build);
});

test('the lock of a process that died is taken over', async (t) => {
  const { dir, build, builds } = await setup(t);
  await writeFile(`${dir}.lock`, '');
  const longAgo = new Date(Date.now() - 60_000);
  await utimes(`${dir}.lock`, longAgo, longAgo);
  await ensureDirectory(dir, build);
  assert.equal(builds.count, 1);
});

test('waiting for a lock ends when told to', async (t) => {
  const { dir, build, builds } = await setup(t);
  await writeFile(`${dir}.lock`, '');
  const stop = new AbortController();
  const waiting = ensureDirectory(dir, build, { signal: stop.signal, log: () => stop.abort(new Error('stopped')) });
  await assert.rejects(waiting, (err) => err.name === 'AbortError' || err.message === 'stopped');
  assert.equal(builds.count, 0);
});

test('of two builders the second finds the place taken and keeps the first', async (t) => {
  const { dir, build } = await setup(t);
  await ensureDirectory(dir, async (aside) => {
    await writeFile(join(aside, 'done'), 'late');
    await rm(`${dir}.lock`);
    await ensureDirectory(dir, build);
  });
  assert.equal(await readFile(join(dir, 'done'), 'utf8'), 'yes');
});
