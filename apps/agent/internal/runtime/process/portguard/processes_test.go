//go:build linux && (amd64 || arm64)

package portguard

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ports has the ports on which a victim listens.
type ports struct{ All4, All6, Loop4, UDP4, UDP6 int }

func listen() int {
	var p ports
	// Other sockets may share the UDP port, as with multicast servers.
	config := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "udp") {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(err, failed)
	}}
	for _, one := range []struct {
		port          *int
		network, addr string
	}{{&p.All4, "tcp4", "0.0.0.0:0"}, {&p.All6, "tcp", "[::]:0"}, {&p.Loop4, "tcp", "127.0.0.1:0"}} {
		l, err := config.Listen(context.Background(), one.network, one.addr)
		if err != nil {
			return say(err)
		}
		*one.port = l.Addr().(*net.TCPAddr).Port
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "ok\n")
				_ = c.Close()
			}
		}()
	}
	for port, on := range map[*int][2]string{&p.UDP4: {"udp4", os.Getenv(listenEnv)}, &p.UDP6: {"udp", ":0"}} {
		c, err := config.ListenPacket(context.Background(), on[0], on[1])
		if err != nil {
			return say(err)
		}
		*port = c.LocalAddr().(*net.UDPAddr).Port
		go answer(c)
	}
	if err := json.NewEncoder(os.Stdout).Encode(p); err != nil {
		return say(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	return 0
}

// answer answers each datagram. It answers "count" with the number of the other datagrams.
func answer(c net.PacketConn) {
	b := make([]byte, 100)
	for others := 0; ; {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		text := "ok\n"
		if string(b[:n]) == "count" {
			text = strconv.Itoa(others)
		} else {
			others++
		}
		_, _ = c.WriteTo([]byte(text), from)
	}
}

// callPatience is how long a call waits for an answer.
func callPatience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(patienceEnv)); err == nil {
		return d
	}
	return time.Minute
}

func say(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, err)
	return 1
}

// way is one way to connect or send to a victim.
type way struct {
	name string
	call func() error
}

// waysTo returns all ways to a victim. external is another address of the host.
func waysTo(p ports, external string) []way {
	dial := func(network, host string, port int) func() error {
		return func() error {
			c, err := net.DialTimeout(network, net.JoinHostPort(host, strconv.Itoa(port)), callPatience())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(callPatience()))
			if strings.HasPrefix(network, "udp") {
				if _, err := io.WriteString(c, "?"); err != nil {
					return err
				}
			}
			_, err = bufio.NewReader(c).ReadString('\n')
			return err
		}
	}
	var all []way
	add := func(name string, call func() error) { all = append(all, way{name, call}) }
	for _, host := range []string{"127.0.0.1", "127.1.2.3", "0.0.0.0", external} {
		add("TCP "+host, dial("tcp4", host, p.All4))
		add("TCP to a listener of both "+host, dial("tcp4", host, p.All6))
		add("mapped TCP "+host, raw6(unix.SOCK_STREAM, 0, "::ffff:"+host, p.All4))
		if host != "127.1.2.3" { // the answer comes from 127.0.0.1, which a connected socket does not accept
			add("UDP "+host, dial("udp4", host, p.UDP4))
			add("mapped UDP "+host, raw6(unix.SOCK_DGRAM, 0, "::ffff:"+host, p.UDP4))
		}
		add("unconnected UDP "+host, sendTo("udp4", host, p.UDP4))
		add("mapped unconnected UDP "+host, sendTo6("::ffff:"+host, p.UDP4))
		add("fast open "+host, fastOpen(host, p.All4))
	}
	add("TCP to one address", dial("tcp4", "127.0.0.1", p.Loop4))
	add("TCP to one address by 0", dial("tcp4", "0.0.0.0", p.Loop4))
	for _, host := range []string{"::1", "::"} {
		add("TCP "+host, dial("tcp6", host, p.All6))
		add("UDP "+host, dial("udp6", host, p.UDP6))
		add("unconnected UDP "+host, sendTo("udp6", host, p.UDP6))
	}
	add("a socket that took a connection", reused(p.All4))
	add("Multipath TCP", raw6(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, "::1", p.All6))
	return all
}

