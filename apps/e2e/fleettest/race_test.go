//go:build race

package fleettest

// With the race detector a fleet is ten times slower, and a few fleets are enough to find races. The detector
// shuffles goroutines, so the scheduler cannot be pinned.
const (
	raced   = true
	collect = 100
)
