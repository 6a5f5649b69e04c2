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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The test binary also runs as a victim that listens, or as a caller that tries every way to the
// victim.
const (
	listenEnv = "WINDLASS_TEST_LISTEN"
	callEnv   = "WINDLASS_TEST_CALL"
	remoteEnv = "WINDLASS_TEST_REMOTE"
	bindEnv   = "WINDLASS_TEST_BIND"

	broadcastEnv = "WINDLASS_TEST_BROADCAST"
	meetEnv      = "WINDLASS_TEST_MEET"
	shareEnv     = "WINDLASS_TEST_SHARE"
	spoofEnv     = "WINDLASS_TEST_SPOOF"
	// patienceEnv is the variable for callers that should get no answer.
	patienceEnv = "WINDLASS_TEST_PATIENCE"
)

// ids is the range of groups of the tests. groupA and groupB are two groups in it. No other test of
// this host uses them.
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
	case os.Getenv(shareEnv) != "":
		os.Exit(share())
	case os.Getenv(spoofEnv) != "":
		os.Exit(spoof())
	case os.Getenv(bindEnv) != "":
		os.Exit(bindAll())
	case os.Getenv(remoteEnv) != "":
		os.Exit(remote())
	}
	os.Exit(m.Run())
}

// again runs the test binary as a process of a group.
func again(t *testing.T, gid uint32, env string) *exec.Cmd {
	t.Helper()
	// Users other than root can also run the program by this path.
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
	return startVictimAt(t, gid, ":0")
}

// startVictimAt starts a victim at an IPv4 address for UDP.
func startVictimAt(t *testing.T, gid uint32, udp string) (ports, func()) {
	t.Helper()
	cmd := again(t, gid, listenEnv+"="+udp)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var p ports
	require.NoError(t, json.NewDecoder(out).Decode(&p))
	return p, sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })
}

// startSender starts a process that prints a line when it is ready. It sends when send is called.
func startSender(t *testing.T, gid uint32, env string) (cmd *exec.Cmd, send func()) {
	t.Helper()
	cmd = again(t, gid, env)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Env = append(cmd.Env, patienceEnv+"=50ms")
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, func() { require.NoError(t, in.Close()) }
}