func sockaddr6(host string, port int) *unix.SockaddrInet6 {
	sa := &unix.SockaddrInet6{Port: port}
	copy(sa.Addr[:], net.ParseIP(host).To16())
	return sa
}

// exchange sends a byte if the socket is a datagram socket, and waits for an answer.
func exchange(fd int) error {
	_, err := unix.Read(fd, make([]byte, 10))
	return err
}

// socket makes a socket whose calls end after callPatience.
func socket(domain, kind, protocol int) (int, error) {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fd, err
	}
	wait := unix.NsecToTimeval(callPatience().Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait))
	return fd, err
}

// raw6 connects an IPv6 socket. net.Dial does not use IPv6 sockets for IPv4 addresses.
func raw6(kind, protocol int, host string, port int) func() error {
	return func() error {
		fd, err := socket(unix.AF_INET6, kind, protocol)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Connect(fd, sockaddr6(host, port)); err != nil {
			return err
		}
		if kind == unix.SOCK_DGRAM {
			if _, err := unix.Write(fd, []byte("?")); err != nil {
				return err
			}
		}
		return exchange(fd)
	}
}

func sendTo6(host string, port int) func() error {
	return func() error {
		fd, err := socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Sendto(fd, []byte("?"), 0, sockaddr6(host, port)); err != nil {
			return err
		}
		return exchange(fd)
	}
}

func sendTo(network, host string, port int) func() error {
	return func() error {
		c, err := net.ListenPacket(network, ":0")
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(callPatience()))
		if _, err := c.WriteTo([]byte("?"), &net.UDPAddr{IP: net.ParseIP(host), Port: port}); err != nil {
			return err
		}
		_, _, err = c.ReadFrom(make([]byte, 10))
		return err
	}
}

// reused connects with a socket that the kernel made for an earlier connection, which has ended.
func reused(port int) func() error {
	return func() error {
		l, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(l) }()
		if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: loopback4}), unix.Listen(l, 1)); err != nil {
			return err
		}
		at, err := unix.Getsockname(l)
		if err != nil {
			return err
		}
		c, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(c) }()
		if err := unix.Connect(c, at); err != nil {
			return fmt.Errorf("to itself: %v", err) //nolint:errorlint // this is not the refusal that the test expects
		}
		taken, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(taken) }()
		var none unix.RawSockaddrInet4 // its family is AF_UNSPEC, which disconnects
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(taken), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
			return fmt.Errorf("disconnect: %v", errno) //nolint:errorlint // this is not the refusal that the test expects
		}
		wait := unix.NsecToTimeval(callPatience().Nanoseconds())
		if err := errors.Join(unix.SetsockoptTimeval(taken, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait), unix.SetsockoptTimeval(taken, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)); err != nil {
			return err
		}
		if err := unix.Connect(taken, &unix.SockaddrInet4{Port: port, Addr: loopback4}); err != nil {
			return err
		}
		return exchange(taken)
	}
}

// meet connects from one port to another, without a listener at either, and prints the result. If
// the other side does the same at the same moment, TCP makes one connection of the two. A filter
// drops the kernel's refusals.
func meet() int {
	var gid, from, to int
	if _, err := fmt.Sscanf(os.Getenv(meetEnv), "%d %d %d", &gid, &from, &to); err != nil {
		return say(err)
	}
	fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return say(err)
	}
	// The TCP flags are in byte 13 of the header, and 4 is the flag of a refusal.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: 4},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return say(fmt.Errorf("attach a filter: %w", err))
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: from, Addr: loopback4}); err != nil {
		return say(fmt.Errorf("bind port %d: %w", from, err))
	}
	// Recent kernels accept filters of TCP sockets only from root.
	if err := errors.Join(syscall.Setgid(gid), syscall.Setuid(gid)); err != nil {
		return say(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, unix.Connect(fd, &unix.SockaddrInet4{Port: to, Addr: loopback4}))
	return 0
}

