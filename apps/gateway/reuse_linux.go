package gateway

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// listenShared binds address so that another process of the same user may bind it, too. The kernel spreads
// new connections over both processes. So a process listens at every moment while a new gateway takes over from an
// old one.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctrlErr := c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
				// This detaches the BPF program of a process that has left (see yieldNewConnections). A kernel without this
				// option has no such program.
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
// process still accepts the connections in its queue, because closing the socket would reset them.
//
// The kernel numbers the sockets of an address in the order of binding: this process, the older one, has number 0,
// and its successor has number 1. When socket 0 closes, the last socket gets its number. If there is no socket 1,
// the kernel spreads connections as before. After an error, nothing has changed.
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
