//go:build !race

package fleettest

const (
	raced = false
	// collect turns the garbage collector off while a fleet runs; see scheduler.
	collect = -1
)
