// Prometheus metrics in the text format, without a dependency.

const bounds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];

export function createMetrics() {
  const requests = new Map();
  const buckets = new Array(bounds.length).fill(0);
  let count = 0;
  let sum = 0;
  let inputs = 0;
  let tokens = 0;

  return {
    // observe counts one request to the model; seconds is its duration.
    observe(code, newInputs, newTokens, seconds) {
      requests.set(code, (requests.get(code) ?? 0) + 1);
      for (const [i, bound] of bounds.entries()) if (seconds <= bound) buckets[i]++;
      count++;
      sum += seconds;
      inputs += newInputs;
      tokens += newTokens;
    },

    render(loaded) {
      const lines = [];
      const family = (name, type, help, ...samples) => lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...samples);
      family('embeddings_requests_total', 'counter', 'Requests, by status code.',
        ...[...requests].map(([code, n]) => `embeddings_requests_total{code="${code}"} ${n}`));
      family('embeddings_inputs_total', 'counter', 'Texts embedded.', `embeddings_inputs_total ${inputs}`);
      family('embeddings_prompt_tokens_total', 'counter', 'Tokens read.', `embeddings_prompt_tokens_total ${tokens}`);
      family('embeddings_request_duration_seconds', 'histogram', 'Time that a request took.',
        ...bounds.map((bound, i) => `embeddings_request_duration_seconds_bucket{le="${bound}"} ${buckets[i]}`),
        `embeddings_request_duration_seconds_bucket{le="+Inf"} ${count}`,
        `embeddings_request_duration_seconds_sum ${sum}`,
        `embeddings_request_duration_seconds_count ${count}`);
      family('embeddings_model_loaded', 'gauge', 'Whether the model is loaded.', `embeddings_model_loaded ${loaded ? 1 : 0}`);
      family('process_resident_memory_bytes', 'gauge', 'Resident memory.', `process_resident_memory_bytes ${process.memoryUsage.rss()}`);
      return `${lines.join('\n')}\n`;
    },
  };
}
