// Package rpc is the edge that every Connect call of Windlass passes, on both
// ends, so that no handler has to think of what all have in common.
//
//	client ──> token, deadline, trace ──> HTTP/2 with keepalive pings
//	                                          │
//	server <── body limit and deadline <──────┘
//	  └─> gate (who is it, may it) ─> read, decompress, count, charge, decode
//	        └─> trace ─> count, recover, translate errors, deadline
//	              └─> the program's own ─> the schema's rules ─> handler
//
// What a caller may rely on:
//
//   - Every error that a handler or an interceptor returns reaches the caller with
//     a Connect code and an ErrorDetail. What the program did not mean to tell (a
//     driver's error, a panic, another server's answer) arrives as INTERNAL with
//     the trace id, and its cause is in the log, once. Bodies that cannot be
//     decoded are refused by Connect before any interceptor and carry only a code;
//     ReasonOf maps it.
//   - A caller whom the gate refuses has cost no memory: no byte of the body is read
//     before. A message is counted before it is decoded, so that a few bytes on the wire
//     do not become many structs.
//   - Every unary call ends: its caller's deadline, or else the server's.
//   - A server that stops tells its streams at once, with UNAVAILABLE, and lets
//     unary calls finish within its grace. Then it cuts.
//   - A connection whose other end is gone is found by ping and closed, though
//     nothing is ever sent on it.
package rpc

import "time"

const (
	// DefaultReadMaxBytes bounds one decoded message. The largest honest one is a
	// report of 1,000 instances or a spec with its environment: under 1 MiB.
	DefaultReadMaxBytes = 4 << 20
	// DefaultTimeout of a unary call: an answer that takes longer is one that its
	// caller has given up on.
	DefaultTimeout = 30 * time.Second
	// compressMinBytes: a smaller message fits into one packet either way.
	compressMinBytes = 1024

	// A peer that is gone without a word is found in pingAfter + pingTimeout and a sweep:
	// within an agent's lease, and so soon that a region whose network forgot its
	// connections is back within 10 s of its network. Both ends look after a connection that
	// has been silent for so long. Servers ask first, whole groups of connections at a time
	// (see keeper), which answers the client's question too, so that only one of them pings
	// where all is well; half a second more than a sweep is more than a way there. A
	// thousand agents get at most 200 pings a second, of 17 bytes; 4 s is what a program
	// that is starved of the processor may take to answer.
	pingAfter       = 5 * time.Second
	clientPingAfter = pingAfter + 2*sweepEvery
	pingTimeout     = 4 * time.Second
	// writeTimeout closes a connection that takes no byte for so long.
	writeTimeout = 30 * time.Second
)
