// Package modelserver is an OpenAI-compatible model server for demos and tests.
//
// It behaves like an inference server in everything that a control plane, a
// gateway or an autoscaler can see: it loads before it is healthy, it has a
// bounded number of running requests and a bounded queue, it streams tokens at
// a rate, it drains, and it publishes vLLM's metric names. Under the command line
// of vLLM or SGLang it takes their flags and has their endpoints and metrics
// instead (engine.go). What it generates is
// no language model's output: the echo model repeats the words of the prompt
// (for a chat, of the last user message), one word per token. The text is a
// function of the request alone, so a test can say what the answer must be.
//
//	          +-> 503 while loading
//	          +-> hang (fault)
//	request --+-> 400 404 413   parse and validate, before any slot is taken
//	          +-> 429           no slot free and the queue is full
//	          +-> queue (FIFO) -> slot -> error (fault) | tokens, paced -> slot freed
//
// What holds at every moment:
//
//   - At most Concurrency requests generate and at most Queue wait. A slot is
//     handed straight from the request that ends to the oldest that waits, so a
//     newcomer never overtakes, and a waiter that gives up leaves no slot behind.
//   - A request ends at the first of: its last token, the client's disconnect, a
//     write that makes no progress, the request timeout, the end of the drain.
//     Each of them frees its slot.
//   - After SIGTERM (the end of Run's context) health is 503 and the listener is
//     closed; requests that were accepted, queued ones included, are answered in
//     full unless the drain timeout passes first. Engines may do otherwise.
//   - Faults change what the server does, never what it reports about itself:
//     /metrics and /faults stay truthful and reachable under every fault.
package modelserver
