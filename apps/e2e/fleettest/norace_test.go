//go:build !race

package fleettest

const (
	raced = false
	// collect: the collector is off while a fleet runs; see pinned.
	collect = -1
)
