// Package rpc has the code that every Connect call of Windlass uses, in the client and in the server.
//
//	client ──> token, deadline, trace ──> HTTP/2 with keepalive pings
//	                                          │
//	server <── body limit and deadline <──────┘
//	  └─> gate (identify and authorize) ─> read, decompress, count, charge, decode
//	        └─> trace ─> count, recover, translate errors, deadline
//	              └─> the program's interceptors ─> the schema's rules ─> handler
//
// Guarantees for callers:
//
//   - Every error that a handler or an interceptor returns reaches the caller with
//     a Connect code and an ErrorDetail. An error that was not made for the caller
//     (a driver's error, a panic, another server's answer) arrives as INTERNAL with
//     the trace id, and its cause is logged once. Connect refuses bodies that cannot
//     be decoded before any interceptor. These errors have only a code, which
//     ReasonOf maps.
//   - A call that the gate refuses needs no memory for its body, because it is not read.
//     A message's elements are counted before it is decoded, so that a few bytes on
//     the wire do not become many structs.
//   - Every unary call has a deadline: the caller's, or else the server's default.
//   - A server that stops ends its streams at once with UNAVAILABLE. Unary calls may
//     continue for the grace period, and are then cancelled.
//   - Both ends ping silent connections, and close those that do not answer.
package rpc

import "time"

const (
	// DefaultReadMaxBytes is the maximum size of a decoded message. Real messages, such as a report of 1,000
	// instances or a spec, have less than 1 MiB.
	DefaultReadMaxBytes = 4 << 20
	// DefaultTimeout is the default timeout of a unary call.
	DefaultTimeout = 30 * time.Second
	// compressMinBytes is the minimum size to compress. A smaller message fits into one packet anyway.
	compressMinBytes = 1024

	// A dead peer is found within pingAfter + pingTimeout + sweepEvery. That is shorter than an agent's
	// lease, so an agent whose network lost its connections connects again within 10 s. Both ends ping silent
	// connections. Servers ping first, in groups (see keeper), so that clients normally need not ping.
	// clientPingAfter adds one sweep and 500 ms, which is longer than a ping takes to arrive. pingTimeout
	// allows for a peer that is short of CPU.
	pingAfter       = 5 * time.Second
	clientPingAfter = pingAfter + 2*sweepEvery
	pingTimeout     = 4 * time.Second
	// writeTimeout is how long a write may block without sending a byte. Then the connection is closed.
	writeTimeout = 30 * time.Second
)
