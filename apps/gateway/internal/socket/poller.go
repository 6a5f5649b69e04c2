//go:build linux

package socket

import (
	"errors"
	"fmt"
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
	// share is how long connections are told of what came before others of the machine get a
	// turn. On two cores that everything was on, half of it cost one in twenty requests a second
	// and had the same p99, and 2 ms had a third more of p99.
	share = 800 * time.Microsecond
	// cores to one poller: what it has to do for each event is a small part of what a request
	// takes.
	cores = 8
)

// poller tells connections what came, in the order that it came in. The runtime's own wakes
// who waited for the network newest first, so that under load one waits for several rounds
// of others; and it forgets what came before somebody waited for it, so that everybody has to
// try first. This one waits for its events by the runtime's, as for a file's.
type poller struct {
	raw syscall.RawConn
	fd  int
	// events are the n that were harvested last; failed is why none could be.
	events [harvested]unix.EpollEvent
	n      int
	failed error
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
	if err := unix.SetNonblock(fd, true); err != nil { // which has os wait for it by the runtime's poller
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn() // which keeps the file
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &poller{raw: raw, fd: fd, conns: map[int32]*Conn{}}, nil
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
	harvest := p.harvest
	for {
		if err := p.raw.Read(harvest); err != nil || p.failed != nil {
			// Neither can be, and without it no connection goes on.
			panic(fmt.Sprintf("epoll: %v, %v", err, p.failed))
		}
		p.tell()
		// Those who were told go first, and then whoever else runs here: the system would take
		// the turn away from us only after milliseconds, in the midst of requests.
		runtime.Gosched()
		if now := time.Now(); now.Sub(p.yielded) >= share {
			p.yielded = now
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// harvest what came; false: nothing did.
func (p *poller) harvest(fd uintptr) bool {
	var errno syscall.Errno
	p.n, errno = again(func() (int, syscall.Errno) { return poll(int(fd), p.events[:]) })
	if errno != 0 {
		p.failed = os.NewSyscallError("epoll_pwait", errno)
	}
	return p.n > 0 || p.failed != nil
}

func (p *poller) tell() {
	p.mu.Lock()
	for i := range p.n {
		p.found[i] = p.conns[p.events[i].Fd]
	}
	p.mu.Unlock()
	for i, c := range p.found[:p.n] {
		if c != nil { // and not closed just now
			c.told(p.events[i].Events)
		}
		p.found[i] = nil
	}
}
