// Package fleettest runs shipped control planes and a fleet of shipped agents in
// virtual time: real calls and streams over an in-memory network, the in-memory
// store and driver, simulated instances.
//
//	users --.                 .-- cp-1 --.
//	         >-- balancer ---<--- cp-2 ---+--> one database
//	agents -'                 `-- cp-3 --'
//	                             (peers)
//
// A seed decides everything: what users do, how long each message and each transaction takes, and what is
// cut, held, doubled, delayed, stalled, killed and restored. Meanwhile every commit is checked against the
// promises (see checker). Afterwards everything must converge and agree.
//
// # One seed, one history
//
// The same seed gives the same history, to the byte on the wire, in any process. Each possible difference
// between two runs is removed:
//
//	time                  the bubble's
//	ids, keys, jitter     crypto/rand and every random function, from the seed
//	disk                  agents keep their data in memory: no system calls
//	the scheduler         one P; see scheduler
//	maps                  nothing depends on a map's order, which differs
//	                      in another process
//
// Therefore the fleets of one process run one after the other, and there are as many processes as CPUs.
//
// The in-memory store and driver are trusted because they pass the suites that
// MySQL and Restate pass.
package fleettest