// received returns how many datagrams a victim has received over IPv4 and IPv6.
func received(t *testing.T, p ports) [2]string {
	t.Helper()
	count := func(at string) string {
		c, err := net.Dial("udp", at)
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
	return [2]string{count(fmt.Sprintf("127.0.0.1:%d", p.UDP4)), count(fmt.Sprintf("[::1]:%d", p.UDP6))}
}

// detach removes the programs of some hooks, to test the other programs alone.
func detach(t *testing.T, names ...string) {
	t.Helper()
	root, err := openRoot()
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	old, err := attachedPrograms(root, ids)
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

// shareAs returns the result of each way to share a UDP port.
func shareAs(t *testing.T, gid uint32, port int) map[string]string {
	t.Helper()
	out, err := again(t, gid, fmt.Sprintf("%s=%d", shareEnv, port)).Output()
	require.NoError(t, err)
	got := map[string]string{}
	require.NoError(t, json.Unmarshal(out, &got))
	return got
}

// externalAddress returns an IPv4 address of this host that is not a loopback address. If there is
// none, it returns 127.0.0.2.
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
	// All other errors are faults of the guard, for example a program that the kernel's verifier
	// refuses.
	for _, lacks := range []error{errNoCgroups, ebpf.ErrNotSupported, unix.EPERM, unix.ENOSYS} {
		var refused *ebpf.VerifierError
		if errors.Is(err, lacks) && !errors.As(err, &refused) {
			t.Skip("no guard on this host: ", err)
		}
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// requireAll requires that every way had the same result.
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

// inForce returns how many programs of the tests' range the kernel runs.
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
	t.Run("lets instances call processes that are not instances", func(t *testing.T) {
		requireAll(t, "", callAs(t, groupA, startVictim(t, 0)))
	})
	t.Run("stays in force without its agent, and the next agent takes it over with its tags", func(t *testing.T) {
		p := startVictim(t, groupA)
		require.NoError(t, openGuard(t).Close())
		require.Equal(t, len(hooks), inForce(t))
		requireAll(t, "EPERM", callAs(t, groupB, p))
		openGuard(t)
		require.Equal(t, len(hooks), inForce(t), "each program replaces the previous one")
		requireAll(t, "EPERM", callAs(t, groupB, p))
	})
	t.Run("knows sockets that were opened before it", func(t *testing.T) {
		stop(t)
		// For a listener of Multipath TCP, which Go prefers, the kernel has another socket than the
		// instance's.
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
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprintf("refuses packets on arrival, whatever was checked when they were sent, marked: %v", marked), func(t *testing.T) {
			openGuard(t)
			p := startVictim(t, groupA)
			detach(t, "c4", "c6", "s4", "s6")
			if !marked {
				detach(t, "out")
			}
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
	}
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
	t.Run("lets instances connect from a port of another group", func(t *testing.T) {
		g := openGuard(t)
		p, from := startVictim(t, 0), freePort(t)
		require.NoError(t, g.Reserve(groupA, from))
		// The instance may not bind the port. But root may, and the socket is root's until it
		// connects. The kernel may also choose the port.
		out, err := again(t, 0, fmt.Sprintf("%s=%d %d %d", meetEnv, groupB, from, p.All4)).Output()
		require.NoError(t, err)
		require.Equal(t, "<nil>\n", string(out))
		require.NoError(t, g.Free(from))
	})
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprintf("refuses datagrams to many hosts, marked: %v", marked), func(t *testing.T) {
			openGuard(t)
			if !marked {
				detach(t, "out")
			}
			p := startVictim(t, groupA)
			t.Setenv(patienceEnv, "50ms")
			broadcastAs := func(gid uint32) {
				require.NoError(t, again(t, gid, fmt.Sprintf("%s=%d %d %d", broadcastEnv, 0, p.UDP4, p.UDP6)).Run())
			}
			before := received(t, p)
			broadcastAs(groupB)
			require.Equal(t, before, received(t, p))
			broadcastAs(groupA)
			// Without marks, only datagrams on the loopback interface arrive.
			require.Eventually(t, func() bool {
				after := received(t, p)
				return after[0] != before[0] && (after[1] != before[1] || !marked)
			}, time.Minute, 5*time.Millisecond)
		})
	}
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("refuses datagrams to many hosts from a port that groups share, the receiver's: %v", same), func(t *testing.T) {
			openGuard(t)
			// Sockets that were opened before the guard may share ports.
			detach(t, "so")
			from, to := freePort(t), freePort(t)
			if same {
				from = to
			}
			sender, send := startSender(t, groupB, fmt.Sprintf("%s=%d %d 0", broadcastEnv, from, to))
			p, stop := startVictimAt(t, groupA, fmt.Sprintf(":%d", to))
			defer stop()
			if !same {
				// The search for the sender finds the socket that was bound last.
				_, stop := startVictimAt(t, groupA, fmt.Sprintf(":%d", from))
				defer stop()
			}
			send()
			require.NoError(t, sender.Wait())
			require.Equal(t, [2]string{"0", "0"}, received(t, p))
		})
	}
	for _, owner := range []uint32{0, groupA} {
		t.Run(fmt.Sprintf("refuses datagrams with the address of a process of group %d", owner), func(t *testing.T) {
			openGuard(t)
			from, to := freePort(t), freePort(t)
			_, stopOwner := startVictimAt(t, owner, fmt.Sprintf("127.0.0.1:%d", from))
			defer stopOwner()
			// The sender connects before the receiver has the port.
			sender, send := startSender(t, groupB, fmt.Sprintf("%s=%d %d", spoofEnv, from, to))
			p, stop := startVictimAt(t, groupA, fmt.Sprintf(":%d", to))
			defer stop()
			send()
			require.NoError(t, sender.Wait())
			require.Equal(t, [2]string{"0", "0"}, received(t, p))
		})
	}
	t.Run("refuses datagrams to many hosts from a port that another process has at the host's address", func(t *testing.T) {
		openGuard(t)
		for _, owner := range []uint32{0, groupA} {
			from := freePort(t)
			// The sender's socket has a multicast address, so its packets have an address of the host.
			_, stopOwner := startVictimAt(t, owner, net.JoinHostPort(externalAddress(t), strconv.Itoa(from)))
			p := startVictim(t, groupA)
			sender, send := startSender(t, groupB, fmt.Sprintf("%s=%d %d 0 many", broadcastEnv, from, p.UDP4))
			send()
			require.NoError(t, sender.Wait())
			require.Equal(t, [2]string{"0", "0"}, received(t, p), "owner %d", owner)
			stopOwner()
		}
	})
	t.Run("keeps UDP ports from being shared", func(t *testing.T) {
		openGuard(t)
		p := startVictim(t, groupA)
		for _, gid := range []uint32{groupB, groupA, 0} {
			requireAll(t, "EADDRINUSE", shareAs(t, gid, p.UDP4))
		}
		t.Run("ports that were opened before the guard, too", func(t *testing.T) {
			stop(t)
			t.Setenv("GODEBUG", "multipathtcp=0")
			p := startVictim(t, groupA)
			requireAll(t, "", shareAs(t, groupB, p.UDP4))
			openGuard(t)
			requireAll(t, "EADDRINUSE", shareAs(t, groupB, p.UDP4))
		})
	})
	t.Run("leaves other options of sockets alone", func(t *testing.T) {
		openGuard(t)
		for _, gid := range []uint32{groupA, 0} {
			out, err := again(t, gid, shareEnv+"=options").Output()
			require.NoError(t, err)
			require.Empty(t, string(out))
		}
	})
	t.Run("keeps the port of an ended instance from others, and its clients from the next owner", func(t *testing.T) {
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

		// The kernel chose the port of this victim.
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
		// Nothing answers there, and the test does not wait for an answer. Only the guard would
		// return EPERM.
		p := startVictim(t, groupA)
		cmd := again(t, groupB, fmt.Sprintf("%s=%d", remoteEnv, p.All4))
		out, err := cmd.Output()
		require.NoError(t, err)
		require.NotContains(t, string(out), unix.EPERM.Error())
	})
}

// change adds an address to the loopback interface, or removes it, by a message of rtnetlink(7).
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
