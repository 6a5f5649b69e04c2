package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If beTheProgram is set in the environment, the test binary runs the program. So
// signals and exit codes are real.
const beTheProgram = "MODELSERVER_TEST_BE_THE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(beTheProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = time.Minute

type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	err  *bufio.Scanner
	addr string
}

func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append([]string{beTheProgram + "=1"}, env...)
	return started(t, cmd)
}

func started(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{t: t, cmd: cmd, err: bufio.NewScanner(stderr)}
}

// await reads the program's log up to a line that contains what, and returns that line.
func (p *process) await(what string) string {
	p.t.Helper()
	for p.err.Scan() {
		if strings.Contains(p.err.Text(), what) {
			return p.err.Text()
		}
	}
	require.FailNow(p.t, "the program ended without saying "+what)
	return ""
}

// ready waits until the program answers its health check.
func (p *process) ready() *process {
	p.t.Helper()
	_, rest, _ := strings.Cut(p.await("listening"), "address=")
	p.addr, _, _ = strings.Cut(rest, " ")
	require.Eventually(p.t, func() bool {
		r, err := http.Get("http://" + p.addr + "/health")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, patience, 2*time.Millisecond)
	return p
}

// exitCode waits for the end of the program. After it, the log cannot be read.
func (p *process) exitCode() int {
	p.t.Helper()
	for p.err.Scan() {
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestSIGTERM_DrainsAndExitsWithZero(t *testing.T) {
	p := launch(t, []string{"PORT=0"}, "--token-rate=50").ready()
	r, err := http.Post("http://"+p.addr+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"echo","prompt":"0 1 2 3 4 5 6 7 8 9","stream":true}`))
	require.NoError(t, err)
	defer r.Body.Close()
	in := bufio.NewReader(r.Body)
	first, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, first, `"text":"0"`)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await("draining")
	rest, err := io.ReadAll(in)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"), string(rest))
	require.Equal(t, 0, p.exitCode())
}

func TestCrash_HasItsExitCode(t *testing.T) {
	require.Equal(t, 7, launch(t, nil, "--fault-crash-at-start", "--fault-exit-code=7").exitCode())
	require.Equal(t, 9, launch(t, []string{"MODELSERVER_FAULT_EXIT_CODE=9"}, "--port=0", "--fault-crash-after=10ms").exitCode())
}

func TestIgnoredSIGTERM_NeedsSIGKILL(t *testing.T) {
	p := launch(t, nil, "--port=0", "--fault-ignore-sigterm").ready()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.await("ignoring")
	r, err := http.Get("http://" + p.addr + "/health")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, p.cmd.Process.Kill())
	require.Equal(t, -1, p.exitCode(), "the signal ended the program")
}

func TestPort_ClashExitsWithOneAndSaysWhatToDo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	p := launch(t, nil, fmt.Sprintf("--port=%d", taken.Addr().(*net.TCPAddr).Port))
	p.await("choose another --host or --port")
	require.Equal(t, 1, p.exitCode())
}

func TestFlag_WinsOverTheEnvironment(t *testing.T) {
	p := launch(t, []string{"PORT=1", "MODELSERVER_PORT=0", "MODELSERVER_VERSION_LABEL=env", "MODELSERVER_MODEL=env"}, "--version-label=flag").ready()
	r, err := http.Get("http://" + p.addr + "/v1/models/env")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, "flag", r.Header.Get("X-Model-Version"))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 0, p.exitCode())
}

func TestFlag_BadIsNamed(t *testing.T) {
	p := launch(t, nil, "--queue=-1")
	p.await("--queue must not be negative")
	require.NotZero(t, p.exitCode())
}

func TestEngine_CommandLine(t *testing.T) {
	t.Run("is refused with the engine's message", func(t *testing.T) {
		p := launch(t, nil, "vllm", "serve", "m", "--load-time", "1s")
		require.Equal(t, "vllm serve: error: unrecognized arguments: --load-time 1s", p.await("error"))
		require.Equal(t, 2, p.exitCode())
		p = launch(t, nil, "sglang", "serve")
		p.await("the following arguments are required: --model-path/--model")
		require.Equal(t, 2, p.exitCode())
		p = launch(t, nil, "vllm", "serve", "m", "-tp", "0")
		p.await("greater than or equal to 1")
		require.Equal(t, 1, p.exitCode())
		require.Zero(t, launch(t, nil, "vllm", "serve", "--help").exitCode())
	})
	t.Run("may be under the engine's name", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Args = []string{"/usr/bin/vllm", "serve", "m", "--port", "0", "--host", "127.0.0.1"}
		cmd.Env = []string{beTheProgram + "=1", "MODELSERVER_VERSION_LABEL=v3"}
		p := started(t, cmd).ready()
		r, err := http.Get("http://" + p.addr + "/version")
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, "v3", r.Header.Get("X-Model-Version"))
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Zero(t, p.exitCode())
	})
	t.Run("may crash while it loads", func(t *testing.T) {
		p := launch(t, []string{"MODELSERVER_LOAD_TIME=1h", "MODELSERVER_FAULT_CRASH_AFTER=10ms", "MODELSERVER_FAULT_EXIT_CODE=7"}, "vllm", "serve", "m", "--port", "0")
		p.await("loading")
		require.Equal(t, 7, p.exitCode())
	})
	t.Run("fails before it loads if the port is taken", func(t *testing.T) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer taken.Close()
		p := launch(t, []string{"MODELSERVER_LOAD_TIME=1h"}, "python3", "-m", "sglang.launch_server", "--model-path", "m", "--port", fmt.Sprint(taken.Addr().(*net.TCPAddr).Port))
		p.await("cannot listen on")
		require.Equal(t, 1, p.exitCode())
	})
}

func TestKVTransfer_BetweenProcesses(t *testing.T) {
	serve := func(role string) *process {
		return launch(t, []string{"VLLM_NIXL_SIDE_CHANNEL_PORT=0", "MODELSERVER_TOKEN_RATE=0"}, "vllm", "serve", "m", "--host", "127.0.0.1", "--port", "0",
			"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"`+role+`"}`).ready()
	}
	post := func(p *process, params string) (int, map[string]json.RawMessage) {
		r, err := http.Post("http://"+p.addr+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a b c","kv_transfer_params":`+params+`}`))
		require.NoError(t, err)
		defer r.Body.Close()
		var body map[string]json.RawMessage
		require.NoError(t, json.NewDecoder(r.Body).Decode(&body))
		return r.StatusCode, body
	}
	prefill, decode := serve("kv_producer"), serve("kv_consumer")
	code, body := post(prefill, `{"do_remote_decode":true}`)
	require.Equal(t, http.StatusOK, code)
	code, answer := post(decode, string(body["kv_transfer_params"]))
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, string(answer["choices"]), "a b c")

	_, body = post(prefill, `{"do_remote_decode":true}`)
	require.NoError(t, prefill.cmd.Process.Kill())
	require.Equal(t, -1, prefill.exitCode())
	code, answer = post(decode, string(body["kv_transfer_params"]))
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, string(answer["error"]), "KV load failure")
}
