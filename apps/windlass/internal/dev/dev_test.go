package dev_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/apps/windlass/internal/dev"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const patience = 60 * time.Second

// machine is a data directory and a CLI configuration of a test.
type machine struct {
	t      *testing.T
	dir    string
	config string
	env    []string
}

func setup(t *testing.T) *machine {
	t.Helper()
	short, err := os.MkdirTemp("", "dev-") //nolint:usetesting // paths of t.TempDir are too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(short)) })
	m := &machine{t: t, dir: filepath.Join(short, "data"), config: filepath.Join(t.TempDir(), "config.yaml")}
	m.env = append(os.Environ(), "DEV_TEST=1", "WINDLASS_CONFIG="+m.config, "WINDLASS_API_KEY=of-the-cli")
	t.Cleanup(func() {
		out, err := m.command("stop").CombinedOutput()
		require.NoError(t, err, string(out))
	})
	return m
}

// command returns `windlass dev ARGS...` on the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	m.t.Helper()
	self, err := os.Executable()
	require.NoError(m.t, err)
	cmd := exec.Command(self, append([]string{"dev", "--data-dir", m.dir}, args...)...)
	cmd.Env = m.env
	return cmd
}

// running is a `windlass dev` in the foreground.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	done chan struct{}
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *running) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

func (r *running) says(text string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return strings.Contains(r.output(), text) }, patience, 20*time.Millisecond,
		"it does not say %q", text)
}

func (m *machine) up(args ...string) *running {
	m.t.Helper()
	r := &running{t: m.t, cmd: m.command(args...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r, r
	require.NoError(m.t, r.cmd.Start())
	go func() {
		_ = r.cmd.Wait()
		close(r.done)
	}()
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Log(r.output())
		}
	})
	r.says("Windlass is ready.")
	return r
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
	select {
	case <-r.done:
	case <-time.After(patience):
		require.FailNow(r.t, "it does not end")
	}
}

func (m *machine) status() dev.Status {
	m.t.Helper()
	out, _ := m.command("status", "-o", "json").Output()
	var s dev.Status
	require.NoError(m.t, json.Unmarshal(out, &s), string(out))
	return s
}

func (m *machine) healthy() dev.Status {
	m.t.Helper()
	var s dev.Status
	require.Eventually(m.t, func() bool { s = m.status(); return s.Healthy }, patience, 50*time.Millisecond)
	return s
}

func (m *machine) instance(region string) int {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, "agents", region, "data", "instance"))
	require.NoError(m.t, err)
	pid, err := strconv.Atoi(string(b))
	require.NoError(m.t, err)
	return pid
}

func requireGone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool {
			_, err := proc.Birth(pid)
			return err != nil
		}, patience, 20*time.Millisecond, "process %d still runs", pid)
	}
}

func pids(s dev.Status) []int {
	var out []int
	for _, p := range s.Processes {
		out = append(out, p.PID)
	}
	return out
}

func TestDev_StartsHealsAndStopsEverything(t *testing.T) {
	m := setup(t)
	first := m.up("--regions", "here,there")
	s := m.healthy()
	require.Equal(t, []string{"here", "there"}, s.Regions)
	require.Len(t, s.Processes, 7)
	here, there := m.instance("here"), m.instance("there")

	// The current context of the CLI leads to this dev.
	f, err := clientconfig.Load(m.config)
	require.NoError(t, err)
	c, err := f.Resolve("", func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, clientconfig.Context{
		Name: "dev", Server: s.API, APIKey: "key-of-run-1",
		Workspace: "default", Project: "default", Environment: "production",
	}, c)

	// Each process that is killed is started again. The instances keep running.
	for _, p := range s.Processes {
		require.NoError(t, syscall.Kill(p.PID, syscall.SIGKILL))
		first.says("ended (signal: killed); starting it again")
		require.Eventually(t, func() bool {
			for _, q := range m.status().Processes {
				if q.Name == p.Name {
					return q.Restarts == 1 && q.Health == "ok" && q.State == "ready" && q.PID != p.PID
				}
			}
			return false
		}, patience, 50*time.Millisecond, p.Name)
	}
	s = m.healthy()
	require.Equal(t, here, m.instance("here"))
	_, err = proc.Birth(here)
	require.NoError(t, err)
	_, err = proc.Birth(there)
	require.NoError(t, err)

	// A second dev reports that one runs already.
	out, err := m.command().CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "already runs")
	require.Contains(t, string(out), strconv.Itoa(s.PID))

	first.signal(syscall.SIGINT)
	require.Zero(t, first.cmd.ProcessState.ExitCode())
	requireGone(t, append(pids(s), here, there)...)
	require.False(t, m.status().Running)

	// The next start has the same regions, ports and key, and the instances.
	second := m.up()
	again := m.healthy()
	require.Equal(t, s.Regions, again.Regions)
	require.Equal(t, s.Ports, again.Ports)
	f, err = clientconfig.Load(m.config)
	require.NoError(t, err)
	c, err = f.Resolve("", func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, "key-of-run-1", c.APIKey)
	_, err = proc.Birth(m.instance("here"))
	require.NoError(t, err)
	second.signal(syscall.SIGTERM)
	require.Zero(t, second.cmd.ProcessState.ExitCode())
}

