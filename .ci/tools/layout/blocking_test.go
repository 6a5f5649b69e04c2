package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Code that waits on a poller of the gateway's engine stops the requests of other connections.
func TestPoller_IsNeverBlocked(t *testing.T) {
	root, _ := workspace(t)
	code, err := LoadCode(root, "apps/gateway")
	require.NoError(t, err)
	found, err := code.Blocking([]string{
		"(*apps/gateway/internal/engine.Conn).serveRequests",
		"(*apps/gateway/internal/proxy.Proxy).Handle",
		"apps/gateway/internal/upstream.Config",
		"(*apps/gateway/internal/engine/epoll.Conn).applyEvents",
	}, []string{
		"(*apps/gateway/internal/engine/epoll.Conn).awaitReadable", // it waits on a channel only outside a task
	})
	require.NoError(t, err)
	for _, f := range found {
		t.Errorf("%s: put it into Conn.Blocking", f)
	}
}

func TestPoller_BlockingCallsAreFound(t *testing.T) {
	_, err := (&Code{}).Blocking([]string{"gone"}, nil)
	require.ErrorContains(t, err, "there is no gone")

	// This is a separate module with a task, and with all forms of blocking code.
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+strings.TrimSuffix(Prefix, "/")+"/made\n\ngo 1.26.0\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "made.go"), []byte(`package made

import (
	"log/slog"
	"sync"
	"time"
)

type task struct{}

func (task) Blocking(f func()) { f() }

type config struct{ told func() }

var Config = config{told: func() { time.Sleep(1) }}

func Root(t task, c chan int, log *slog.Logger) {
	t.Blocking(func() { <-c })
	go func() { <-c }()
	select {
	case <-c:
	default:
	}
	defer below(c, log)
	time.AfterFunc(1, func() { c <- 1 })
}

func below(c chan int, log *slog.Logger) {
	log.Info("x")
	func() { c <- 1 }()
	var all sync.WaitGroup
	all.Wait()
	generic(c)
	spared(c)
}

func generic[T any](c chan T) {
	for range c {
	}
	select {
	case <-c:
	}
}

func spared(c chan int) { <-c }
`), 0o600))
	t.Setenv("GOWORK", "off")
	code, err := LoadCode(dir, "made")
	require.NoError(t, err)
	found, err := code.Blocking([]string{"made.Root", "made.config"}, []string{"made.spared"})
	require.NoError(t, err)
	all := strings.Join(found, "\n")
	for _, want := range []string{
		"time.Sleep, reached by made.config.told", "(*log/slog.Logger).Info, reached by made.Root > below", "a send, reached by made.Root > below",
		"(*sync.WaitGroup).Wait", "a range over a channel, reached by made.Root > below > generic", "a select without a default",
	} {
		require.Contains(t, all, want)
	}
	require.Len(t, found, 6, all)
}
