// ApiError is an answer that is not 200, in OpenAI's form.
export class ApiError extends Error {
  constructor(status, type, code, message, param = null) {
    super(message);
    Object.assign(this, { status, type, code, param });
  }

  body() {
    const { message, type, param, code } = this;
    return { error: { message, type, param, code } };
  }
}

export const badRequest = (param, message) => new ApiError(400, 'invalid_request_error', 'invalid_value', message, param);

export function send(res, status, body, headers = {}) {
  if (res.destroyed || res.headersSent) return;
  res.writeHead(status, { 'Content-Type': 'application/json', ...headers }).end(`${JSON.stringify(body)}\n`);
}

// readJSON reads a body of at most limit bytes.
export async function readJSON(req, limit) {
  const chunks = [];
  let size = 0;
  // Breaking out of the loop would destroy the socket, and the answer with it:
  // the rest of a large body is read and dropped, up to the request timeout.
  for await (const chunk of req) {
    size += chunk.length;
    if (size <= limit) chunks.push(chunk);
  }
  if (size > limit) throw new ApiError(413, 'invalid_request_error', 'request_too_large', `the request body is larger than ${limit} bytes`);
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8'));
  } catch (err) {
    throw new ApiError(400, 'invalid_request_error', 'invalid_json', `the request body is not valid JSON: ${err.message}`);
  }
}
