#!/usr/bin/env node
// OpenAI-compatible embeddings on a CPU: /v1/embeddings, /v1/models, /health,
// /metrics. It listens at once and is healthy when the model is loaded; the
// first instance on a host installs the packages, the others wait for it.

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { handleEmbeddings } from './embeddings.mjs';
import { ApiError, send } from './http.mjs';
import { install } from './install.mjs';
import { createMetrics } from './metrics.mjs';
import { loadModel } from './model.mjs';

const name = 'wink-sg-100d';
const attempts = 5;
const longestPause = 30_000;

const host = process.env.HOST || '127.0.0.1';
const port = setting('PORT', 8000, 65_535);
const drainTimeout = setting('DRAIN_TIMEOUT_MS', 25_000, 3_600_000);

function setting(variable, fallback, max) {
  const text = process.env[variable] ?? String(fallback);
  const value = Number(text);
  if (!/^\d+$/.test(text) || value > max) {
    log('cannot start', { error: `${variable} must be a whole number from 0 to ${max}, not "${text}"` });
    process.exit(1);
  }
  return value;
}

function log(msg, fields = {}) {
  process.stderr.write(`${JSON.stringify({ time: new Date().toISOString(), msg, ...fields })}\n`);
}

const started = Math.floor(Date.now() / 1000);
const stopping = new AbortController();
const metrics = createMetrics();
let model;
let state = 'loading';

const routes = {
  '/health': { GET: (_, res) => send(res, state === 'ok' ? 200 : 503, { status: state }) },
  '/metrics': { GET: (_, res) => res.writeHead(200, { 'Content-Type': 'text/plain; version=0.0.4; charset=utf-8' }).end(metrics.render(Boolean(model))) },
  '/v1/models': { GET: (_, res) => send(res, 200, { object: 'list', data: [{ id: name, object: 'model', created: started, owned_by: 'winkjs' }] }) },
  '/v1/embeddings': { POST: embeddings },
};

async function embeddings(req, res) {
  const begun = process.hrtime.bigint();
  let inputs = 0;
  let tokens = 0;
  try {
    if (!model) throw new ApiError(503, 'service_unavailable', 'model_loading', 'the model is loading');
    const answer = await handleEmbeddings(req, res, name, model);
    inputs = answer.data.length;
    tokens = answer.usage.prompt_tokens;
    send(res, 200, answer);
  } catch (err) {
    answerError(res, err);
  } finally {
    metrics.observe(res.statusCode, inputs, tokens, Number(process.hrtime.bigint() - begun) / 1e9);
  }
}

function answerError(res, err) {
  if (!(err instanceof ApiError)) {
    log('request failed', { error: err.stack });
    err = new ApiError(500, 'server_error', 'internal_error', 'the server failed; its log says why');
  }
  send(res, err.status, err.body(), err.status === 503 ? { 'Retry-After': '1' } : {});
}

const server = createServer({ requestTimeout: 30_000, headersTimeout: 10_000, keepAliveTimeout: 60_000 }, async (req, res) => {
  // close() ends only the connections that are idle at that moment.
  res.once('close', () => stopping.signal.aborted && setImmediate(() => server.closeIdleConnections()));
  const path = req.url.split('?', 1)[0];
  const route = Object.hasOwn(routes, path) ? routes[path] : undefined;
  const method = req.method === 'HEAD' ? 'GET' : req.method;
  if (!route) {
    answerError(res, new ApiError(404, 'invalid_request_error', 'not_found', `there is no ${path} here`));
  } else if (!Object.hasOwn(route, method)) {
    res.setHeader('Allow', Object.keys(route).join(', '));
    answerError(res, new ApiError(405, 'invalid_request_error', 'method_not_allowed', `${path} takes ${Object.keys(route)}, not ${req.method}`));
  } else {
    await route[method](req, res);
  }
});

server.on('error', (err) => {
  log('cannot listen', { host, port, error: err.message });
  process.exit(1);
});
server.listen(port, host, () => log('listening', { host, port: server.address().port, model: name }));

for (const by of ['SIGTERM', 'SIGINT']) process.on(by, drain);

function drain(by) {
  if (stopping.signal.aborted) return;
  log('draining', { by });
  state = 'draining';
  stopping.abort(new Error(`stopped by ${by}`));
  // close() ends idle connections and waits for the others.
  server.close(() => log('drained'));
  setTimeout(() => {
    log('drain timeout passed, cutting connections');
    server.closeAllConnections();
  }, drainTimeout).unref();
}

// The network may come back, a full disk may be cleared: try again for a while,
// then end with the reason rather than look alive.
for (let attempt = 1; !model && !stopping.signal.aborted; attempt++) {
  try {
    const dir = await install({ signal: stopping.signal, log });
    model = await loadModel(dir, { signal: stopping.signal });
    if (stopping.signal.aborted) break;
    state = 'ok';
    log('model loaded', { model: name, dimensions: model.dimensions });
  } catch (err) {
    if (stopping.signal.aborted) break;
    log('loading failed', { attempt, of: attempts, error: err.message });
    if (attempt === attempts) process.exit(1);
    await sleep(Math.random() * Math.min(longestPause, 1000 * 2 ** attempt), undefined, { signal: stopping.signal }).catch(() => {});
  }
}
