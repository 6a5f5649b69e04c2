//go:build linux && (amd64 || arm64)

package portguard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The test binary runs again as a victim that listens, or as a caller that tries every way to it.
const (
	listenEnv = "WINDLASS_TEST_LISTEN"
	callEnv   = "WINDLASS_TEST_CALL"
	remoteEnv = "WINDLASS_TEST_REMOTE"
	bindEnv   = "WINDLASS_TEST_BIND"

	broadcastEnv = "WINDLASS_TEST_BROADCAST"
	meetEnv      = "WINDLASS_TEST_MEET"
	// patienceEnv is for callers that are to get no answer.
	patienceEnv = "WINDLASS_TEST_PATIENCE"
)

// ids of the tests, and two groups of them. No other test of this host has them.
var ids = groups{2100131072, 2100132095}

const groupA, groupB = 2100131080, 2100131081

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(listenEnv) != "":
		os.Exit(listen())
	case os.Getenv(callEnv) != "":
		os.Exit(call())
	case os.Getenv(meetEnv) != "":
		os.Exit(meet())
	case os.Getenv(broadcastEnv) != "":
		os.Exit(broadcast())
	case os.Getenv(bindEnv) != "":
		os.Exit(bindAll())
	case os.Getenv(remoteEnv) != "":
		os.Exit(remote())
	}
	os.Exit(m.Run())
}

// ports are where a victim listens.
type ports struct{ All4, All6, Loop4, UDP4, UDP6 int }

func listen() int {
	var p ports
	// As servers of multicast do it, others may have the port of UDP, too.
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
	for port, on := range map[*int][2]string{&p.UDP4: {"udp4", ":" + os.Getenv(listenEnv)}, &p.UDP6: {"udp", ":0"}} {
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

// answer answers each datagram, and one with "count" by the number of others.
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

// way is one way to a victim.
type way struct {
	name string
	call func() error
}

// waysTo are all ways to a victim. external is another address of the host.
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
		if host != "127.1.2.3" { // the answer comes from 127.0.0.1, and a connected socket does not take it
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

// exchange sends a byte if the socket is of datagrams, and waits for an answer.
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

// raw6 connects a socket of IPv6, which net.Dial does not do for addresses of IPv4.
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

// reused connects by a socket that the kernel made for a connection, which has ended.
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
			return fmt.Errorf("to itself: %v", err) //nolint:errorlint // it is not the refusal that the test looks for
		}
		taken, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(taken) }()
		var none unix.RawSockaddrInet4 // its family is AF_UNSPEC, which disconnects
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(taken), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); errno != 0 {
			return fmt.Errorf("disconnect: %v", errno) //nolint:errorlint // the same
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

// meet connects from one port to another without a listener at either, and prints what it led to. If the other side does
// the same at that moment, TCP makes a connection of the two. The kernel's refusals are dropped.
func meet() int {
	var gid, from, to int
	if _, err := fmt.Sscanf(os.Getenv(meetEnv), "%d %d %d", &gid, &from, &to); err != nil {
		return say(err)
	}
	fd, err := socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return say(err)
	}
	// The flags of TCP are in byte 13 of its header, and 4 is that of a refusal.
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
	// Recent kernels take filters of TCP sockets from root only.
	if err := errors.Join(syscall.Setgid(gid), syscall.Setuid(gid)); err != nil {
		return say(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, unix.Connect(fd, &unix.SockaddrInet4{Port: to, Addr: loopback4}))
	return 0
}

var loopback4 = [4]byte{127, 0, 0, 1}

// fastOpen connects by sending.
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

// call prints what each way led to: empty is an answer of the victim.
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
			err := w.call()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				out[w.name] = ""
			case errors.Is(err, unix.EPERM):
				out[w.name] = "EPERM"
			default:
				out[w.name] = err.Error()
			}
		})
	}
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return say(err)
	}
	return 0
}

// broadcast sends datagrams to all hosts at once, from one port to another. From port 0 is from any. It says when it has
// bound the port, and then waits for the end of its input.
func broadcast() int {
	var from, port int
	if _, err := fmt.Sscanf(os.Getenv(broadcastEnv), "%d %d", &from, &port); err != nil {
		return say(err)
	}
	fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return say(err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: from}))
	if err != nil {
		return say(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, "bound")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, to := range [][4]byte{{255, 255, 255, 255}, {224, 0, 0, 1}, {127, 255, 255, 255}} {
		_ = unix.Sendto(fd, []byte("?"), 0, &unix.SockaddrInet4{Port: port, Addr: to}) // some hosts have no such route
	}
	_ = exchange(fd) // it has to be open when they arrive
	return 0
}

