package conns

import (
	"errors"
	"syscall"
)

// Local reports whether a connection was not made, or taken, for want of something that this host or
// process has not enough of, such as descriptors or ports: the other side knows nothing of it.
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
