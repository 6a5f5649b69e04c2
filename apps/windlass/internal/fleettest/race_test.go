//go:build race

package fleettest

// The race detector makes a fleet ten times as slow and finds what it finds in a
// few.
const raced = true