// bindAll prints what binding a port led to.
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

// remote begins to connect to a port of an address that is reserved for documentation.
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

// again runs the test binary as a process of a group.
func again(t *testing.T, gid uint32, env string) *exec.Cmd {
	t.Helper()
	// The program is readable to other users than root.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: gid, Gid: gid}, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func startVictim(t *testing.T, gid uint32) ports {
	t.Helper()
	p, stop := startVictimToStop(t, gid)
	t.Cleanup(stop)
	return p
}

func startVictimToStop(t *testing.T, gid uint32) (ports, func()) {
	t.Helper()
	return startVictimAt(t, gid, 0)
}

// startVictimAt starts a victim at a port of UDP, 0 for any.
func startVictimAt(t *testing.T, gid uint32, udp int) (ports, func()) {
	t.Helper()
	cmd := again(t, gid, fmt.Sprintf("%s=%d", listenEnv, udp))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var p ports
	require.NoError(t, json.NewDecoder(out).Decode(&p))
	return p, sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })
}

// received returns how many datagrams a victim got.
func received(t *testing.T, p ports) string {
	t.Helper()
	c, err := net.Dial("udp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.UDP4)))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(c, "count")
	require.NoError(t, err)
	b := make([]byte, 10)
	n, err := c.Read(b)
	require.NoError(t, err)
	return string(b[:n])
}

// detach takes the programs of some hooks out of force, to see what the others do alone.
func detach(t *testing.T, names ...string) {
	t.Helper()
	root, err := openRoot()
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	old, err := attached(root, ids)
	require.NoError(t, err)
	defer old.close()
	for _, h := range hooks {
		if slices.Contains(names, h.name) {
			require.NoError(t, link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(root.Fd()), Program: old[h.name], Attach: h.attach}))
		}
	}
}

func callAs(t *testing.T, gid uint32, p ports) map[string]string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"Ports": p, "External": externalAddress(t)})
	require.NoError(t, err)
	cmd := again(t, gid, callEnv+"="+string(b))
	out, err := cmd.Output()
	require.NoError(t, err)
	got := map[string]string{}
	require.NoError(t, json.Unmarshal(out, &got))
	return got
}

// externalAddress returns an address of IPv4 of this host that is not of loopback; 127.0.0.2 if it has none.
func externalAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return "127.0.0.2"
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

