package workload

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

const patience = time.Minute

var env = []string{"PATH=" + os.Getenv("PATH")}

type ending struct {
	t *testing.T
	c chan lifecycle.Exit
}

func newEnding(t *testing.T) ending { return ending{t, make(chan lifecycle.Exit, 10)} }

func (e ending) exit(x lifecycle.Exit) { e.c <- x }

// await returns how the run ended, and checks that exit is called only once.
func (e ending) await() lifecycle.Exit {
	e.t.Helper()
	select {
	case x := <-e.c:
		require.Empty(e.t, e.c)
		return x
	case <-time.After(patience):
		e.t.Fatal("the run does not end")
		return lifecycle.Exit{}
	}
}

func startHost(t *testing.T, timing Timing, script string) (*Run, ending) {
	t.Helper()
	e := newEnding(t)
	run, err := NewSpawner(t.Context()).StartHost(Host{Log: &Log{}, Timing: timing, Argv: []string{"sh", "-c", script}, Env: env, Dir: t.TempDir()}, e.exit)
	require.NoError(t, err)
	return run, e
}

func logged(t *testing.T, run *Run, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(run.Log.Tail(), text) }, patience, time.Millisecond, "the log says %s", text)
}

func TestProcess_EndsWithItsCodeAndLastOutput(t *testing.T) {
	_, e := startHost(t, Timing{}, "echo one; printf two >&2; exit 3")
	require.Equal(t, lifecycle.Exit{Code: 3, LogTail: "one\ntwo"}, e.await())
}

func TestProcess_TerminateSignalsItAndKillItsGroup(t *testing.T) {
	run, e := startHost(t, Timing{}, "trap 'echo asked' TERM; sleep 1000 & echo child $!; while :; do wait; done")
	logged(t, run, "child")
	child := strings.Fields(run.Log.Tail())[1]
	run.Terminate()
	logged(t, run, "asked")
	run.Kill()
	x := e.await()
	require.Equal(t, int32(137), x.Code)
	require.Equal(t, int32(9), x.Signal)
	require.Eventually(t, func() bool { return gone(child) }, patience, time.Millisecond)
}

func gone(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z")
}

func TestProcess_ThatEndsEndsItsChildren(t *testing.T) {
	run, e := startHost(t, Timing{}, "sleep 1000 & echo child $!")
	require.Equal(t, int32(0), e.await().Code)
	require.Eventually(t, func() bool { return gone(strings.Fields(run.Log.Tail())[1]) }, patience, time.Millisecond)
}

func TestProcess_DiesWithItsSpawner(t *testing.T) {
	e := newEnding(t)
	ctx, cancel := context.WithCancel(context.Background())
	run, err := NewSpawner(ctx).StartHost(Host{Log: &Log{}, Argv: []string{"sh", "-c", "echo up; exec sleep 1000"}, Env: env}, e.exit)
	require.NoError(t, err)
	logged(t, run, "up")
	cancel()
	// If the spawner runs on the first thread of this test binary, that thread does not end with its
	// goroutine. Then only the end of the binary kills the process.
	select {
	case x := <-e.c:
		require.Equal(t, int32(137), x.Code)
	case <-time.After(2 * time.Second):
		run.Kill()
	}
}

