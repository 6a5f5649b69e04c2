// Package onnxserver is a server of many models, which it loads and unloads while it runs. It runs them with ONNX Runtime.
//
// It has the Open Inference Protocol, version 2, over HTTP (handle_http.go) and gRPC (handle_grpc.go) on one port, with the
// repository calls of Triton. Models are files of a repository (repository.go). An Engine runs them: internal/ort with ONNX
// Runtime, or a fake of the tests. So this package needs no C compiler.
//
//	request --+-> 404           the model is not loaded
//	          +-> 400           tensors that the model does not take, or that exceed its memory
//	          +-> 429           no slot is free and the queue is full
//	          +-> queue (FIFO) -> slot -> Session.Run -> answer
//
// Invariants:
//
//   - The memory of models is reserved from the request to load until the unload, so the sum never exceeds the limit.
//   - A session is closed only after its last request has ended. Every request ends within RequestTimeout, so an unload does, too.
//   - A load goes on when its client disconnects, as in Triton. A second load of the same model waits for the first. A load
//     that waits for the unload of a changed file does not begin after its client has disconnected.
//   - After SIGTERM the server is not ready and accepts no connections. Accepted requests are answered until DrainTimeout.
package onnxserver
