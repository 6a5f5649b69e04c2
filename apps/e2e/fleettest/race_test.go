//go:build race

package fleettest

// The race detector makes a fleet ten times as slow and finds what it finds in a
// few. It shuffles goroutines, so there is nothing to pin.
const (
	raced   = true
	collect = 100
)