func TestProcess_FrozenDoesNothingAndCanBeKilled(t *testing.T) {
	run, e := startHost(t, Timing{}, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
	logged(t, run, "5")
	run.Freeze(true)
	// Output from before the freeze may still arrive. Two equal readings mean that it has arrived.
	last := ""
	require.Eventually(t, func() bool {
		a := run.Log.Tail()
		quiet := a == last
		last = a
		return quiet
	}, patience, 50*time.Millisecond)
	before := run.Log.Tail()
	run.Freeze(false)
	require.Eventually(t, func() bool { return run.Log.Tail() != before }, patience, time.Millisecond)
	run.Freeze(true)
	run.Kill()
	require.Equal(t, int32(137), e.await().Code)
}

func TestProgram_ThatCannotBeFoundIsAnError(t *testing.T) {
	s := NewSpawner(t.Context())
	for want, argv := range map[string][]string{
		"no command specified":                                nil,
		`exec: "vllm": executable file not found in $PATH`:    {"vllm"},
		"start /nowhere/prog: fork/exec /nowhere/prog: no su": {"/nowhere/prog"},
	} {
		_, err := s.StartHost(Host{Log: &Log{}, Argv: argv, Env: env}, func(lifecycle.Exit) { t.Error("exit after an error") })
		require.ErrorContains(t, err, want)
	}
}

func TestRun_ThatHasNotBegunCanBeEnded(t *testing.T) {
	for name, timing := range map[string]Timing{"idle": {Idle: true}, "delayed": {Delay: time.Hour}} {
		run, e := startHost(t, timing, "echo begun")
		run.Freeze(true)
		run.Terminate()
		run.Kill()
		require.Equal(t, lifecycle.Exit{Code: 143}, e.await(), name)

		run, e = startHost(t, timing, "echo begun")
		run.Kill()
		require.Equal(t, lifecycle.Exit{Code: 137, Signal: 9}, e.await(), name)
	}
}

func TestProgram_DelayedRunsLater(t *testing.T) {
	run, e := startHost(t, Timing{Delay: 20 * time.Millisecond}, "echo begun; exit 4")
	handler, inProcess := run.Handler(80)
	require.Nil(t, handler)
	require.True(t, inProcess, "before the start it is known that nothing listens")
	require.Equal(t, lifecycle.Exit{Code: 4, LogTail: "begun\n"}, e.await())
}

func TestExec_ReturnsTheOutputOfTheCommand(t *testing.T) {
	s := NewSpawner(t.Context())
	out, err := s.Exec(t.Context(), Host{Argv: []string{"echo", "fine"}, Env: env})
	require.NoError(t, err)
	require.Equal(t, "fine\n", out)
	_, err = s.Exec(t.Context(), Host{Argv: []string{"sh", "-c", "echo why; exit 2"}, Env: env})
	require.ErrorContains(t, err, "exited with 2: why")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Exec(ctx, Host{Argv: []string{"sleep", "1000"}, Env: env})
	require.ErrorContains(t, err, "timed out")
}

func freePort(t *testing.T, address string) int {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func startModel(t *testing.T, m Model) (*Run, ending) {
	t.Helper()
	e := newEnding(t)
	m.Log, m.Address = &Log{}, netip.MustParseAddr("127.71.0.1")
	run, err := StartModel(m, e.exit)
	require.NoError(t, err)
	t.Cleanup(run.Kill)
	return run, e
}

func get(port int, path string) (int, error) {
	client := &http.Client{Timeout: 300 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + net.JoinHostPort("127.71.0.1", strconv.Itoa(port)) + path)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestModelServer_ListensOnEveryPortAndDrains(t *testing.T) {
	one, two := freePort(t, "127.71.0.1"), freePort(t, "127.71.0.1")
	run, e := startModel(t, Model{Ports: []int{one, two}, Args: []string{"python", "-m", "vllm", "--model", "m1", "--gpu-memory-utilization", "0.9"}})
	for _, port := range []int{one, two} {
		code, err := get(port, "/v1/models/m1")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		handler, inProcess := run.Handler(port)
		require.NotNil(t, handler)
		require.True(t, inProcess)
	}
	run.Terminate()
	x := e.await()
	require.Equal(t, int32(0), x.Code)
	require.Contains(t, x.LogTail, "drained")
	handler, inProcess := run.Handler(one)
	require.Nil(t, handler)
	require.True(t, inProcess)
}

func TestModelServer_ListensWhereItsFlagSays(t *testing.T) {
	port := freePort(t, "127.71.0.1")
	run, _ := startModel(t, Model{Ports: []int{1}, Args: []string{"--port", strconv.Itoa(port)}})
	handler, _ := run.Handler(port)
	require.NotNil(t, handler)
	handler, _ = run.Handler(1)
	require.Nil(t, handler)
}

func TestEngineImage_IsRunByItsCommandLine(t *testing.T) {
	port := freePort(t, "127.71.0.1")
	args := []string{"m1", "--port", strconv.Itoa(port)}
	run, e := startModel(t, Model{Ports: []int{1}, Image: "vllm/vllm-openai:v0.20.0", Args: args, Env: map[string]string{"MODELSERVER_FAULT_NEVER_READY": "true"}})
	logged(t, run, "loading")
	_, err := get(port, "/health")
	require.ErrorContains(t, err, "connection refused", "it listens when the model is loaded")
	handler, inProcess := run.Handler(port)
	require.Nil(t, handler)
	require.True(t, inProcess)
	run.Terminate()
	require.Equal(t, int32(0), e.await().Code)

	run, e = startModel(t, Model{Image: "vllm/vllm-openai:v0.20.0", Args: args})
	require.Eventually(t, func() bool { code, err := get(port, "/version"); return err == nil && code == http.StatusOK }, patience, time.Millisecond)
	handler, _ = run.Handler(port)
	require.NotNil(t, handler)
	run.Freeze(true)
	_, err = get(port, "/health")
	require.ErrorContains(t, err, "Client.Timeout")
	run.Kill()
	require.Equal(t, int32(137), e.await().Code)

	_, e = startModel(t, Model{Args: []string{"python3", "-m", "sglang.launch_server", "--model-path", "m", "--load-time", "1s"}})
	x := e.await()
	require.Equal(t, int32(2), x.Code)
	require.Contains(t, x.LogTail, "launch_server.py: error: unrecognized arguments: --load-time 1s")
}

func TestModelServer_FrozenBeforeItListensIsSilent(t *testing.T) {
	port := freePort(t, "127.71.0.1")
	run, _ := startModel(t, Model{Args: []string{"vllm", "serve", "m", "--port", strconv.Itoa(port)}, Env: map[string]string{"MODELSERVER_LOAD_TIME": "100ms"}})
	run.Freeze(true)
	logged(t, run, "listening")
	_, err := get(port, "/health")
	require.ErrorContains(t, err, "Client.Timeout")
}

func TestModelServer_KilledCutsItsConnections(t *testing.T) {
	port := freePort(t, "127.71.0.1")
	run, e := startModel(t, Model{Ports: []int{port}, Env: map[string]string{"MODELSERVER_FAULT_IGNORE_SIGTERM": "true", "MODELSERVER_FAULT_HANG": "true"}})
	answered := make(chan error, 1)
	go func() {
		_, err := http.Get(fmt.Sprintf("http://127.71.0.1:%d/health", port))
		answered <- err
	}()
	run.Terminate()
	run.Kill()
	x := e.await()
	require.Equal(t, int32(137), x.Code)
	require.Error(t, <-answered)
	_, err := get(port, "/health")
	require.ErrorContains(t, err, "connection refused")
}

func TestModelServer_FrozenIsSilentAndContinuesLater(t *testing.T) {
	port := freePort(t, "127.71.0.1")
	run, _ := startModel(t, Model{Ports: []int{port}})
	kept, err := net.Dial("tcp", fmt.Sprintf("127.71.0.1:%d", port))
	require.NoError(t, err)
	defer kept.Close()
	run.Freeze(true)
	_, err = fmt.Fprint(kept, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	_, err = get(port, "/health")
	require.ErrorContains(t, err, "Client.Timeout")
	run.Freeze(false)
	require.NoError(t, kept.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 12)
	_, err = io.ReadFull(kept, buf)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200", string(buf))
}

func TestModelServer_ThatCannotServeEndsAndSaysWhy(t *testing.T) {
	taken, err := net.Listen("tcp", "127.71.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for want, m := range map[string]Model{
		"address already in use": {Ports: []int{taken.Addr().(*net.TCPAddr).Port}},
		"--load-time":            {Args: []string{"--load-time", "soon"}},
		"crashed at start":       {Ports: []int{freePort(t, "127.71.0.1")}, Args: []string{"--fault-crash-at-start"}},
		"--concurrency":          {Ports: []int{freePort(t, "127.71.0.1")}, Args: []string{"--concurrency", "-1"}},
	} {
		_, e := startModel(t, m)
		x := e.await()
		require.Equal(t, int32(1), x.Code, want)
		require.Contains(t, x.LogTail, want)
	}
}

func TestContainer_WithoutPortsJustRuns(t *testing.T) {
	run, e := startModel(t, Model{})
	handler, _ := run.Handler(8000)
	require.Nil(t, handler)
	run.Terminate()
	require.Equal(t, int32(143), e.await().Code)

	_, e = startModel(t, Model{Done: true})
	require.Equal(t, int32(0), e.await().Code)
}

func TestLog_KeepsItsEndAndWakesFollowers(t *testing.T) {
	l := &Log{}
	_, _ = l.Write([]byte("a\nb"))
	lines, next, more := l.Since(0)
	require.Len(t, lines, 1)
	require.Equal(t, 1, next)
	_, _ = l.Write([]byte("c\n"))
	<-more
	lines, next, _ = l.Since(next)
	require.Equal(t, "bc", lines[0].Text)
	for i := range 10_000 {
		_, _ = fmt.Fprintf(l, "line %d of many that together are too long to be kept\n", i)
	}
	lines, next, more = l.Since(next)
	require.Less(t, len(lines), 10_000)
	require.Equal(t, 10_002, next)
	require.Contains(t, lines[len(lines)-1].Text, "line 9999")
	require.LessOrEqual(t, len(l.Tail()), tailBytes)
	_, _ = l.Write([]byte("unfinished"))
	l.close()
	<-more
	lines, _, more = l.Since(next)
	require.Equal(t, "unfinished", lines[0].Text)
	require.Nil(t, more)
}

func TestLog_LineWithoutEndIsBounded(t *testing.T) {
	l := &Log{}
	for range 100 {
		_, _ = l.Write([]byte(strings.Repeat("x", 1000)))
	}
	lines, next, _ := l.Since(0)
	require.Len(t, lines, 5, "a line ends after the first write that reaches 16 KiB, the 17th")
	require.Equal(t, 5, next)
	for _, line := range lines {
		require.Len(t, line.Text, 17_000)
	}
	l.close()
	lines, _, _ = l.Since(5)
	require.Len(t, lines, 1)
	require.Len(t, lines[0].Text, 15_000)
}
