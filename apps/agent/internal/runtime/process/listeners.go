package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// listeningSockets returns the sockets, as "socket:[inode]", that listen on a port.
func listeningSockets(port int) map[string]bool {
	found, err := askListeners(port)
	if err != nil {
		return readListeners(port)
	}
	return found
}

// The sizes of the kernel's messages about sockets, and the offsets of the fields that are read:
// linux/inet_diag.h.
const (
	diagRequestSize = unix.SizeofNlMsghdr + 56
	diagAnswerSize  = 72
	diagPort        = 4
	diagInode       = 68
	diagPatience    = 1 // second
)

// askListeners asks the kernel for the sockets that listen on a port. The tables in /proc also have
// all connections of the host, so reading them takes longer the more connections there are.
func askListeners(port int) (map[string]bool, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a socket to ask for sockets: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagPatience}); err != nil {
		return nil, fmt.Errorf("bound the wait for sockets: %w", err)
	}
	found := map[string]bool{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := unix.Sendto(fd, diagRequest(family, port), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, fmt.Errorf("ask for sockets: %w", err)
		}
		if err := readAnswers(fd, port, found); err != nil {
			return nil, fmt.Errorf("read sockets: %w", err)
		}
	}
	return found, nil
}

// diagRequest asks for the sockets of a family that listen on a port.
func diagRequest(family byte, port int) []byte {
	const listening = 10
	b := make([]byte, diagRequestSize)
	binary.NativeEndian.PutUint32(b, diagRequestSize)
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := b[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<listening)
	binary.BigEndian.PutUint16(body[8:], uint16(port))
	return b
}

// readAnswers adds the sockets in the kernel's answer to one request.
func readAnswers(fd, port int, found map[string]bool) error {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type != unix.SOCK_DIAG_BY_FAMILY || len(m.Data) < diagAnswerSize:
				return fmt.Errorf("an answer of type %d with %d bytes", m.Header.Type, len(m.Data))
			case binary.BigEndian.Uint16(m.Data[diagPort:]) == uint16(port):
				found[fmt.Sprintf("socket:[%d]", binary.NativeEndian.Uint32(m.Data[diagInode:]))] = true
			}
		}
	}
}

// readListeners reads the sockets from tables in /proc, for kernels that do not support
// askListeners.
func readListeners(port int) map[string]bool {
	found := map[string]bool{}
	suffix := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			const listening = "0A"
			if len(f) > 9 && strings.HasSuffix(f[1], suffix) && f[3] == listening {
				found["socket:["+f[9]+"]"] = true
			}
		}
	}
	return found
}
