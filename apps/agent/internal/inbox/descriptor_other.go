//go:build !linux

package inbox

import "golang.org/x/sys/unix"

// duplicate makes the descriptor `to` a copy of the descriptor `from`.
func duplicate(from, to int) error { return unix.Dup2(from, to) }
