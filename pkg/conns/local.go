package conns

import (
	"errors"
	"syscall"
)

// Local reports whether a connection could not be made or accepted because this host or process lacks a
// resource or a permission, such as descriptors or ports. The other side is not at fault.
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
