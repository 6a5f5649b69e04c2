// Package e2e holds the acceptance tests of the whole product. Every part is the
// real one and a process of its own, started from the programs that users get:
//
//	test ──Connect──> control plane <──Connect── agent us-east-1 ── shim ── modelserver
//	      (killer)     │        │                agent eu-west-1 ── shim ── modelserver
//	                MariaDB  Restate
//
// On Kubernetes each region is a kubelab of its own, a real API server and scheduler
// whose pods answer; what really is there is then read from the clusters.
//
// A stack lives below one temporary folder, whose path every process of it
// carries in its arguments or its environment. So the tests look at what really
// runs, through /proc, and never take the product's word for it; and each stack
// ends with the assertion that no process of that folder is left.
//
// What may be asked of them:
//
//	WINDLASS_CHAOS_SECONDS  how long parts are killed at random (default 60)
//	WINDLASS_CHAOS_SEED     the seed of an earlier run, which each run prints
//	WINDLASS_TLS            1: every port has TLS, except those of instances; 0: none has; default: half of the tests have it
//	WINDLASS_E2E_PROGRAMS   a folder with programs to test instead of building them
//	WINDLASS_E2E_KEEP       if set, folders with logs and data are kept
package e2e
