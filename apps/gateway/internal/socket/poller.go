//go:build linux

package socket

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// harvested is how many events are taken at once.
	harvested = 256
	// share is how long a poller goes on before others of the machine get a turn on its
	// processor: the system would take it only after milliseconds, in the midst of requests. On
	// two cores that everything was on, p99 was a fifth to two thirds higher without. Whoever
	// else of the process has to go on is taken by another thread meanwhile.
	share = 300 * time.Microsecond
	// cores to one poller: what there is to do goes to it first come, first served, and the rest
	// of the process, and of the system, have the other half. With one for each of two cores that
	// everything was on, p99 was a fifth higher, and there were one in twenty requests a second
	// more.
	cores = 2
)

// poller tells connections what came, in the order that it came in, and runs the tasks that
// waited for it. The runtime's own wakes who waited for the network newest first, so that under
// load one waits for several rounds of others; it forgets what came before somebody waited for
// it, so that everybody has to try first; and who is woken there has another thread woken to
// look whether there is more.
type poller struct {
	fd     int
	events [harvested]unix.EpollEvent
	// yielded is when others got a turn last.
	yielded time.Time

	mu    sync.Mutex
	conns map[int32]*Conn
	// found are those of events.
	found [harvested]*Conn
}

// pollers are those of the process, for as long as it runs: they are made when the first is
// asked for, and given in turn.
var pollers struct {
	mu   sync.Mutex
	all  []*poller
	next int
}

func aPoller() (*poller, error) {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	for len(pollers.all) < (runtime.GOMAXPROCS(0)+cores-1)/cores {
		p, err := newPoller()
		if err != nil {
			return nil, err
		}
		pollers.all = append(pollers.all, p)
		go p.run()
	}
	pollers.next = (pollers.next + 1) % len(pollers.all)
	return pollers.all[pollers.next], nil
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &poller{fd: fd, conns: map[int32]*Conn{}}, nil
}

func (p *poller) add(c *Conn) error {
	p.mu.Lock()
	p.conns[int32(c.fd)] = c
	p.mu.Unlock()
	err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(c.fd),
	})
	if err != nil {
		p.remove(c)
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// remove a connection that is closed next.
func (p *poller) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, int32(c.fd))
}

// leave has the connection's socket be somebody else's.
func (p *poller) leave(c *Conn) error {
	p.remove(c)
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, c.fd, nil))
}

func (p *poller) run() {
	for {
		n, errno := restarted(func() (int, syscall.Errno) { return poll(p.fd, p.events[:]) })
		if errno != 0 {
			// Which cannot be, and without it no connection goes on.
			panic(os.NewSyscallError("epoll_pwait", errno))
		}
		p.tell(n)
		if now := time.Now(); now.Sub(p.yielded) >= share {
			p.yielded = now
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

func (p *poller) tell(n int) {
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
		if next := c.told(p.events[i].Events); next != nil {
			next.run(true)
		}
	}
}
