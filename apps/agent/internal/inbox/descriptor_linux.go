package inbox

import "golang.org/x/sys/unix"

// duplicateDescriptor makes the descriptor `to` a copy of the descriptor `from`.
func duplicateDescriptor(from, to int) error { return unix.Dup3(from, to, unix.O_CLOEXEC) }
