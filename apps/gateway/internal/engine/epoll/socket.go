//go:build linux

// Package epoll reads and writes TCP connections with few steps between a request handler and the system. It
// has its own poller, which finds out when a connection can be read or written, and then runs the Task that
// waited for it. System calls that do not block are made without telling Go's scheduler, because that
// would take longer than the calls. The package neither copies nor allocates memory for a read or a write.
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

// errNoSocket is the error of Open for a connection without a socket of its own, such as a *tls.Conn.
var errNoSocket = errors.New("the connection is not a TCP socket")

// Conn is a TCP connection. Its owner calls Close or Release once. One goroutine may read and one may write at a
// time. Cut, Watch, Unwatch and SetReadDeadline are safe for concurrent use.
type Conn struct {
	fd     int
	poller *poller
	// state has the bits below. A readable or writable bit may be out of date, which costs a system call that
	// moves no bytes.
	state atomic.Uint32
	// readWake makes a blocked Read check state again, and writeWake a blocked Write. If a task reads, the task
	// is woken instead of readWake.
	readWake, writeWake chan struct{}
	task                atomic.Pointer[Task]

	mu sync.Mutex
	// closed is set by Close and by Release.
	closed bool
	// onEnd is the function that Watch calls. nil: none.
	onEnd func()
	// deadline is the deadline of reads. Zero: none. timer checks it at timerAt. Zero: never.
	deadline, timerAt time.Time
	timer             *time.Timer
}

// These are the bits of Conn.state.
const (
	// readable and writable: a read or a write may succeed without a wait.
	readable uint32 = 1 << iota
	writable
	// ended: a read does not wait, because the other side has ended the connection or its sending direction, or because
	// the connection has failed.
	ended
	// pastDeadline: the deadline of reads has passed.
	pastDeadline
	// cut: reads and writes fail.
	cut
	// watching: onEnd may be set.
	watching
)

// Buffers is a pool of buffers for reads. Connections that wait hold none.
type Buffers struct {
	// Size is the size of each buffer in bytes.
	Size int
	pool sync.Pool
}

// Get returns a buffer of Size bytes.
func (b *Buffers) Get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, b.Size)
	return &p
}

// Put gives a buffer back. It drops a buffer of another size.
func (b *Buffers) Put(p *[]byte) {
	if len(*p) == b.Size {
		b.pool.Put(p)
	}
}

// Open takes over the socket of conn and closes conn. After an error, conn is unchanged.
func Open(conn net.Conn) (*Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errNoSocket
	}
	poller, err := nextPoller()
	if err != nil {
		return nil, err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	// The first Read tries the socket before it waits, because bytes may have come already.
	c := &Conn{poller: poller, readWake: make(chan struct{}, 1), writeWake: make(chan struct{}, 1)}
	c.state.Store(readable)
	var duplicated error
	err = raw.Control(func(fd uintptr) { c.fd, duplicated = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, os.NewSyscallError("fcntl", duplicated)); err != nil {
		return nil, err
	}
	if err := c.poller.addConn(c); err != nil {
		return nil, errors.Join(err, unix.Close(c.fd))
	}
	_ = tcp.Close() // closes the runtime's descriptor; c has a duplicate of it
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if !c.markClosed() {
		return net.ErrClosed
	}
	c.poller.removeConn(c)
	return os.NewSyscallError("close", unix.Close(c.fd))
}

// Release is the reverse of Open: it returns the socket as a connection of package net, and c cannot be used any
// more.
func (c *Conn) Release() (net.Conn, error) {
	if !c.markClosed() {
		return nil, net.ErrClosed
	}
	err := c.poller.releaseConn(c)
	file := os.NewFile(uintptr(c.fd), "tcp")
	conn, openErr := net.FileConn(file)
	if err = errors.Join(err, openErr, file.Close()); err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return nil, err
	}
	return conn, nil
}

// markClosed marks the connection as closed, and reports whether it was open.
func (c *Conn) markClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed, c.onEnd = true, nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.state.Or(cut)
	return true
}

