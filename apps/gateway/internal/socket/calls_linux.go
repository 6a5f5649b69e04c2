//go:build linux && !race

package socket

import (
	"syscall"
	"unsafe"
)

// transfer does not tell the scheduler: the socket does not block.
func transfer(number, fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(number, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(flags), 0, 0)
	return int(n), errno
}
