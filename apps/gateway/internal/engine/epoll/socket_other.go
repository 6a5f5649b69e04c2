//go:build !linux

package epoll

import (
	"errors"
	"net"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
)

// Start fails: there is no epoll on this system.
func Start() error { return errors.ErrUnsupported }

// Reserve fails, too.
func Reserve() error { return errors.ErrUnsupported }

// Conn is never had here.
type Conn struct{}

// Task is never had either.
type Task struct{}

// Go has nothing to wait for.
func Go(f func(t *Task)) { go f(nil) }

// Open fails: what it is for takes calls of Linux.
func Open(net.Conn) (*Conn, error) { return nil, errors.ErrUnsupported }

// Buffers are of no use here.
type Buffers struct{ Size int }

func (*Buffers) Get() *[]byte                          { return nil }
func (*Buffers) Put(*[]byte)                           {}
func (*Conn) Close() error                             { return nil }
func (*Conn) Release() (net.Conn, error)               { return nil, errors.ErrUnsupported }
func (*Task) Blocking(f func())                        { f() }
func (*Conn) Give(*Task)                               {}
func (*Conn) Cut()                                     {}
func (*Conn) CloseWrite() error                        { return errors.ErrUnsupported }
func (*Conn) SetReadDeadline(time.Time) error          { return errors.ErrUnsupported }
func (*Conn) Watch(func())                             {}
func (*Conn) Unwatch()                                 {}
func (*Conn) Read([]byte) (int, error)                 { return 0, errors.ErrUnsupported }
func (*Conn) ReadInto(*Buffers) (*[]byte, int, error)  { return nil, 0, errors.ErrUnsupported }
func (*Conn) Quiet(bool) bool                          { return false }
func (*Conn) Write([]byte, time.Duration) (int, error) { return 0, errors.ErrUnsupported }

func (*Conn) WritePaced([]byte, time.Duration, *pace.Pace) (int, error) {
	return 0, errors.ErrUnsupported
}
