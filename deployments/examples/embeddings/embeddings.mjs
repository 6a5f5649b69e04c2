import { setImmediate as yieldToOthers } from 'node:timers/promises';
import { ApiError, badRequest, readJSON } from './http.mjs';

const maxBody = 4 << 20;
const maxInputs = 2048; // OpenAI's limit
// Health checks must get through while a large batch is being worked on.
const longestSlice = 10;

export async function handleEmbeddings(req, res, name, model) {
  const { inputs, encode } = check(await readJSON(req, maxBody), name, model.dimensions);
  const data = [];
  let tokens = 0;
  let sliceEnds = performance.now() + longestSlice;
  for (const [index, text] of inputs.entries()) {
    if (performance.now() > sliceEnds) {
      await yieldToOthers();
      if (res.destroyed) throw new ApiError(499, 'invalid_request_error', 'client_closed_request', 'the client left');
      sliceEnds = performance.now() + longestSlice;
    }
    const result = model.embed(text);
    tokens += result.tokens;
    data.push({ object: 'embedding', index, embedding: encode(result.vector) });
  }
  return { object: 'list', model: name, data, usage: { prompt_tokens: tokens, total_tokens: tokens } };
}

const encodings = {
  float: (vector) => Array.from(vector),
  base64: (vector) => Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64'),
};

function check(body, name, dimensions) {
  if (body === null || typeof body !== 'object' || Array.isArray(body)) throw badRequest(null, 'the request must be a JSON object');
  if (!body.model) throw badRequest('model', `model is missing: name the model, "${name}"`);
  if (body.model !== name) throw new ApiError(404, 'invalid_request_error', 'model_not_found', `the model ${JSON.stringify(body.model)} does not exist; this server serves "${name}"`, 'model');
  const inputs = Array.isArray(body.input) ? body.input : [body.input];
  if (inputs.length === 0 || inputs.length > maxInputs) throw badRequest('input', `input must hold 1 to ${maxInputs} texts, not ${inputs.length}`);
  for (const text of inputs) {
    if (typeof text !== 'string' || text === '') throw badRequest('input', 'input must be a text or a list of texts, none of them empty; lists of token ids are not supported');
  }
  const format = body.encoding_format ?? 'float';
  if (!Object.hasOwn(encodings, format)) throw badRequest('encoding_format', 'encoding_format must be float or base64');
  if ((body.dimensions ?? dimensions) !== dimensions) throw badRequest('dimensions', `dimensions must be ${dimensions}`);
  return { inputs, encode: encodings[format] };
}
