//go:build linux

package epoll

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive and send do not tell Go's scheduler about their system calls, because the calls do not block. In a
// build for the race detector, they tell the detector about the bytes.

func receive(fd int, p []byte, flags int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(flags), 0, 0)
	if int(n) > 0 {
		raceAfterReceive(p[:n])
	}
	return int(n), errno
}

func send(fd int, p []byte) (int, syscall.Errno) {
	raceBeforeSend(p)
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// waitEvents waits for events. It blocks its own thread instead of using the runtime's poller, so that an
// event wakes only that thread.
func waitEvents(fd int, events []unix.EpollEvent) (int, syscall.Errno) {
	n, _, errno := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), ^uintptr(0), 0, 0)
	return int(n), errno
}
