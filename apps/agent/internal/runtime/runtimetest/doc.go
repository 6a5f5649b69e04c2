// Package runtimetest is the conformance suite of runtime.Runtime: what the rest
// of the agent relies on, whatever runs the instances. A runtime passes by
// calling Run from a test, and Main from its TestMain, so that the test binary
// can be the workload, too.
//
// Every guarantee is checked from outside: by Observe, by asking the workload
// itself over HTTP, and by looking for what was left behind. Waits are for
// conditions and have one generous deadline; nothing depends on how fast the
// machine is.
package runtimetest
