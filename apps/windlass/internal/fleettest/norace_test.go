//go:build !race

package fleettest

const raced = false