func openGuard(t *testing.T) *Guard {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guard needs root")
	}
	g, err := Open(ids.first, ids.last)
	if err != nil {
		t.Skip("no guard on this host: ", err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// requireAll requires that every way led to the same.
func requireAll(t *testing.T, want string, got map[string]string) {
	t.Helper()
	require.NotEmpty(t, got)
	for name, g := range got {
		if want == "" && name == "Multipath TCP" {
			continue
		}
		require.Equal(t, want, g, name)
	}
}

func stop(t *testing.T) {
	t.Helper()
	require.NoError(t, Remove(ids.first, ids.last))
	require.Zero(t, inForce(t))
}

// inForce returns how many programs the kernel runs for the tests' range.
func inForce(t *testing.T) int {
	t.Helper()
	root, err := openRoot()
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	n := 0
	for _, h := range hooks {
		res, err := link.QueryPrograms(link.QueryOptions{Target: int(root.Fd()), Attach: h.attach})
		require.NoError(t, err)
		for _, a := range res.Programs {
			p, err := ebpf.NewProgramFromID(a.ID)
			require.NoError(t, err)
			info, err := p.Info()
			require.NoError(t, err)
			if info.Name == programName(h, ids) {
				n++
			}
			require.NoError(t, p.Close())
		}
	}
	return n
}

func TestGuard(t *testing.T) {
	openGuard(t)
	t.Cleanup(func() { stop(t) })
	t.Run("refuses every way to a port of another group, and none to its own", func(t *testing.T) {
		p := startVictim(t, groupA)
		requireAll(t, "EPERM", callAs(t, groupB, p))
		requireAll(t, "", callAs(t, groupA, p))
		requireAll(t, "", callAs(t, 0, p))
	})
	t.Run("lets instances call what is not an instance's", func(t *testing.T) {
		requireAll(t, "", callAs(t, groupA, startVictim(t, 0)))
	})
	t.Run("stays in force without its agent, and the next one takes it over with its tags", func(t *testing.T) {
		p := startVictim(t, groupA)
		require.NoError(t, openGuard(t).Close())
		require.Equal(t, len(hooks), inForce(t))
		requireAll(t, "EPERM", callAs(t, groupB, p))
		openGuard(t)
		require.Equal(t, len(hooks), inForce(t), "each program takes the place of the one before")
		requireAll(t, "EPERM", callAs(t, groupB, p))
	})
	t.Run("knows sockets that were opened before it", func(t *testing.T) {
		stop(t)
		// A listener of Multipath TCP, which Go prefers, is in the kernel another socket than the instance's.
		t.Setenv("GODEBUG", "multipathtcp=0")
		p := startVictim(t, groupA)
		requireAll(t, "", callAs(t, groupB, p))
		openGuard(t)
		requireAll(t, "EPERM", callAs(t, groupB, p))
	})
	t.Run("follows the host's addresses", func(t *testing.T) {
		g := openGuard(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.Run(ctx, func(err error) { t.Error(err) })
		}()
		defer func() { cancel(); <-done }()
		has := func(ip string) func() bool {
			return func() bool {
				var one uint8
				return g.maps.local.Lookup(prefixOf(net.ParseIP(ip), 32), &one) == nil
			}
		}
		require.False(t, has("198.51.100.7")())
		change(t, unix.RTM_NEWADDR, net.IPv4(198, 51, 100, 7))
		require.Eventually(t, has("198.51.100.7"), time.Minute, 5*time.Millisecond)
		change(t, unix.RTM_DELADDR, net.IPv4(198, 51, 100, 7))
		require.Eventually(t, func() bool { return !has("198.51.100.7")() }, time.Minute, 5*time.Millisecond)
	})
	t.Run("refuses what arrives, whatever was asked when it was sent", func(t *testing.T) {
		openGuard(t)
		p := startVictim(t, groupA)
		detach(t, "c4", "c6", "s4", "s6")
		before := received(t, p)
		requireAll(t, "", callAs(t, groupA, p))
		after := received(t, p)
		require.NotEqual(t, before, after)
		t.Setenv(patienceEnv, "300ms")
		for name, got := range callAs(t, groupB, p) {
			require.NotEmpty(t, got, name)
		}
		require.Equal(t, after, received(t, p), "datagrams of another group")
		openGuard(t)
		requireAll(t, "EPERM", callAs(t, groupB, p))
	})
	t.Run("refuses connections that both sides begin", func(t *testing.T) {
		openGuard(t)
		meetAs := func(one, other uint32) string {
			a, b := freePort(t), freePort(t)
			first := again(t, 0, fmt.Sprintf("%s=%d %d %d", meetEnv, one, a, b))
			second := again(t, 0, fmt.Sprintf("%s=%d %d %d", meetEnv, other, b, a))
			var out bytes.Buffer
			first.Stdout = &out
			require.NoError(t, first.Start())
			answer, err := second.Output()
			require.NoError(t, err)
			require.NoError(t, first.Wait())
			return out.String() + string(answer)
		}
		require.Equal(t, "<nil>\n<nil>\n", meetAs(groupA, groupA))
		t.Setenv(patienceEnv, "3s")
		require.NotContains(t, meetAs(groupA, groupB), "<nil>")
	})
	t.Run("lets instances connect from a port that is another group's", func(t *testing.T) {
		g := openGuard(t)
		p, from := startVictim(t, 0), freePort(t)
		require.NoError(t, g.Reserve(groupA, from))
		// Binding is refused to it, but not to root, whose socket it is until it connects. The kernel may choose the port, too.
		out, err := again(t, 0, fmt.Sprintf("%s=%d %d %d", meetEnv, groupB, from, p.All4)).Output()
		require.NoError(t, err)
		require.Equal(t, "<nil>\n", string(out))
		require.NoError(t, g.Free(from))
	})
	t.Run("refuses datagrams to many hosts", func(t *testing.T) {
		p := startVictim(t, groupA)
		for _, of := range []struct {
			gid      uint32
			patience string // of the sender, for an answer
			want     bool
		}{{groupB, "50ms", false}, {groupA, "1m", true}} {
			t.Setenv(patienceEnv, of.patience)
			before := received(t, p)
			require.NoError(t, again(t, of.gid, fmt.Sprintf("%s=%d %d", broadcastEnv, 0, p.UDP4)).Run())
			require.Equal(t, of.want, before != received(t, p), "group %d", of.gid)
		}
	})
	t.Run("refuses datagrams to many hosts from the receiver's own port", func(t *testing.T) {
		port := freePort(t)
		sender := again(t, groupB, fmt.Sprintf("%s=%d %d", broadcastEnv, port, port))
		in, err := sender.StdinPipe()
		require.NoError(t, err)
		out, err := sender.StdoutPipe()
		require.NoError(t, err)
		sender.Env = append(sender.Env, patienceEnv+"=50ms")
		require.NoError(t, sender.Start())
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		// The search for the sender finds the socket that was bound last: the receiver's.
		p, stop := startVictimAt(t, groupA, port)
		defer stop()
		require.NoError(t, in.Close())
		require.NoError(t, sender.Wait())
		require.Equal(t, "0", received(t, p))
	})
	t.Run("keeps the port of an instance that ended from others, and its clients from who got it", func(t *testing.T) {
		g := openGuard(t)
		p, stop := startVictimToStop(t, groupA)
		defer stop()
		require.NoError(t, g.Reserve(groupA, p.All4))
		stop()
		bindAs := func(gid uint32) string {
			out, err := again(t, gid, fmt.Sprintf("%s=%d", bindEnv, p.All4)).Output()
			require.NoError(t, err)
			return strings.TrimSpace(string(out))
		}
		refused := unix.EPERM.Error()
		require.Equal(t, refused+"\n"+refused+"\n"+refused, bindAs(groupB))
		require.Equal(t, "<nil>\n<nil>\n<nil>", bindAs(groupA))
		require.NoError(t, g.Keep(map[int]bool{p.All4: true}))
		require.Equal(t, refused+"\n"+refused+"\n"+refused, bindAs(groupB))
		require.NoError(t, g.Free(p.All4))
		require.Equal(t, "<nil>\n<nil>\n<nil>", bindAs(groupB))
		require.NoError(t, g.Reserve(groupA, p.All4))
		require.NoError(t, g.Keep(nil))
		require.Equal(t, "<nil>\n<nil>\n<nil>", bindAs(groupB))

		// The kernel chose the port of this one.
		other := startVictim(t, groupB)
		call := func(patience time.Duration) error {
			c, err := net.DialTimeout("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(other.All4)), patience)
			if err == nil {
				err = c.Close()
			}
			return err
		}
		require.NoError(t, call(time.Minute))
		require.NoError(t, g.Reserve(groupA, other.All4))
		require.Error(t, call(300*time.Millisecond))
		require.NoError(t, g.Free(other.All4))
		require.NoError(t, call(time.Minute))
	})
	t.Run("does not keep an instance from the same port of another host", func(t *testing.T) {
		// Nothing answers there, and the test does not wait: only EPERM would come from the guard.
		p := startVictim(t, groupA)
		cmd := again(t, groupB, fmt.Sprintf("%s=%d", remoteEnv, p.All4))
		out, err := cmd.Output()
		require.NoError(t, err)
		require.NotContains(t, string(out), unix.EPERM.Error())
	})
}

// change adds an address to the loopback interface, or takes it away, by a message as rtnetlink(7) describes it.
func change(t *testing.T, kind uint16, ip net.IP) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	order := binary.NativeEndian
	var b []byte
	b = append(b, unix.AF_INET, 32, 0, unix.RT_SCOPE_HOST)
	b = order.AppendUint32(b, uint32(lo.Index))
	b = order.AppendUint16(b, 8)
	b = order.AppendUint16(b, unix.IFA_LOCAL)
	b = append(b, ip.To4()...)
	var head []byte
	head = order.AppendUint32(head, uint32(unix.NLMSG_HDRLEN+len(b)))
	head = order.AppendUint16(head, kind)
	flags := uint16(unix.NLM_F_REQUEST | unix.NLM_F_ACK)
	if kind == unix.RTM_NEWADDR {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	head = order.AppendUint16(head, flags)
	head = append(head, make([]byte, 8)...)
	require.NoError(t, unix.Sendto(fd, append(head, b...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	answer := make([]byte, 4096)
	n, err := unix.Read(fd, answer)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, unix.NLMSG_HDRLEN+4)
	require.Zero(t, int32(order.Uint32(answer[unix.NLMSG_HDRLEN:])), "the kernel's error number")
}
