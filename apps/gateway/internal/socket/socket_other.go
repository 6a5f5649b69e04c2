//go:build !linux

package socket

import (
	"errors"
	"net"
	"time"
)

// Supported tells whether Open may succeed on this system.
const Supported = false

// Conn is never had here.
type Conn struct{}

// ErrUnfit is never told here.
var ErrUnfit = errors.ErrUnsupported

// Open fails: what it is for takes calls of Linux.
func Open(net.Conn) (*Conn, error) { return nil, errors.ErrUnsupported }

// Buffers are of no use here.
type Buffers struct{ Size int }

func (*Buffers) Get() *[]byte                          { return nil }
func (*Buffers) Put(*[]byte)                           {}
func (*Conn) TCP() *net.TCPConn                        { return nil }
func (*Conn) Close() error                             { return nil }
func (*Conn) SetReadDeadline(time.Time) error          { return errors.ErrUnsupported }
func (*Conn) Read([]byte) (int, error)                 { return 0, errors.ErrUnsupported }
func (*Conn) ReadInto(*Buffers) (*[]byte, int, error)  { return nil, 0, errors.ErrUnsupported }
func (*Conn) Wait() error                              { return errors.ErrUnsupported }
func (*Conn) Ask([]byte, time.Duration) (int, error)   { return 0, errors.ErrUnsupported }
func (*Conn) Write([]byte, time.Duration) (int, error) { return 0, errors.ErrUnsupported }
