// Package runtimetest is the conformance suite of runtime.Runtime: the guarantees that the
// rest of the agent relies on. A runtime passes by
// calling Run from a test, and Main from its TestMain, so that the test binary
// can be the workload, too.
//
// Every guarantee is checked from outside: by Observe, by HTTP calls to the workload, and by a
// search for what was left behind. Every wait is for a condition and has the same long deadline,
// so that no test depends on the speed of the machine.
package runtimetest
