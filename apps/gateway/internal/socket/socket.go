//go:build linux

// Package socket reads and writes TCP connections with as little between as there can be: a
// call to the system when there is something to do, and the runtime's poller when there is
// not. A call that does not block is made without telling the scheduler, which costs more
// than it takes; that, and that nothing is copied or allocated, is all there is to it.
package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Supported tells whether Open may succeed on this system.
const Supported = true

// errNoSocket: the connection has no socket of its own, as one by TLS.
var errNoSocket = errors.New("the connection is not a socket's")

// Conn is a TCP connection. One may read and one write at a time.
type Conn struct {
	net  *net.TCPConn
	raw  syscall.RawConn
	read struct {
		buf   []byte
		from  *Buffers
		taken *[]byte
		n     int
		errno syscall.Errno
		next  func(fd uintptr) bool
	}
	write struct {
		buf     []byte
		n       int
		slow    time.Duration
		limited bool
		errno   syscall.Errno
		next    func(fd uintptr) bool
	}
	peek struct {
		byte  [1]byte
		n     int
		errno syscall.Errno
		wait  func(fd uintptr) bool
	}
	ask struct {
		begun, unfit bool
		next         func(fd uintptr) bool
	}
}

// Buffers are what is read into. Connections that wait have none.
type Buffers struct {
	// Size of each in bytes.
	Size int
	pool sync.Pool
}

// Get a buffer.
func (b *Buffers) Get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, b.Size)
	return &p
}

// Put it back; one of another size is let go of.
func (b *Buffers) Put(p *[]byte) {
	if len(*p) == b.Size {
		b.pool.Put(p)
	}
}

// Open takes the connection over; it is closed by Close.
func Open(c net.Conn) (*Conn, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errNoSocket
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Conn{net: tcp, raw: raw}
	s.read.next, s.write.next = s.readSome, s.writeSome
	s.peek.wait, s.ask.next = s.heard, s.askOnce
	return s, nil
}

// TCP is the connection below.
func (c *Conn) TCP() *net.TCPConn { return c.net }

// Close the connection.
func (c *Conn) Close() error { return c.net.Close() }

// SetReadDeadline of Read and Wait; what waits past it fails with os.ErrDeadlineExceeded.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.net.SetReadDeadline(t) }

// Read what there is, or wait for it.
func (c *Conn) Read(p []byte) (int, error) {
	c.read.buf = p
	err := c.raw.Read(c.read.next)
	c.read.buf = nil
	return c.read.n, c.readError(err)
}

// ReadInto is Read into one of the buffers, which is taken when there is something for it, and
// returned unless there is an error.
func (c *Conn) ReadInto(from *Buffers) (*[]byte, int, error) {
	c.read.from = from
	err := c.readError(c.raw.Read(c.read.next))
	taken := c.read.taken
	c.read.from, c.read.taken, c.read.buf = nil, nil, nil
	if err != nil && taken != nil {
		from.Put(taken)
		taken = nil
	}
	return taken, c.read.n, err
}

func (c *Conn) readError(err error) error {
	switch {
	case err != nil:
		c.read.n = 0
		return err
	case c.read.errno != 0:
		return os.NewSyscallError("read", c.read.errno)
	case c.read.n == 0:
		return io.EOF
	}
	return nil
}

func (c *Conn) readSome(fd uintptr) bool {
	if c.read.from != nil && c.read.taken == nil {
		c.read.taken = c.read.from.Get()
		c.read.buf = *c.read.taken
	}
	if c.read.n, c.read.errno = call(syscall.SYS_READ, fd, c.read.buf, 0); c.read.errno != syscall.EAGAIN {
		return true
	}
	if c.read.taken != nil {
		c.read.from.Put(c.read.taken)
		c.read.taken = nil
	}
	return false
}

// Wait until there is something to be read, without reading it. It returns io.EOF when the
// other side has ended the connection, or its half of it.
func (c *Conn) Wait() error {
	if err := c.raw.Read(c.peek.wait); err != nil {
		return err
	}
	switch {
	case c.peek.errno != 0:
		return os.NewSyscallError("recv", c.peek.errno)
	case c.peek.n == 0:
		return io.EOF
	}
	return nil
}

func (c *Conn) heard(fd uintptr) bool {
	c.look(fd)
	return c.peek.errno != syscall.EAGAIN
}

// ErrUnfit is Ask's for a connection that has ended, or has something to be read before
// anything was asked.
var ErrUnfit = errors.New("the connection has ended, or something came on it that was not asked for")

// Ask writes p, each part of it within slow, and waits until something comes back, which Read
// reads. It is a Write and a wait in one, and what it spares is the try in between that would
// find nothing. It may return before anything came. n is what the system took of p;
// ErrUnfit, and 0, is told before it takes any.
func (c *Conn) Ask(p []byte, slow time.Duration) (n int, err error) {
	c.write.buf, c.write.n, c.write.errno = p, 0, 0
	c.ask.begun, c.ask.unfit = false, false
	err = c.raw.Read(c.ask.next)
	c.write.buf = nil
	switch n = c.write.n; {
	case c.ask.unfit:
		return 0, ErrUnfit
	case err != nil:
		return n, err
	case c.write.errno == syscall.EAGAIN:
		more, err := c.Write(p[n:], slow)
		return n + more, err
	case c.write.errno != 0:
		return n, os.NewSyscallError("write", c.write.errno)
	}
	return n, nil
}

func (c *Conn) askOnce(fd uintptr) bool {
	if c.ask.begun {
		return true // something has come
	}
	c.ask.begun = true
	if c.look(fd); c.peek.errno != syscall.EAGAIN {
		c.ask.unfit = true
		return true
	}
	for c.write.n < len(c.write.buf) {
		n, errno := call(syscall.SYS_WRITE, fd, c.write.buf[c.write.n:], 0)
		if c.write.n, c.write.errno = c.write.n+n, errno; errno != 0 {
			return true
		}
	}
	// What comes from here on is told by the poller, which was made ready before the write.
	return false
}

func (c *Conn) look(fd uintptr) {
	c.peek.n, c.peek.errno = call(syscall.SYS_RECVFROM, fd, c.peek.byte[:], syscall.MSG_PEEK)
}

// Write all of p, each part of it within slow. n is what the system took of it.
func (c *Conn) Write(p []byte, slow time.Duration) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.write.buf, c.write.n, c.write.slow, c.write.errno = p, 0, slow, 0
	err = c.raw.Write(c.write.next)
	c.write.buf = nil
	if c.write.limited { // and would be at an end when something is written next
		c.write.limited = false
		err = errors.Join(err, c.net.SetWriteDeadline(time.Time{}))
	}
	if err == nil && c.write.errno != 0 {
		err = os.NewSyscallError("write", c.write.errno)
	}
	return c.write.n, err
}

func (c *Conn) writeSome(fd uintptr) bool {
	for c.write.n < len(c.write.buf) {
		n, errno := call(syscall.SYS_WRITE, fd, c.write.buf[c.write.n:], 0)
		c.write.n, c.write.errno = c.write.n+n, errno
		if errno == syscall.EAGAIN {
			// Most writes never wait, and need no deadline.
			c.write.limited = true
			return c.net.SetWriteDeadline(time.Now().Add(c.write.slow)) != nil
		}
		if errno != 0 {
			break
		}
	}
	return true
}

// call one that does not block.
func call(number, fd uintptr, p []byte, flags int) (int, syscall.Errno) {
	for {
		n, errno := transfer(number, fd, p, flags)
		if errno != syscall.EINTR {
			return max(n, 0), errno
		}
	}
}
