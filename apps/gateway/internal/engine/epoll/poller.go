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
	// harvest is how many events a thread takes at once. More would wait behind a thread that the
	// system has stopped, which shows in p99. Fewer cost requests a second.
	harvest = 16
	// share is how long a thread goes on before others of the machine get a turn on its
	// processor: the system would take it only after milliseconds, in the midst of requests. A
	// shorter share costs requests a second, a longer one shows in p99.
	share = 800 * time.Microsecond
	// threads of one poller: whichever is free takes what came next, first come, first served.
	threads = 2
)

// poller tells connections what came, in the order that it came in, and runs the tasks that
// waited for it. The runtime's own wakes who waited for the network newest first, so that under
// load one waits for several rounds of others; it forgets what came before somebody waited for
// it, so that everybody has to try first; and who is woken there has another thread woken to
// look whether there is more.
type poller struct {
	fd int

	mu    sync.Mutex
	conns map[int32]*Conn
}

// thread is one that asks a poller's socket what came.
type thread struct {
	*poller
	events [harvest]unix.EpollEvent
	// found are those of events.
	found [harvest]*Conn
	// yielded is when others got a turn last.
	yielded time.Time
}

// pollers are those of the process, for as long as it runs: they are made when the first is
// asked for, and given in turn.
var pollers struct {
	mu       sync.Mutex
	all      []*poller
	next     int
	reserved bool
}

// Start starts the pollers, unless they run. It returns why they cannot.
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

func aPoller() (*poller, error) {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	if err := ensurePollers(); err != nil {
		return nil, err
	}
	pollers.next = (pollers.next + 1) % len(pollers.all)
	return pollers.all[pollers.next], nil
}

// Reserve starts the pollers and lets the runtime use one processor more, once. A poller that waits in the
// system keeps its processor for milliseconds. The rest of the process would wait for that at times when
// all pollers do. It changes GOMAXPROCS for the whole process, so only a program may ask for it.
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
	all := make([]*poller, (processors+threads-1)/threads)
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
		go (&thread{poller: all[i/threads]}).run()
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

// removeConn removes a connection that is closed next.
func (p *poller) removeConn(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, int32(c.fd))
}

// releaseConn gives the connection's socket up, so that the caller can use it without the poller.
func (p *poller) releaseConn(c *Conn) error {
	p.removeConn(c)
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, c.fd, nil))
}

func (p *thread) run() {
	for {
		n, errno := retryInterrupted(func() (int, syscall.Errno) { return waitEvents(p.fd, p.events[:]) })
		if errno != 0 {
			// Which cannot be, and without it no connection goes on.
			panic(os.NewSyscallError("epoll_pwait", errno))
		}
		p.interrupt(n)
		if now := time.Now(); now.Sub(p.yielded) >= share {
			p.yielded = now
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

func (p *thread) interrupt(n int) {
	p.mu.Lock()
	for i := range n {
		p.found[i] = p.conns[p.events[i].Fd]
	}
	p.mu.Unlock()
	for i, c := range p.found[:n] {
		p.found[i] = nil
		if c == nil { // it was closed just now
			continue
		}
		if next := c.applyEvents(p.events[i].Events); next != nil {
			next.runUntilWait(true)
		}
	}
}