// Cut makes all reads and writes fail, including reads and writes that wait. The connection must still be closed.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.state.Or(cut)
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // it fails if the socket is not connected any more
	c.wakeReader()
	signalOn(c.writeWake)
}

// Give makes t the only reader and writer of the connection. nil: any goroutine may read and write again.
func (c *Conn) Give(t *Task) { c.task.Store(t) }

// CloseWrite ends the stream of bytes to the other side, which may still send.
func (c *Conn) CloseWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(c.fd, unix.SHUT_WR))
}

// SetReadDeadline sets the time at which Read and ReadInto fail with os.ErrDeadlineExceeded, including calls that
// already wait. Zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.deadline = t
	c.state.And(^pastDeadline)
	// A timer that fires before the deadline checks it and is set again. That is cheaper than to set the timer
	// for each request.
	if !t.IsZero() && (c.timerAt.IsZero() || c.timerAt.After(t)) {
		c.armDeadline(time.Until(t))
	}
	return nil
}

// armDeadline sets the timer to the deadline, which is left from now. If it has passed, armDeadline wakes the
// reader. The caller holds c.mu.
func (c *Conn) armDeadline(left time.Duration) {
	switch c.timerAt = c.deadline; {
	case left <= 0:
		c.timerAt = time.Time{}
		if c.timer != nil {
			c.timer.Stop()
		}
		c.state.Or(pastDeadline)
		c.wakeReader()
	case c.timer == nil:
		c.timer = time.AfterFunc(left, c.checkDeadline)
	default:
		c.timer.Reset(left)
	}
}

func (c *Conn) checkDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timerAt = time.Time{}
	if !c.closed && !c.deadline.IsZero() {
		c.armDeadline(time.Until(c.deadline))
	}
}

// applyEvents sets the bits of the events and wakes what waits for them. The poller calls it, and must run the
// task that it returns, if any.
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
		signalOn(c.writeWake)
	}
	if state&readable != 0 {
		next = c.signalReader()
		if before&watching != 0 {
			c.checkWatch()
		}
	}
	return next
}

// wakeReader makes a blocked Read check c.state again.
func (c *Conn) wakeReader() {
	if t := c.signalReader(); t != nil {
		go t.runUntilWait(false)
	}
}

// signalReader is wakeReader for a caller that runs the task. It returns nil if there is no task to run.
func (c *Conn) signalReader() *Task {
	t := c.task.Load()
	if t == nil {
		signalOn(c.readWake)
		return nil
	}
	if t.wakeUp() {
		return t
	}
	return nil
}

// signalOn sends to ch, which holds one signal, or does nothing if the last one was not received yet.
func signalOn(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Watch calls onEnd once when the other side ends the connection, unless Unwatch is called before. While bytes of
// the other side are unread, onEnd is not called, even if the other side ended the connection after them.
// onEnd must not block, because other connections of the poller wait for it.
func (c *Conn) Watch(onEnd func()) {
	c.mu.Lock()
	c.onEnd = onEnd
	c.mu.Unlock()
	if c.state.Or(watching)&(readable|ended) != 0 { // the end may have come already
		c.checkWatch()
	}
}

// Unwatch ends the watch. If onEnd is running, Unwatch waits for it. onEnd is not called after Unwatch.
func (c *Conn) Unwatch() {
	if c.state.Load()&watching == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onEnd = nil
	c.state.And(^watching)
}

// checkWatch calls onEnd if the other side has ended the connection and no bytes are unread.
func (c *Conn) checkWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.onEnd == nil || c.closed {
		return
	}
	n, errno := c.peekByte()
	if n == 0 && errno != syscall.EAGAIN {
		c.onEnd()
		c.onEnd = nil
		c.state.And(^watching) // after onEnd, so that Unwatch waits for it
	}
}