func TestDev_TakesOverInstancesAfterAKill(t *testing.T) {
	m := setup(t)
	first := m.up("--regions", "here")
	s := m.healthy()
	here := m.instance("here")
	first.signal(syscall.SIGKILL)
	require.Len(t, m.status().Left, 5)

	second := m.up()
	require.Contains(t, second.output(), "stopped what an earlier run left behind")
	requireGone(t, pids(s)...)
	again := m.healthy()
	require.Equal(t, here, m.instance("here"), "a killed dev costs no instance")

	second.signal(syscall.SIGKILL)
	out, err := m.command("stop").CombinedOutput()
	require.NoError(t, err, string(out))
	requireGone(t, append(pids(again), here)...)
	require.Empty(t, m.status().Left)
}

func TestDetach_ReturnsWhenReadyAndStopEndsIt(t *testing.T) {
	m := setup(t)
	other := filepath.Join(t.TempDir(), "other.yaml")
	out, err := m.command("--detach", "--regions", "here", "--config", other).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "Windlass is ready.")
	f, err := clientconfig.Load(other)
	require.NoError(t, err)
	require.Equal(t, "dev", f.Current)
	require.NoFileExists(t, m.config)
	s := m.healthy()

	out, err = m.command("--detach").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "already runs")

	out, err = m.command("status").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "agent/here")

	out, err = m.command("stop").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "stopped")
	requireGone(t, append(pids(s), s.PID)...)

	out, err = m.command("status").CombinedOutput()
	require.Error(t, err, "status must fail if dev does not run")
	require.Contains(t, string(out), "does not run")
}

func TestDev_TakenPortIsReplacedAndKept(t *testing.T) {
	m := setup(t)
	m.up("--regions", "here").signal(syscall.SIGTERM)
	before := m.status().Ports["api"]
	// Another stack may have claimed the port meanwhile. Then it is taken, too.
	pool := localstack.Ports{Claims: localstack.ClaimsFolder()}
	if _, taken, err := pool.Take(before); err == nil && !taken {
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(before)))
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
	}

	second := m.up()
	require.Contains(t, second.output(), "port "+strconv.Itoa(before)+" is taken; api uses")
	after := m.healthy().Ports["api"]
	require.NotEqual(t, before, after)
	second.signal(syscall.SIGTERM)

	third := m.up()
	require.NotContains(t, third.output(), "is taken")
	require.Equal(t, after, m.healthy().Ports["api"])
	third.signal(syscall.SIGTERM)
}

func TestDev_FailedStartIsOneLineAndLeavesNothing(t *testing.T) {
	for _, mode := range []string{"", "--detach"} {
		m := setup(t)
		m.env = append(m.env, "DEV_TEST_BROKEN=controlplane")
		args := []string{"--regions", "here"}
		if mode != "" {
			args = append(args, mode)
		}
		out, err := m.command(args...).CombinedOutput()
		require.Error(t, err)
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		last := lines[len(lines)-1]
		require.Contains(t, last, "Error: control plane: ended (exit status 1): Error: the key file is unreadable")
		require.Contains(t, last, filepath.Join(m.dir, "controlplane", "log"))
		s := m.status()
		require.False(t, s.Running)
		require.Empty(t, s.Left)
	}
}

func TestReset_BeginsAnew(t *testing.T) {
	m := setup(t)
	require.NoError(t, os.MkdirAll(m.dir, 0o700))
	mine := filepath.Join(m.dir, "notes.txt")
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	m.up("--regions", "here").signal(syscall.SIGTERM)

	second := m.up("--reset", "--regions", "there")
	require.NoDirExists(t, filepath.Join(m.dir, "agents", "here"))
	require.FileExists(t, mine, "reset must not remove a file that dev did not create")
	f, err := clientconfig.Load(m.config)
	require.NoError(t, err)
	require.Equal(t, "key-of-run-1", f.Contexts[0].APIKey, "the database is new")
	second.signal(syscall.SIGTERM)
}

func TestOptions_ErrorNamesTheOption(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--regions", ""}, "--regions is empty"},
		{[]string{"--regions", "Us-East"}, `--regions: "Us-East" is not a name`},
		{[]string{"--regions", "../x"}, "is not a name"},
		{[]string{"--regions", "a,b,a"}, "--regions: a is named twice"},
		{[]string{"--gpus", "many"}, `--gpus: "many" is not auto, none or a number`},
		{[]string{"--gpus", "-1"}, "--gpus"},
		{[]string{"--context", ""}, "--context is empty"},
		{[]string{"--data-dir", file}, "is not a folder"},
		{[]string{"status", "-o", "xml"}, `--output: "xml" is not table, json or yaml`},
		{[]string{"extra"}, "unknown command"},
	} {
		m := setup(t)
		out, err := m.command(c.args...).CombinedOutput()
		require.Error(t, err, c.args)
		require.Contains(t, string(out), c.want)
		require.NoDirExists(t, m.dir)
	}
}
