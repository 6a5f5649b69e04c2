// Package e2e has the acceptance tests of the whole product. Every part is real and a separate process,
// started from the programs that users get:
//
//	test ──Connect──> control plane <──Connect── agent us-east-1 ── shim ── modelserver
//	      (killer)     │        │                agent eu-west-1 ── shim ── modelserver
//	                MariaDB  Restate
//
// On Kubernetes each region is its own kubelab: a real API server and scheduler, whose pods answer requests.
// The tests then read from the clusters what exists.
//
// A stack lives below one temporary folder. Every process of the stack has the folder's path in its arguments
// or its environment. So the tests find the running processes through /proc, and do not rely on the product's
// own reports. Each stack ends with the assertion that no process of its folder is left.
//
// Variables of the environment:
//
//	WINDLASS_CHAOS_SECONDS  how long parts are killed at random (default 60)
//	WINDLASS_CHAOS_SEED     the seed of an earlier run, which each run prints
//	WINDLASS_TLS            1: TLS on all ports except ports of instances; 0: no TLS; default: TLS in half of the tests
//	WINDLASS_E2E_PROGRAMS   a folder with programs to test instead of building them
//	WINDLASS_E2E_KEEP       if set, folders with logs and data are kept
package e2e
