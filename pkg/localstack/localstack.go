// Package localstack runs the servers of Windlass (MariaDB and Restate) and a region's Kubernetes as private
// child processes on a developer's machine. It serves `windlass dev`, and tests that need real servers.
//
//	mariadb, restate   Ensure finds or installs the program, Start runs a server
//	kubelab            the same for a Kubernetes, which is built from this repository
//	stacktest          a database and a Restate for a test
//	cmd/withstack      runs any command with a MariaDB and a Restate
//	proc               child processes that a later run can find again
//	pkg/flock          a lock between processes
//
// Invariants:
//
//   - The result of slow work (an npm install, a new data directory) has a
//     temporary name until it is complete. So after a kill -9 the result is either
//     complete or missing.
//   - No server is started twice on one directory. The pid and start time of each
//     server are recorded. The next Start on the directory first stops a server that a
//     killed parent left running. A pid without its start time is never trusted.
//   - A server is ready when it has answered in its own protocol.
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

// lowestFree and highestFree are the range in which free ports are tried first. It is above the usual ports
// of services, and below the ports of outgoing connections (from 32768 on Linux, from 49152 elsewhere). An
// outgoing connection could take a port between the check and the start of its server.
const (
	lowestFree  = 10_000
	highestFree = 32_767
)

// FreePort returns a TCP port of 127.0.0.1 that nothing listens on. The port is not reserved: the caller must
// try again if another process binds it first.
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

// ClaimsFolder returns the folder in which this user's programs claim ports and networks before they use
// them. It does not depend on TMPDIR on Linux, so that all programs share it.
func ClaimsFolder() string {
	root := os.TempDir()
	if runtime.GOOS == "linux" {
		root = "/tmp"
	}
	return filepath.Join(root, "windlass-ports-"+strconv.Itoa(os.Getuid()))
}

// Ports gives out ports of 127.0.0.1, each port once. The zero value is ready to use. It is not safe for
// concurrent use.
type Ports struct {
	// Claims is the folder in which programs claim ports before they use them, usually ClaimsFolder(). Empty
	// means that no port is claimed. Seconds pass between the check of a port and the start of its server. Without
	// a claim, another program would find the port free. A claim lasts as long as the process.
	Claims string

	given map[int]bool
}

// claimPort claims a port, and returns false if another program uses it or has claimed it.
func (p *Ports) claimPort(port int) bool {
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
		// The folder cannot be used, so only the port is checked.
		return PortFree(port)
	case !PortFree(port):
		_ = lock.Unlock()
		return false
	}
	return true
}

// Take returns port want if it is free and was not given out before. Otherwise, or if want is 0, it returns
// another free port. taken reports whether want was not 0 and not available.
func (p *Ports) Take(want int) (port int, taken bool, err error) {
	if want < 0 || want > 65535 {
		return 0, false, fmt.Errorf("port %d: must be 0 to 65535", want)
	}
	if p.given == nil {
		p.given = map[int]bool{}
	}
	if want != 0 && p.claimPort(want) {
		p.given[want] = true
		return want, false, nil
	}
	// FreePort may return a port that was given out and is not bound yet. A hundred of these in a row mean
	// another problem.
	for range 100 {
		port, err := FreePort()
		if err != nil {
			return 0, false, err
		}
		if p.claimPort(port) {
			p.given[port] = true
			return port, want != 0, nil
		}
	}
	return 0, false, fmt.Errorf("find a free port: the system offers only ports that programs have claimed")
}

// PortFree reports whether a listener can be opened on 127.0.0.1:port. It binds the port instead of dialling,
// because a server that hangs holds its port, too.
//
// No child of this process is forked meanwhile. A forked child would hold the socket until its exec, and a
// second check would find the port taken.
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
	// Like a server, ignore the remains of ended connections.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	return errors.Join(err, unix.Close(fd)) == nil
}

// forkedOnce waits for the one child that package os forks without the ForkLock. It forks this child on its
// first use of processes, to check for features of Linux.
var forkedOnce = sync.OnceFunc(func() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
})
