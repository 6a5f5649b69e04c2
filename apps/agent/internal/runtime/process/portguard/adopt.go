//go:build linux && (amd64 || arm64)

package portguard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// adoptSockets tags the sockets that instances opened before the guard was in force.
func (g *Guard) adoptSockets(ids groups) error {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		gid, ok := groupOf(pid)
		if !ok || gid < ids.first || gid > ids.last {
			continue
		}
		if err := g.adoptProcess(pid, gid); err != nil {
			return fmt.Errorf("tag the sockets of process %d: %w", pid, err)
		}
	}
	return nil
}

// adoptProcess tags the sockets of one process. It returns no error for a process that ends
// meanwhile.
func (g *Guard) adoptProcess(pid int, gid uint32) error {
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(process) }()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for _, n := range names {
		number, err := strconv.Atoi(n.Name())
		target, lerr := os.Readlink(filepath.Join(dir, n.Name()))
		if err != nil || lerr != nil || !strings.HasPrefix(target, "socket:") {
			continue
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) {
			continue // the descriptor is closed
		}
		if err != nil {
			return err
		}
		err = g.tagSocket(fd, gid)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// tagSocket tags a network socket. Other sockets need no tag. It also ends the option SO_REUSEADDR of a
// UDP socket, so that no other socket can share its port from now on.
func (g *Guard) tagSocket(fd int, gid uint32) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain != unix.AF_INET && domain != unix.AF_INET6 {
		return nil
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return err
	}
	if protocol == unix.IPPROTO_UDP {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0); err != nil {
			return err
		}
	}
	err = g.maps.tags.Update(int32(fd), gid, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// groupOf returns the effective group of a process. ok is false if the process does not exist.
func groupOf(pid int) (uint32, bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == "Gid:" {
			gid, err := strconv.ParseUint(f[2], 10, 32)
			return uint32(gid), err == nil
		}
	}
	return 0, false
}
