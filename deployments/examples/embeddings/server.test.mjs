// Runs the real server with the real model: the first run installs it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { request } from 'node:http';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const script = fileURLToPath(new URL('server.mjs', import.meta.url));
const model = 'wink-sg-100d';

async function start() {
  const child = spawn(process.execPath, [script], { env: { ...process.env, HOST: '127.0.0.1', PORT: '0' }, stdio: ['ignore', 'ignore', 'pipe'] });
  const exited = once(child, 'exit');
  const lines = createInterface({ input: child.stderr });
  const seen = [];
  const port = await new Promise((resolve, reject) => {
    lines.on('line', (line) => {
      seen.push(line);
      const { msg, port } = JSON.parse(line);
      if (msg === 'listening') resolve(port);
    });
    exited.then(() => reject(new Error(`the server ended: ${seen.join('\n')}`)));
  });
  const url = `http://127.0.0.1:${port}`;
  return {
    port, url, child,
    async ready() {
      const deadline = Date.now() + 5 * 60_000;
      while ((await fetch(`${url}/health`)).status !== 200) {
        assert.ok(Date.now() < deadline && child.exitCode === null, seen.join('\n'));
        await sleep(50);
      }
    },
    async embed(input, extra = {}) {
      const res = await fetch(`${url}/v1/embeddings`, { method: 'POST', body: JSON.stringify({ model, input, ...extra }) });
      return { status: res.status, headers: res.headers, body: await res.json() };
    },
    async stop() {
      child.kill('SIGTERM');
      const [code] = await exited;
      return code;
    },
  };
}

const cosine = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0) / (Math.hypot(...a) * Math.hypot(...b));

describe('a server that is ready', { timeout: 6 * 60_000 }, () => {
  let server;
  before(async () => {
    server = await start();
    await server.ready();
  });
  after(() => server?.child.kill('SIGKILL'));

  test('related texts are closer than unrelated ones', async () => {
    for (const [text, related, unrelated] of [
      ['The cat rested on the carpet.', 'The kitten slept on the rug.', 'The stock market fell sharply on Monday.'],
      ['How do I reset my password?', 'I forgot my login credentials', 'The best pizza in Naples'],
      ['GPU inference cluster', 'graphics processor computing', 'apple pie recipe'],
    ]) {
      const { status, body } = await server.embed([text, related, unrelated]);
      assert.equal(status, 200);
      const [a, b, c] = body.data.map((d) => d.embedding);
      assert.ok(cosine(a, b) > cosine(a, c) + 0.2, `${text}: ${cosine(a, b)} and ${cosine(a, c)}`);
    }
  });

  test('the answer has the form that clients expect', async () => {
    const { body } = await server.embed('Hello, world!');
    assert.equal(body.object, 'list');
    assert.equal(body.model, model);
    assert.deepEqual(body.usage, { prompt_tokens: 4, total_tokens: 4 });
    assert.equal(body.data.length, 1);
    assert.equal(body.data[0].index, 0);
    assert.equal(body.data[0].embedding.length, 100);
    assert.ok(Math.abs(Math.hypot(...body.data[0].embedding) - 1) < 1e-6);
    const models = await (await fetch(`${server.url}/v1/models`)).json();
    assert.deepEqual(models.data.map((m) => m.id), [model]);
  });

  test('base64 carries the same numbers', async () => {
    const plain = (await server.embed('a gentle breeze')).body.data[0].embedding;
    const coded = Buffer.from((await server.embed('a gentle breeze', { encoding_format: 'base64' })).body.data[0].embedding, 'base64');
    assert.deepEqual(Array.from({ length: 100 }, (_, i) => coded.readFloatLE(i * 4)), plain);
  });

  test('a text of unknown words is similar to nothing', async () => {
    const { body } = await server.embed('xqzzyv');
    assert.ok(body.data[0].embedding.every((x) => x === 0));
  });

  test('bad requests are refused in OpenAI\'s form', async () => {
    for (const [body, status, code, param] of [
      ['{"model":', 400, 'invalid_json', null],
      ['[]', 400, 'invalid_value', null],
      ['{"input":"a"}', 400, 'invalid_value', 'model'],
      ['{"model":"gpt","input":"a"}', 404, 'model_not_found', 'model'],
      [`{"model":"${model}"}`, 400, 'invalid_value', 'input'],
      [`{"model":"${model}","input":""}`, 400, 'invalid_value', 'input'],
      [`{"model":"${model}","input":[]}`, 400, 'invalid_value', 'input'],
      [`{"model":"${model}","input":[1,2]}`, 400, 'invalid_value', 'input'],
      [`{"model":"${model}","input":"a","dimensions":7}`, 400, 'invalid_value', 'dimensions'],
      [`{"model":"${model}","input":"a","encoding_format":"toString"}`, 400, 'invalid_value', 'encoding_format'],
      [' '.repeat((4 << 20) + 1), 413, 'request_too_large', null],
    ]) {
      const res = await fetch(`${server.url}/v1/embeddings`, { method: 'POST', body });
      const { error } = await res.json();
      assert.deepEqual([res.status, error.code, error.param], [status, code, param], body.slice(0, 80));
      assert.ok(error.message && error.type);
    }
    assert.equal((await fetch(`${server.url}/v1/embeddings`)).status, 405);
    assert.equal((await fetch(`${server.url}/constructor`)).status, 404);
  });

  test('metrics count what was served', async () => {
    const value = async (name) => Number((await (await fetch(`${server.url}/metrics`)).text()).split('\n').find((l) => l.startsWith(`${name} `)).split(' ')[1]);
    const before = await value('embeddings_inputs_total');
    await server.embed(['one', 'two']);
    assert.equal(await value('embeddings_inputs_total'), before + 2);
    assert.equal(await value('embeddings_model_loaded'), 1);
    assert.ok(await value('embeddings_request_duration_seconds_count') > 0);
  });
});

test('SIGTERM answers what was begun and exits with 0', { timeout: 6 * 60_000 }, async () => {
  const server = await start();
  await server.ready();
  // Half a request is in when the signal comes: it has begun, and is answered.
  const body = JSON.stringify({ model, input: 'last words' });
  const req = request({ port: server.port, host: '127.0.0.1', path: '/v1/embeddings', method: 'POST', headers: { 'Content-Length': body.length } });
  await new Promise((resolve) => { req.write(body.slice(0, 10), resolve); });
  // A connection made later is answered, so that one was accepted before.
  await fetch(`${server.url}/health`, { headers: { Connection: 'close' } });
  const ended = server.stop();
  await assert.rejects(async () => { for (;;) { await fetch(`${server.url}/health`, { headers: { Connection: 'close' } }); await sleep(5); } });
  const answered = once(req, 'response');
  req.end(body.slice(10));
  const [res] = await answered;
  assert.equal(res.statusCode, 200);
  res.resume();
  assert.equal(await ended, 0);
});

test('SIGTERM while loading ends at once and cleanly', { timeout: 60_000 }, async () => {
  const server = await start();
  assert.equal(await server.stop(), 0);
});
