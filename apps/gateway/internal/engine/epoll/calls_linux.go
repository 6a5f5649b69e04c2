//go:build linux

package epoll

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive and send do not tell the scheduler: they do not block. A build for the race detector makes the
// same calls, and tells it of them.

func receive(fd int, p []byte, flags int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(flags), 0, 0)
	if int(n) > 0 {
		raceReceived(p[:n])
	}
	return int(n), errno
}

func send(fd int, p []byte) (int, syscall.Errno) {
	raceSends(p)
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// waitEvents waits for events. It blocks the thread and not the runtime's poller, so that the system wakes
// one thread and no more.
func waitEvents(fd int, events []unix.EpollEvent) (int, syscall.Errno) {
	n, _, errno := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
	return int(n), errno
}
