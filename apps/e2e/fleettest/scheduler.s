// This file lets the compiler accept the functions that scheduler_test.go declares without bodies. The runtime has the
// bodies.