var loopback4 = [4]byte{127, 0, 0, 1}

// fastOpen connects by sending data (TCP Fast Open).
func fastOpen(host string, port int) func() error {
	return func() error {
		fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		sa := &unix.SockaddrInet4{Port: port}
		copy(sa.Addr[:], net.ParseIP(host).To4())
		if err := unix.Sendto(fd, []byte("?"), unix.MSG_FASTOPEN, sa); err != nil {
			return err
		}
		return exchange(fd)
	}
}

// nameOf returns "" for no error, and the name of an error number.
func nameOf(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// call prints the result of each way. An empty result means that the victim answered.
func call() int {
	var to struct {
		Ports    ports
		External string
	}
	if err := json.Unmarshal([]byte(os.Getenv(callEnv)), &to); err != nil {
		return say(err)
	}
	out := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, w := range waysTo(to.Ports, to.External) {
		all.Go(func() {
			got := nameOf(w.call())
			mu.Lock()
			defer mu.Unlock()
			out[w.name] = got
		})
	}
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return say(err)
	}
	return 0
}

// broadcast sends datagrams to all hosts at once, from one port to another, and to a port of IPv6.
// From port 0 means from any port. Otherwise, the process shares both ports, and the kernel's search
// on this processor prefers its socket at the receiver's port. It prints a line when it has bound
// the ports, and then waits for the end of its input. With "many", the process shares no port, and
// its socket has a multicast address.
func broadcast() int {
	var from, port, port6 int
	if _, err := fmt.Sscanf(os.Getenv(broadcastEnv), "%d %d %d", &from, &port, &port6); err != nil {
		return say(err)
	}
	var address [4]byte
	if strings.HasSuffix(os.Getenv(broadcastEnv), " many") {
		address = [4]byte{224, 0, 0, 251}
	}
	runtime.LockOSThread()
	var first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &first); err != nil {
		return say(err)
	}
	cpu := 0
	for !first.IsSet(cpu) {
		cpu++
	}
	first.Zero()
	first.Set(cpu)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return say(err)
	}
	open := func(at int, address [4]byte) (int, error) {
		fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return fd, err
		}
		return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: at, Addr: address}))
	}
	fd, err := open(from, address)
	if err != nil {
		return say(err)
	}
	if from != 0 && from != port && address == [4]byte{} {
		other, err := open(port, address)
		if err != nil {
			return say(err)
		}
		if err := unix.SetsockoptInt(other, unix.SOL_SOCKET, unix.SO_INCOMING_CPU, cpu); err != nil {
			return say(err)
		}
	}
	_, _ = fmt.Fprintln(os.Stdout, "bound")
	_, _ = io.Copy(io.Discard, os.Stdin)
	// Some hosts have no route to some of these addresses. The answers need not be read, but the socket must be
	// open when the datagrams arrive.
	to := [][4]byte{{255, 255, 255, 255}, {224, 0, 0, 1}, {127, 255, 255, 255}}
	for _, ip := range to {
		_ = unix.Sendto(fd, []byte("?"), 0, &unix.SockaddrInet4{Port: port, Addr: ip})
	}
	if port6 != 0 {
		if err := broadcast6(port6); err != nil {
			return say(err)
		}
	}
	_ = exchange(fd)
	return 0
}

// broadcast6 sends a datagram to all hosts of each of the host's networks.
func broadcast6(port int) error {
	fd, err := socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		_ = unix.Sendto(fd, []byte("?"), 0, &unix.SockaddrInet6{Port: port, Addr: [16]byte(net.IPv6linklocalallnodes), ZoneId: uint32(i.Index)})
	}
	return nil
}

