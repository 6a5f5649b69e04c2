// Package runtimetest is the conformance suite of runtime.Runtime. It tests the guarantees that the
// rest of the agent relies on. The test of a runtime calls Run, and its TestMain calls Main,
// because the test binary is also the workload.
//
// Every guarantee is checked from outside: by Observe, by HTTP calls to the workload, and by a
// search for leftovers. Every wait is for a condition and has the same long deadline, so no test
// depends on the speed of the machine.
package runtimetest
