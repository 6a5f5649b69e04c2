//go:build linux

// Package epoll reads and writes TCP connections with as little between as there can be: a
// call to the system when there is something to do, and a poller of its own that says when
// that is, and goes on with the Task that waited for it. A call that does not block is made
// without telling the scheduler, which costs more than it takes; that, and that nothing is
// copied or allocated, is all there is to it.
package epoll

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
)

// errNoSocket: the connection has no socket of its own, as one by TLS.
var errNoSocket = errors.New("the connection is not a socket's")

// Conn is a TCP connection. It belongs to who closes or releases it; one may read and one write
// at a time. Cut, Watch and the deadline are anybody's.
type Conn struct {
	fd     int
	poller *poller
	// state is what is known of the socket, as bits. What is not true any more costs a call
	// that finds nothing.
	state atomic.Uint32
	// heard makes a blocked Read look at state again, and room a blocked Write. A task that
	// reads is woken instead.
	heard, room chan struct{}
	task        atomic.Pointer[Task]

	mu sync.Mutex
	// over: the socket was released, or is closed.
	over bool
	// gone is the function that Watch was given; nil: none.
	gone func()
	// until is the deadline of reads; zero: none. timer looks at it at armed; zero: never.
	until, armed time.Time
	timer        *time.Timer
}

// States of a Conn.
const (
	// readable and writable: as far as is known.
	readable uint32 = 1 << iota
	writable
	// ended: the other side has ended it, or its half of it, or something is wrong with it, so
	// that reading does not wait.
	ended
	// late: the deadline has passed.
	late
	// cut: reading and writing have ended.
	cut
	// watching: gone may be set.
	watching
)

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

// Open takes the connection over. After an error it is as it was.
func Open(conn net.Conn) (*Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errNoSocket
	}
	poller, err := aPoller()
	if err != nil {
		return nil, err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	// The socket is tried before it is waited for: something may have come by now.
	c := &Conn{poller: poller, heard: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	c.state.Store(readable)
	var duplicated error
	err = raw.Control(func(fd uintptr) { c.fd, duplicated = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, os.NewSyscallError("fcntl", duplicated)); err != nil {
		return nil, err
	}
	if err := c.poller.addConn(c); err != nil {
		return nil, errors.Join(err, unix.Close(c.fd))
	}
	_ = tcp.Close() // which is the runtime's side of it; the socket is c's now
	return c, nil
}

// Close the connection.
func (c *Conn) Close() error {
	if !c.endOnce() {
		return net.ErrClosed
	}
	c.poller.removeConn(c)
	return os.NewSyscallError("close", unix.Close(c.fd))
}

// Release is the other way round than Open.
func (c *Conn) Release() (net.Conn, error) {
	if !c.endOnce() {
		return nil, net.ErrClosed
	}
	err := c.poller.releaseConn(c)
	file := os.NewFile(uintptr(c.fd), "tcp")
	conn, opened := net.FileConn(file)
	if err = errors.Join(err, opened, file.Close()); err != nil {
		if conn != nil {
			_ = conn.Close() // it is not returned
		}
		return nil, err
	}
	return conn, nil
}

// endOnce marks the connection as ended, and reports whether this call did so.
func (c *Conn) endOnce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.over, c.gone = true, nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.state.Or(cut)
	return true
}

// Cut ends what is read and written, by whomever. It still has to be closed.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.state.Or(cut)
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // what is not connected any more has nothing to shut down
	c.wakeReader()
	signal(c.room)
}

// Give the connection to a task, which alone reads and writes from then on; nil: to any
// goroutine that does.
func (c *Conn) Give(t *Task) { c.task.Store(t) }

// CloseWrite ends what the other side hears.
func (c *Conn) CloseWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(c.fd, unix.SHUT_WR))
}

// SetReadDeadline of Read and ReadInto; what waits past it fails with os.ErrDeadlineExceeded.
// Zero is none.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return net.ErrClosed
	}
	c.until = t
	c.state.And(^late)
	// A timer that is early looks at the deadline again, which is cheaper than to move it for
	// each request.
	if !t.IsZero() && (c.armed.IsZero() || c.armed.After(t)) {
		c.armDeadline(time.Until(t))
	}
	return nil
}

// armDeadline makes the poller look at the deadline after that time.
func (c *Conn) armDeadline(in time.Duration) {
	switch c.armed = c.until; {
	case in <= 0:
		c.armed = time.Time{}
		if c.timer != nil {
			c.timer.Stop()
		}
		c.state.Or(late)
		c.wakeReader()
	case c.timer == nil:
		c.timer = time.AfterFunc(in, c.checkDeadline)
	default:
		c.timer.Reset(in)
	}
}

func (c *Conn) checkDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = time.Time{}
	if !c.over && !c.until.IsZero() {
		c.armDeadline(time.Until(c.until))
	}
}

// applyEvents is called by the poller, and returns the task that the poller has to run, if there is one.
func (c *Conn) applyEvents(events uint32) (next *Task) {
	var state uint32
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		state = readable
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		state |= ended
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		state |= writable
	}
	before := c.state.Or(state)
	if state&^before&writable != 0 {
		signal(c.room)
	}
	if state&readable != 0 {
		next = c.heardBy()
		if before&watching != 0 {
			c.noteWatched()
		}
	}
	return next
}

// wakeReader makes a blocked Read check c.state again.
func (c *Conn) wakeReader() {
	if t := c.heardBy(); t != nil {
		go t.runUntilWait(false)
	}
}

