//go:build linux

package epoll

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxEvents is how many events a thread takes at once. If a thread took more, they would wait whenever
	// the system stops that thread, which shows in p99. If it took fewer, throughput would fall.
	maxEvents = 16
	// timeSlice is how long a thread works before it yields its processor to other threads of the machine.
	// Without the yield, the system takes the processor away only after milliseconds, in the middle of
	// requests. A shorter slice costs throughput, and a longer one shows in p99.
	timeSlice = 800 * time.Microsecond
	// threadsPerPoller is how many threads wait on one poller. A free thread takes the next events.
	threadsPerPoller = 2
)

// poller passes events to connections in the order in which the events came, and runs the tasks that waited for
// them. Under load, the poller of Go's runtime is slower:
//
//   - It wakes the newest waiting goroutine first, so an older one may wait while newer goroutines run several times.
//   - It forgets events that came before a goroutine waits, so each goroutine has to try its call first.
//   - Each woken goroutine makes the scheduler wake another thread, which looks for more work.
type poller struct {
	fd int

	mu    sync.Mutex
	conns map[int32]*Conn
}

// thread waits for a poller's events and handles them. It runs in a goroutine.
type thread struct {
	*poller
	events [maxEvents]unix.EpollEvent
	// ready has the connection of each event.
	ready [maxEvents]*Conn
	// lastYield is when the thread last yielded its processor.
	lastYield time.Time
}

// pollers has the pollers of the process. They start when the first one is needed, and run until the process
// ends. nextPoller returns them in turn.
var pollers struct {
	mu       sync.Mutex
	all      []*poller
	next     int
	reserved bool
}

// Start starts the pollers unless they run. An error says why epoll cannot be used.
func Start() error {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	return ensurePollers()
}

// ensurePollers starts the pollers unless they run. Called with the lock held.
func ensurePollers() (err error) {
	if len(pollers.all) == 0 {
		pollers.all, err = startPollers()
	}
	return err
}

func nextPoller() (*poller, error) {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	if err := ensurePollers(); err != nil {
		return nil, err
	}
	pollers.next = (pollers.next + 1) % len(pollers.all)
	return pollers.all[pollers.next], nil
}

// Reserve starts the pollers. Its first call also lets the runtime use one more processor, because a poller
// thread that waits in a system call keeps its processor for milliseconds. When all poller threads wait, the
// rest of the process uses the additional one. Reserve changes GOMAXPROCS of the whole process, so only a
// program may call it, and not a part of a program.
func Reserve() error {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	if err := ensurePollers(); err != nil {
		return err
	}
	if !pollers.reserved {
		pollers.reserved = true
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
	return nil
}

// startPollers starts a thread for each processor that the runtime uses. After an error nothing has changed.
func startPollers() ([]*poller, error) {
	processors := runtime.GOMAXPROCS(0)
	all := make([]*poller, (processors+threadsPerPoller-1)/threadsPerPoller)
	for i := range all {
		p, err := newPoller()
		if err != nil {
			for _, made := range all[:i] {
				err = errors.Join(err, unix.Close(made.fd))
			}
			return nil, err
		}
		all[i] = p
	}
	for i := range processors {
		go (&thread{poller: all[i/threadsPerPoller]}).run()
	}
	return all, nil
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &poller{fd: fd, conns: map[int32]*Conn{}}, nil
}

func (p *poller) addConn(c *Conn) error {
	p.mu.Lock()
	p.conns[int32(c.fd)] = c
	p.mu.Unlock()
	err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(c.fd),
	})
	if err != nil {
		p.removeConn(c)
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// removeConn removes a connection that the caller closes next. Closing its socket ends its events.
func (p *poller) removeConn(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, int32(c.fd))
}

// releaseConn removes a connection whose socket stays open, so that the caller can use it without the poller.
func (p *poller) releaseConn(c *Conn) error {
	p.removeConn(c)
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, c.fd, nil))
}

func (t *thread) run() {
	for {
		n, errno := retryInterrupted(func() (int, syscall.Errno) { return waitEvents(t.fd, t.events[:]) })
		if errno != 0 {
			// This is a fault of this package, and the poller's connections cannot continue without events.
			panic(os.NewSyscallError("epoll_pwait", errno))
		}
		t.dispatchEvents(n)
		if now := time.Now(); now.Sub(t.lastYield) >= timeSlice {
			t.lastYield = now
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// dispatchEvents passes the first n of t.events to their connections, and runs the tasks that waited for them.
func (t *thread) dispatchEvents(n int) {
	t.mu.Lock()
	for i := range n {
		t.ready[i] = t.conns[t.events[i].Fd]
	}
	t.mu.Unlock()
	for i, c := range t.ready[:n] {
		t.ready[i] = nil
		if c == nil { // it was closed after the event
			continue
		}
		if next := c.applyEvents(t.events[i].Events); next != nil {
			next.runUntilWait(true)
		}
	}
}
