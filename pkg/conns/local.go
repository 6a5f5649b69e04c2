package conns

import (
	"errors"
	"syscall"
)

// Local reports whether err means that this host or process lacks a resource or a permission for a connection, such
// as descriptors or ports. Then the other side is not at fault.
func Local(err error) bool {
	for _, errno := range [...]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EPERM, syscall.EACCES,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
