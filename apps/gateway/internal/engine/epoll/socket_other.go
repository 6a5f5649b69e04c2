//go:build !linux

package epoll

import (
	"errors"
	"net"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
)

// The declarations in this file let the users of this package compile on systems without epoll. Open always fails
// there, so no Conn exists.

// Start fails, because this system has no epoll.
func Start() error { return errors.ErrUnsupported }

// Reserve fails, because this system has no epoll.
func Reserve() error { return errors.ErrUnsupported }

// Conn has no values on this system.
type Conn struct{}

// Task has no values on this system.
type Task struct{}

// Go runs f in a goroutine with a nil Task.
func Go(f func(t *Task)) { go f(nil) }

// Open fails, because this system has no epoll.
func Open(net.Conn) (*Conn, error) { return nil, errors.ErrUnsupported }

// Buffers is not used on this system.
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
