//go:build linux && race

package socket

import (
	"errors"
	"syscall"
)

// transfer by calls that the race detector sees: who reads what another wrote comes after it.
func transfer(number, fd uintptr, p []byte, flags int) (n int, errno syscall.Errno) {
	var err error
	switch number {
	case syscall.SYS_READ:
		n, err = syscall.Read(int(fd), p)
	case syscall.SYS_WRITE:
		n, err = syscall.Write(int(fd), p)
	default:
		n, _, err = syscall.Recvfrom(int(fd), p, flags)
	}
	errors.As(err, &errno)
	return n, errno
}
