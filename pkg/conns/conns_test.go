package conns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	patience = time.Minute
	step     = time.Millisecond
)

// at returns the address of a client with this host and port.
func at(host string, port int) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port)))
}

// clients adds connections with names, and records the names of closed connections.
type clients struct {
	*Table

	entries map[string]*Entry
	closed  []string
}

func newClients(limits Limits) *clients {
	return &clients{Table: New(limits), entries: map[string]*Entry{}}
}

func (c *clients) add(host, name string) bool {
	e, ok := c.Add(at(host, len(c.entries)+1), func() { c.closed = append(c.closed, name) })
	if ok {
		c.entries[name] = e
	}
	return ok
}

func TestTable(t *testing.T) {
	t.Parallel()
	const one, other = "192.0.2.1", "192.0.2.2"

	t.Run("the connection that is idle for longest goes first", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 3})
		for _, name := range []string{"a", "b", "c"} {
			require.True(t, c.add(one, name))
		}
		c.entries["a"].Begin()
		require.True(t, c.add(other, "d"))
		require.Equal(t, []string{"b"}, c.closed)
		c.entries["a"].End() // later than c and d
		require.True(t, c.add(other, "e"))
		require.True(t, c.add(other, "f"))
		require.Equal(t, []string{"b", "c", "d"}, c.closed)
		open, refused, shed := c.Figures()
		require.Equal(t, []int64{3, 0, 3}, []int64{open, refused, shed})
	})
	t.Run("connections with requests stay", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 2})
		for _, name := range []string{"a", "b"} {
			require.True(t, c.add(one, name))
			c.entries[name].Begin()
		}
		require.False(t, c.add(other, "c"))
		require.Empty(t, c.closed)
		c.entries["a"].Done()
		c.entries["a"].Done()
		require.True(t, c.add(other, "c"))
		_, refused, _ := c.Figures()
		require.Equal(t, int64(1), refused)
	})
	t.Run("an address at its limit closes only its own connections", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 10, PerAddress: 2})
		require.True(t, c.add(other, "other"))
		for _, name := range []string{"a", "b", "c"} {
			require.True(t, c.add(one, name))
		}
		require.Equal(t, []string{"a"}, c.closed)
		c.entries["b"].Begin()
		c.entries["c"].Begin()
		require.False(t, c.add(one, "d"))
		require.True(t, c.add(other, "another"))
	})
	t.Run("an address with more than its share closes its own connections", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 4})
		require.True(t, c.add(other, "other"))
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			require.True(t, c.add(one, name))
		}
		require.Equal(t, []string{"a", "b"}, c.closed)
		for _, name := range []string{"c", "d", "e"} {
			c.entries[name].Begin()
		}
		require.False(t, c.add(one, "f"), "all connections of the address have requests")
		c.entries["e"].End()
		require.True(t, c.add(one, "g"))
		require.Equal(t, []string{"a", "b", "e"}, c.closed)
		require.True(t, c.add("192.0.2.3", "new"))
		require.Equal(t, []string{"a", "b", "e", "other"}, c.closed, "an address without connections takes the place of the connection that is idle for longest")
	})
	t.Run("a proxy has no share of its own", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 4, Exempt: func(host netip.Addr) bool { return host == netip.MustParseAddr(one) }})
		require.True(t, c.add(other, "other"))
		for _, name := range []string{"a", "b", "c"} {
			require.True(t, c.add(one, name))
			c.entries[name].Begin()
		}
		require.True(t, c.add(one, "d"), "all connections of the proxy have requests, and another address has an idle connection")
		require.Equal(t, []string{"other"}, c.closed)
	})
	t.Run("a network of IPv6 is one address", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{PerAddress: 1})
		require.True(t, c.add("2001:db8::1", "a"))
		require.True(t, c.add("2001:db8::2", "b"))
		require.Equal(t, []string{"a"}, c.closed)
		c.entries["b"].Done()
		require.Empty(t, c.addresses)
		require.True(t, c.add("2001:db8::2", "b2"))
		require.True(t, c.add("2001:db8:0:1::1", "c"))
		require.True(t, c.add("::ffff:192.0.2.1", "d"))
		require.True(t, c.add(one, "e"))
		require.Equal(t, []string{"a", "d"}, c.closed)
	})
	t.Run("a proxy may have more connections than an address", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{Total: 3, PerAddress: 1, Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr(one) }})
		require.True(t, c.add(one, "a"))
		require.True(t, c.add(one, "b"))
		require.Empty(t, c.closed)
	})
	t.Run("it sheds only idle connections", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{})
		for i := range 10 {
			require.True(t, c.add(one, fmt.Sprint(i)))
		}
		c.entries["0"].Begin()
		c.Shed(4)
		require.Equal(t, []string{"1", "2", "3", "4"}, c.closed)
		c.Shed(100)
		require.Len(t, c.closed, 9)
		require.Empty(t, New(Limits{}).addresses)
	})
	t.Run("it forgets addresses without connections", func(t *testing.T) {
		t.Parallel()
		c := newClients(Limits{PerAddress: 1})
		for i := range 100 {
			require.True(t, c.add(fmt.Sprintf("192.0.2.%d", i), fmt.Sprint(i)))
			c.entries[fmt.Sprint(i)].Done()
		}
		require.Empty(t, c.addresses)
	})
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	for descriptors, want := range map[int]Limits{
		0: {Total: 32768, PerAddress: 8192}, 20: {Total: 64, PerAddress: 16}, 20_000: {Total: 10_000, PerAddress: 2500}, 1 << 20: {Total: 32768, PerAddress: 8192},
	} {
		got := Limits{}.withDefaults(descriptors)
		require.Equal(t, []int{want.Total, want.PerAddress}, []int{got.Total, got.PerAddress})
	}
	got := Limits{Total: -1}.withDefaults(1000)
	require.Equal(t, []int{-1, 0}, []int{got.Total, got.PerAddress})
}

func TestLocal(t *testing.T) {
	t.Parallel()
	dial := func(errno syscall.Errno) error {
		return fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", errno)})
	}
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		require.True(t, Local(dial(errno)), errno)
	}
	for _, err := range []error{nil, errors.New("x"), dial(syscall.ECONNREFUSED), dial(syscall.EHOSTUNREACH), dial(syscall.ETIMEDOUT), context.DeadlineExceeded} {
		require.False(t, Local(err), err)
	}
}

// A server on a listener of Listen keeps a connection with a request, and closes a connection without one.
func TestListen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	table := New(Limits{Total: 2})
	began, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			close(began)
			<-release
		}
	})))
	server.Listener.Close()
	server.Listener, server.Config.ConnContext = table.Listen(l), Context
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	waited := make(chan error, 1)
	go func() {
		res, err := client.Get(server.URL + "/wait")
		if err == nil {
			err = res.Body.Close()
		}
		waited <- err
	}()
	<-began
	idle, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer idle.Close()
	require.Eventually(t, func() bool { open, _, _ := table.Figures(); return open == 2 }, patience, step)
	third, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer third.Close()
	_, err = idle.Read(make([]byte, 1))
	require.Error(t, err)
	close(release)
	require.NoError(t, <-waited)
}
