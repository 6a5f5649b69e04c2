package gateway

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// listenShared binds address so that another process of the same user may bind it, too: the
// kernel spreads new connections over both, and a new gateway takes over from an old one
// without a moment in which no process listens.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctrlErr := c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
				// What one that left told the kernel (see handOver) ends here. A kernel
				// without the option has nothing to forget.
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 1)
			}
		}); ctrlErr != nil {
			return ctrlErr
		}
		return err
	}}
	// Go listens for multipath TCP where a kernel has it. Such sockets refuse the option that says
	// which process gets new connections.
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", address)
}

// handOver has the kernel give new connections to the process that bound the address
// after this one, while this one still takes those that it was given: what waits in the
// queue of a socket that is closed is reset. The sockets of an address are numbered in
// the order of binding, so that this process, the older one, is 0 and its successor 1;
// when 0 closes, the last one gets its number, and where there is no number 1 the kernel
// spreads as before. It is a help: an error leaves it as it was.
func handOver(listener net.Listener) error {
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