// spoof sends a datagram from a port of 127.0.0.2, with the source address 127.0.0.1.
func spoof() int {
	var from, to int
	if _, err := fmt.Sscanf(os.Getenv(spoofEnv), "%d %d", &from, &to); err != nil {
		return say(err)
	}
	fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return say(err)
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: from, Addr: [4]byte{127, 0, 0, 2}}), unix.Connect(fd, &unix.SockaddrInet4{Port: to, Addr: loopback4}))
	if err != nil {
		return say(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, "connected")
	_, _ = io.Copy(io.Discard, os.Stdin)
	// The guard refuses the packet where it arrives, so the call succeeds.
	if err := unix.Sendmsg(fd, []byte("?"), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: loopback4}), nil, 0); err != nil {
		return say(err)
	}
	_ = exchange(fd)
	return 0
}

// share prints the result of each way to share a UDP port. An empty result means that it is shared.
func share() int {
	if os.Getenv(shareEnv) == "options" {
		return setOptions()
	}
	port, err := strconv.Atoi(os.Getenv(shareEnv))
	if err != nil {
		return say(err)
	}
	at := func(option int, device string, sa unix.Sockaddr) func() error {
		return func() error {
			domain := unix.AF_INET
			if _, ok := sa.(*unix.SockaddrInet6); ok {
				domain = unix.AF_INET6
			}
			fd, err := socket(domain, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return err
			}
			if option != 0 {
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
					return err
				}
			}
			if device != "" {
				if err := unix.BindToDevice(fd, device); err != nil {
					return err
				}
			}
			return unix.Bind(fd, sa)
		}
	}
	out := map[string]string{}
	for _, w := range []way{
		{"all addresses", at(0, "", &unix.SockaddrInet4{Port: port})},
		{"one address", at(0, "", &unix.SockaddrInet4{Port: port, Addr: loopback4})},
		{"another address", at(0, "", &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 1, 2, 3}})},
		{"IPv6", at(0, "", &unix.SockaddrInet6{Port: port})},
		{"mapped", at(0, "", sockaddr6("::ffff:127.0.0.1", port))},
		{"SO_REUSEPORT", at(unix.SO_REUSEPORT, "", &unix.SockaddrInet4{Port: port})},
		{"one interface", at(0, "lo", &unix.SockaddrInet4{Port: port})},
	} {
		out[w.name] = nameOf(w.call())
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return say(err)
	}
	return 0
}

// setOptions prints the options that cannot be set.
func setOptions() int {
	fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return say(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return say(err)
	}
	if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || got != 1 {
		_, _ = fmt.Fprintln(os.Stdout, "SO_REUSEADDR of TCP:", got, err)
	}
	// The kernel ignores what is behind a number.
	long := make([]byte, 3*os.Getpagesize())
	binary.NativeEndian.PutUint32(long, 1)
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, string(long)); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "a long value:", err)
	}
	return 0
}

// bindAll prints the result of binding a port in each way.
func bindAll() int {
	port, err := strconv.Atoi(os.Getenv(bindEnv))
	if err != nil {
		return say(err)
	}
	for _, sa := range []unix.Sockaddr{
		&unix.SockaddrInet4{Port: port}, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, &unix.SockaddrInet6{Port: port},
	} {
		domain := unix.AF_INET
		if _, ok := sa.(*unix.SockaddrInet6); ok {
			domain = unix.AF_INET6
		}
		fd, err := socket(domain, unix.SOCK_STREAM, 0)
		if err != nil {
			return say(err)
		}
		_, _ = fmt.Fprintln(os.Stdout, unix.Bind(fd, sa))
		_ = unix.Close(fd)
	}
	return 0
}

// remote starts to connect to a port of an address that is reserved for documentation.
func remote() int {
	port, err := strconv.Atoi(os.Getenv(remoteEnv))
	if err != nil {
		return say(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return say(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{192, 0, 2, 1}}))
	return 0
}
