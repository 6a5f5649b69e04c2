//go:build linux && race

package epoll

import (
	"runtime"
	"syscall"
	"unsafe"
)

// The race detector must learn that a read from a socket comes after another goroutine's write to a socket.
// Package syscall tells the detector about its own calls, but the calls of this package bypass it. So each of
// them comes with a call of package syscall that moves no bytes.

// devNull is the descriptor for the calls that move no bytes.
var devNull = func() int {
	fd, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return fd
}()

func raceAfterReceive(p []byte) {
	_, _ = syscall.Read(devNull, nil)
	runtime.RaceWriteRange(unsafe.Pointer(&p[0]), len(p))
}

func raceBeforeSend(p []byte) {
	runtime.RaceReadRange(unsafe.Pointer(&p[0]), len(p))
	_, _ = syscall.Write(devNull, nil)
}