// heardBy is hear by who runs the task, if there is one to be run.
func (c *Conn) heardBy() *Task {
	t := c.task.Load()
	if t == nil {
		signal(c.heard)
		return nil
	}
	if t.wakeUp() {
		return t
	}
	return nil
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Watch calls gone, once, when the other side has ended the connection, until Unwatch. Who has
// sent something that was not read is there, and not watched any more. gone may not wait for
// anything: who else is told of something waits for it.
func (c *Conn) Watch(gone func()) {
	c.mu.Lock()
	c.gone = gone
	c.mu.Unlock()
	if c.state.Or(watching)&(readable|ended) != 0 { // which came before
		c.noteWatched()
	}
}

// Unwatch ends the watch. After it gone is not called.
func (c *Conn) Unwatch() {
	if c.state.Load()&watching == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = nil
	c.state.And(^watching)
}

func (c *Conn) noteWatched() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone == nil || c.over {
		return
	}
	n, errno := c.peekByte()
	if n == 0 && errno != syscall.EAGAIN {
		c.gone()
		c.gone = nil
		c.state.And(^watching) // and not before: who ends the watch waits for gone
	}
}

// awaitReadable waits until there is something to read.
func (c *Conn) awaitReadable() error {
	t := c.task.Load()
	for {
		switch state := c.state.Load(); {
		case state&(late|cut|readable|ended) != 0:
			switch {
			case state&cut != 0:
				return net.ErrClosed
			case state&late != 0:
				return os.ErrDeadlineExceeded
			case t != nil:
				t.countRead()
			}
			return nil
		case t != nil:
			t.parkUntilWoken()
		default:
			<-c.heard
		}
	}
}

// Read what there is, or wait for it.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if err := c.awaitReadable(); err != nil {
			return 0, err
		}
		if n, err := c.takeBytes(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// ReadInto is Read into one of the buffers, which is taken when there is something for it, and
// returned unless there is an error.
func (c *Conn) ReadInto(from *Buffers) (*[]byte, int, error) {
	for {
		if err := c.awaitReadable(); err != nil {
			return nil, 0, err
		}
		p := from.Get()
		n, err := c.takeBytes(*p)
		if n > 0 {
			return p, n, nil
		}
		from.Put(p)
		if err != nil {
			return nil, 0, err
		}
	}
}

// takeBytes reads what is there. It returns 0 without an error if nothing is.
func (c *Conn) takeBytes(p []byte) (int, error) {
	c.state.And(^readable) // and not later: what comes from here on is told again
	n, errno := retryInterrupted(func() (int, syscall.Errno) { return receive(c.fd, p, 0) })
	switch {
	case errno == syscall.EAGAIN:
		c.clearEnded()
		return 0, nil
	case errno != 0:
		c.state.Or(ended)
		return 0, os.NewSyscallError("read", errno)
	case n == 0:
		c.state.Or(ended)
		return 0, io.EOF
	case n == len(p):
		c.state.Or(readable) // there may be more
	}
	return n, nil
}

// clearEnded clears ended after a read that found nothing: the event was about an earlier socket with
// the same descriptor. It keeps ended if the poller has set readable since take cleared it. That
// event may be about the last bytes and the end at once, and there is no second one for the end.
func (c *Conn) clearEnded() {
	for {
		state := c.state.Load()
		if state&readable != 0 || c.state.CompareAndSwap(state, state&^ended) {
			return
		}
	}
}

// peekByte returns how many bytes can be read, at most 1; 0 without an error: the end.
func (c *Conn) peekByte() (n int, errno syscall.Errno) {
	var p [1]byte
	return retryInterrupted(func() (int, syscall.Errno) { return receive(c.fd, p[:], syscall.MSG_PEEK) })
}

// Quiet reports whether the connection has not ended and nothing came that was not read. Without
// sure, true is only as far as the poller has told, which may be late by the time that the poller
// takes for a round of other connections.
func (c *Conn) Quiet(sure bool) bool {
	switch state := c.state.Load(); {
	case state&cut != 0:
		return false
	case state&(readable|ended) == 0 && !sure:
		return true
	}
	_, errno := c.peekByte()
	return errno == syscall.EAGAIN
}

// Write all of p, each part of it within slow. n is what the system took of it.
func (c *Conn) Write(p []byte, slow time.Duration) (n int, err error) {
	return c.WritePaced(p, slow, nil)
}

// WritePaced is Write to a side that has to take p at a pace.
func (c *Conn) WritePaced(p []byte, slow time.Duration, at *pace.Pace) (n int, err error) {
	for n < len(p) {
		if c.state.Load()&cut != 0 {
			return n, net.ErrClosed
		}
		k, errno := retryInterrupted(func() (int, syscall.Errno) { return send(c.fd, p[n:]) })
		if n += k; at != nil {
			at.Moved(k, 0)
		}
		switch {
		case errno == 0:
		case errno != syscall.EAGAIN:
			return n, os.NewSyscallError("write", errno)
		case c.state.And(^writable)&writable != 0: // what room there is from here on is told
		default:
			if err := c.awaitRoom(slow, at); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (c *Conn) awaitRoom(slow time.Duration, at *pace.Pace) (err error) {
	c.task.Load().Blocking(func() {
		if at != nil {
			slow = at.Left(0, slow)
			defer func(begun time.Time) { at.Moved(0, time.Since(begun)) }(time.Now())
		}
		limit := time.NewTimer(slow)
		defer limit.Stop()
		for c.state.Load()&(writable|cut) == 0 {
			select {
			case <-c.room:
			case <-limit.C:
				err = os.ErrDeadlineExceeded
				return
			}
		}
	})
	return err
}

// retryInterrupted repeats a call that a signal interrupted.
func retryInterrupted(call func() (int, syscall.Errno)) (int, syscall.Errno) {
	for {
		if n, errno := call(); errno != syscall.EINTR {
			return max(n, 0), errno
		}
	}
}
