package restate_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// start starts a server that is stopped at the end of the test.
func start(t *testing.T, cfg restate.Config) *restate.Server {
	t.Helper()
	cfg.DieWithParent, cfg.Relaxed = true, true
	s, err := restate.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

func requireOK(t *testing.T, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode, url)
}

func TestStart_AfterAKillUsesOtherPorts(t *testing.T) {
	dir := t.TempDir()
	first := start(t, restate.Config{Dir: dir})
	requireOK(t, first.AdminURL()+"/deployments")
	requireOK(t, first.IngressURL()+"/restate/health")
	require.NoError(t, syscall.Kill(first.PID(), syscall.SIGKILL))
	require.ErrorContains(t, first.Wait(), "signal: killed")

	second := start(t, restate.Config{Dir: dir})
	require.NotEqual(t, first.AdminURL(), second.AdminURL())
	requireOK(t, second.AdminURL()+"/deployments")

	// The second server still runs, as after a kill -9 of its parent. A third start stops it and replaces it.
	third := start(t, restate.Config{Dir: dir})
	<-second.Done()
	requireOK(t, third.AdminURL()+"/deployments")
}

func TestStart_NamesATakenPort(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = restate.Start(t.Context(), restate.Config{Dir: t.TempDir(), AdminPort: port})
	require.ErrorContains(t, err, "admin port")
	require.ErrorContains(t, err, "is taken by another process")
}

func TestStart_ErrorNamesTheLogFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
	_, err := restate.Start(t.Context(), restate.Config{Dir: dir})
	require.ErrorContains(t, err, filepath.Join(dir, "restate.log"))
	require.NotContains(t, err.Error(), "\n")
}

func TestEnsure_RepeatsAnUnfinishedInstallation(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads the server")
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	tmp := filepath.Join(cache, "windlass", "restate", restate.Version+".tmp", "node_modules")
	require.NoError(t, os.MkdirAll(tmp, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(tmp, "leftover"), nil, 0o600))
	var lines []string
	program, err := restate.Ensure(t.Context(), func(line string) { lines = append(lines, line) })
	require.NoError(t, err)
	require.FileExists(t, program)
	require.NoFileExists(t, filepath.Join(cache, "windlass", "restate", restate.Version, "node_modules", "leftover"))
	require.Len(t, lines, 2, "one line names the program to install, and one line reports the end")

	lines = nil
	again, err := restate.Ensure(t.Context(), func(line string) { lines = append(lines, line) })
	require.NoError(t, err)
	require.Equal(t, program, again)
	require.Empty(t, lines, "the second call installs nothing")
}
