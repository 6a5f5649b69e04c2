// Package modelserver is an OpenAI-compatible model server for demos and tests.
//
// Control planes, gateways and autoscalers see an inference server. It loads before it is healthy, limits running and
// queued requests, streams tokens at a rate, drains, and has metrics with vLLM's names. With the command line of vLLM
// or SGLang, it takes their flags and has their endpoints and metrics instead (engine.go).
//
// It has no language model. The echo model repeats the words of the prompt, or of a chat's last user message, with one
// word per token. The text depends only on the request, so that a test knows the answer. With a model repository, the
// server also has the Open Inference Protocol (inference_protocol.go). With adapter slots, it has vLLM's or SGLang's calls for LoRA
// adapters (adapters.go).
//
//	          +-> 503           while loading
//	          +-> hang (fault)
//	request --+-> 400 404 413   parse and validate, before a slot is taken
//	          +-> 429           no slot free and the queue is full
//	          +-> queue (FIFO) -> slot -> error (fault) | tokens, paced -> slot freed
//
// Invariants:
//
//   - At most Concurrency requests generate, and at most Queue wait. A freed slot
//     passes directly to the oldest waiting request, so that no later request
//     overtakes it. A request that stops waiting loses no slot.
//   - A request ends at the first of: its last token, the client's disconnect, a
//     write that makes no progress, the request timeout, the end of the drain.
//     Each of these ends frees its slot.
//   - After SIGTERM (the end of Run's context) health is 503 and the listener is
//     closed. Accepted requests, including queued requests, are answered in full,
//     unless the drain timeout passes first. Imitated engines may end differently
//     (engine.go).
//   - Models and adapters hold their memory from the request to load them until
//     they are unloaded. Together they never hold more than ModelMemoryMiB.
//   - Faults change what the server does, but not what it reports: /metrics and
//     /faults stay correct and reachable under every fault.
package modelserver
