//go:build linux && race

package epoll

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// receive, send and poll by calls that the race detector sees: who reads what another wrote
// comes after it.
func receive(fd int, p []byte, flags int) (n int, errno syscall.Errno) {
	if flags == 0 {
		return told(syscall.Read(fd, p))
	}
	n, _, err := syscall.Recvfrom(fd, p, flags)
	return told(n, err)
}

func send(fd int, p []byte) (int, syscall.Errno) { return told(syscall.Write(fd, p)) }

func poll(fd int, events []unix.EpollEvent) (int, syscall.Errno) {
	return told(unix.EpollWait(fd, events, -1))
}

func told(n int, err error) (int, syscall.Errno) {
	var errno syscall.Errno
	errors.As(err, &errno)
	return n, errno
}
