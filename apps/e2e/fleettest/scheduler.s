// The runtime's functions that scheduler_test.go declares have their bodies there.