// awaitReadable waits until a read would not wait. It fails if the connection was cut or the deadline has passed.
func (c *Conn) awaitReadable() error {
	t := c.task.Load()
	for {
		switch state := c.state.Load(); {
		case state&(pastDeadline|cut|readable|ended) != 0:
			switch {
			case state&cut != 0:
				return net.ErrClosed
			case state&pastDeadline != 0:
				return os.ErrDeadlineExceeded
			case t != nil:
				t.countRead()
			}
			return nil
		case t != nil:
			t.parkUntilWoken()
		default:
			<-c.readWake
		}
	}
}

// Read reads at least one byte into p, and waits for it if necessary.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if err := c.awaitReadable(); err != nil {
			return 0, err
		}
		if n, err := c.readAvailable(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// ReadInto is Read into a buffer of the pool. It takes the buffer only when there is something to read. The caller
// gives the returned buffer back. After an error there is none.
func (c *Conn) ReadInto(pool *Buffers) (*[]byte, int, error) {
	for {
		if err := c.awaitReadable(); err != nil {
			return nil, 0, err
		}
		p := pool.Get()
		n, err := c.readAvailable(*p)
		if n > 0 {
			return p, n, nil
		}
		pool.Put(p)
		if err != nil {
			return nil, 0, err
		}
	}
}

// readAvailable reads without waiting. It returns 0 and no error if there is nothing to read.
func (c *Conn) readAvailable(p []byte) (int, error) {
	c.state.And(^readable) // before the read, because bytes that come during it set readable again
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
// the same descriptor. It keeps ended if the poller has set readable since readAvailable cleared it.
// That event may be about the last bytes and the end at once, and there is no second event for the end.
func (c *Conn) clearEnded() {
	for {
		state := c.state.Load()
		if state&readable != 0 || c.state.CompareAndSwap(state, state&^ended) {
			return
		}
	}
}

// peekByte returns how many bytes can be read, at most 1. 0 without an error means that the other side has ended
// the connection.
func (c *Conn) peekByte() (n int, errno syscall.Errno) {
	var p [1]byte
	return retryInterrupted(func() (int, syscall.Errno) { return receive(c.fd, p[:], syscall.MSG_PEEK) })
}

// Quiet reports whether the connection is open and has no unread bytes. If sure is false, Quiet may rely on the
// poller's last event instead of a system call. Then it may report true although the poller has yet to handle an
// event of this connection.
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

// Write writes all of p. It fails with os.ErrDeadlineExceeded if the system takes no bytes for maxWait. n is the
// number of bytes that the system took.
func (c *Conn) Write(p []byte, maxWait time.Duration) (n int, err error) {
	return c.WritePaced(p, maxWait, nil)
}

// WritePaced is Write to a client that has to take the bytes at a minimum rate. clientPace may be nil.
func (c *Conn) WritePaced(p []byte, maxWait time.Duration, clientPace *pace.Pace) (n int, err error) {
	for n < len(p) {
		if c.state.Load()&cut != 0 {
			return n, net.ErrClosed
		}
		k, errno := retryInterrupted(func() (int, syscall.Errno) { return send(c.fd, p[n:]) })
		if n += k; clientPace != nil {
			clientPace.Moved(k, 0)
		}
		switch {
		case errno == 0:
		case errno != syscall.EAGAIN:
			return n, os.NewSyscallError("write", errno)
		case c.state.And(^writable)&writable != 0: // try again with the bit cleared, because room from here on sets it
		default:
			if err := c.awaitRoom(maxWait, clientPace); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// awaitRoom waits until the system has room for bytes to send, or until the connection is cut.
func (c *Conn) awaitRoom(maxWait time.Duration, clientPace *pace.Pace) (err error) {
	c.task.Load().Blocking(func() {
		if clientPace != nil {
			maxWait = clientPace.Left(0, maxWait)
			defer func(begun time.Time) { clientPace.Moved(0, time.Since(begun)) }(time.Now())
		}
		timer := time.NewTimer(maxWait)
		defer timer.Stop()
		for c.state.Load()&(writable|cut) == 0 {
			select {
			case <-c.writeWake:
			case <-timer.C:
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
