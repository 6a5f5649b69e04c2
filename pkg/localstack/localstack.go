// Package localstack runs the servers that Windlass stands on (MariaDB and
// Restate) and the Kubernetes that a region may have as private child processes on
// a developer's machine: for `windlass dev`, and for tests that want the real thing.
//
//	mariadb, restate   Ensure finds or installs the program, Start runs one
//	kubelab            the same for a Kubernetes, built from this repository
//	stacktest          a database, a Restate, for a test
//	cmd/withstack      runs any command with both at hand
//	proc               child processes that a later run can find again
//	flock              a lock between processes
//
// What keeps it honest:
//
//   - Nothing is half there. Whatever takes time (an npm install, a new data
//     directory) is made under a temporary name and renamed into place at its
//     end, so a kill -9 leaves either nothing or all of it.
//   - Nothing is started twice on one directory. Each server writes down its
//     pid and the time it started before anybody relies on it; the next Start
//     on that directory stops such a stray first. A pid alone is never trusted.
//   - Ready means that the server answered the protocol it is for.
package localstack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/pkg/flock"
)

// Free ports are looked for here first. The range is above the usual ports of services, and
// below those that the system gives to outgoing connections (from 32768 on Linux, from 49152
// elsewhere). An outgoing connection could take a port between the check and the start of its
// server.
const (
	lowestFree  = 10_000
	highestFree = 32_767
)

// FreePort returns a TCP port of 127.0.0.1 that nothing listens on. It is not
// reserved: who binds it late must be ready to lose it and ask again.
func FreePort() (int, error) {
	for range 100 {
		if port := lowestFree + rand.IntN(highestFree-lowestFree+1); PortFree(port) {
			return port, nil
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// ClaimsFolder is where this user's programs say which ports and networks they are
// about to use: one for all of them, wherever each has its temporary files.
func ClaimsFolder() string {
	root := os.TempDir()
	if runtime.GOOS == "linux" {
		root = "/tmp"
	}
	return filepath.Join(root, "windlass-ports-"+strconv.Itoa(os.Getuid()))
}

// Ports hands out ports of 127.0.0.1, no port twice. The zero value is ready to
// use; it is not safe for concurrent use.
type Ports struct {
	// Claims is a folder in which programs that start servers say which ports they are about to use, as a
	// rule ClaimsFolder(); empty: no claims are made. Seconds pass between the check of a port and the
	// start of its server, in which a second program would find it free. A claim lasts as long as the
	// process.
	Claims string

	given map[int]bool
}

// claim takes a port that no program uses or is about to use.
func (p *Ports) claim(port int) bool {
	if p.given[port] {
		return false
	}
	if p.Claims == "" {
		return PortFree(port)
	}
	lock, err := flock.Try(filepath.Join(p.Claims, strconv.Itoa(port)))
	switch {
	case errors.Is(err, flock.ErrHeld):
		return false
	case err != nil:
		// Without a place for claims, the look at the port has to do.
		return PortFree(port)
	case !PortFree(port):
		_ = lock.Unlock()
		return false
	}
	return true
}

// Take returns the wanted port when it is free and was not given out before;
// else, or when want is 0, another free one. taken says that the wanted port
// could not be had.
func (p *Ports) Take(want int) (port int, taken bool, err error) {
	if want < 0 || want > 65535 {
		return 0, false, fmt.Errorf("port %d: must be 0 to 65535", want)
	}
	if p.given == nil {
		p.given = map[int]bool{}
	}
	if want != 0 && p.claim(want) {
		p.given[want] = true
		return want, false, nil
	}
	// The kernel may offer a port that was given out but is not bound yet; a
	// hundred such answers in a row mean that something else is wrong.
	for range 100 {
		port, err := FreePort()
		if err != nil {
			return 0, false, err
		}
		if p.claim(port) {
			p.given[port] = true
			return port, want != 0, nil
		}
	}
	return 0, false, fmt.Errorf("find a free port: the system offers only ports that are already spoken for")
}

// PortFree reports whether a listener can be opened on 127.0.0.1:port. It looks
// by binding, not by dialling: a server that is up but stuck holds its port too.
//
// No child of this process is forked during the look: until it became another program,
// it would hold the socket as well, and a second look would find the port taken.
func PortFree(port int) bool {
	if port < 1 || port > 65535 {
		return false
	}
	forkedOnce()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return false
	}
	unix.CloseOnExec(fd)
	// As a server would: what is left of connections that have ended is no obstacle.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	return errors.Join(err, unix.Close(fd)) == nil
}

// forkedOnce returns when the one child has ended that package os forks without the
// ForkLock: with it, it finds out on its first use of processes what Linux can do.
var forkedOnce = sync.OnceFunc(func() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
})
