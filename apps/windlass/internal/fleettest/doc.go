// Package fleettest runs the shipped control plane and a fleet of shipped agents
// in virtual time: real streams over an in-memory transport, the in-memory store
// and driver, simulated instances. Seeds decide what is cut, delayed, killed and
// restored; afterwards everything must converge.
//
// The in-memory store and driver are trusted because they pass the suites that
// MySQL and Restate pass.
package fleettest
