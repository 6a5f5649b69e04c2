package gateway

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// listenShared binds address so that another process of the same user may bind it, too. The kernel spreads
// new connections over both. So a new gateway takes over from an old one without a moment in which no process
// listens.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctrlErr := c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
				// This detaches the program of a process that has left (see yieldNewConnections). A kernel without the
				// option has none.
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 1)
			}
		}); ctrlErr != nil {
			return ctrlErr
		}
		return err
	}}
	// Go listens for multipath TCP where a kernel has it. Such sockets refuse the option that chooses the
	// process for new connections.
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", address)
}

// yieldNewConnections makes the kernel give new connections to the process that bound the address after this one. This
// process still takes the connections that it was given, because closing a socket resets those in its queue.
// The sockets of an address are numbered in the order of binding: this process, the older one, is 0, and its
// successor is 1. When 0 closes, the last socket gets its number. Where there is no number 1, the kernel
// spreads connections as before. After an error, nothing has changed.
func yieldNewConnections(listener net.Listener) error {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil
	}
	program, err := bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: 1}})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	}); err != nil {
		return err
	}
	return setErr
}

// hasQueued reports whether connections wait to be accepted. For a listening socket, the number of
// unacknowledged packets is the length of its queue (tcp_get_info in the kernel's net/ipv4/tcp.c).
func hasQueued(listener net.Listener) bool {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	waiting := false
	if err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		waiting = err == nil && info.Unacked > 0
	}); err != nil {
		return false
	}
	return waiting
}
