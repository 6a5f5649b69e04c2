package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack"
)

// devStatus has the fields of `windlass dev status -o json` that these tests read.
type devStatus struct {
	Running   bool
	Healthy   bool
	API       string
	Phase     string
	PID       int
	Regions   []string
	Ports     map[string]int
	Processes []struct {
		Name, State, Health string
		PID, Restarts       int
	}
}

// devStack is one data directory of `windlass dev`.
type devStack struct {
	t   *testing.T
	dir string
	cli
}

// newDevStack returns a stack below a new folder, whose path all its processes have in their environment.
func newDevStack(t *testing.T) *devStack {
	t.Helper()
	built, err := programs()
	require.NoError(t, err)
	path, err := cliProgram()
	require.NoError(t, err)
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(work().root, "dev-") //nolint:usetesting // below the root that is searched for leftovers
	require.NoError(t, err)
	temp := filepath.Join(work().root, "tmp")
	require.NoError(t, os.MkdirAll(temp, 0o700))
	d := &devStack{t: t, dir: dir, cli: cli{t: t, path: filepath.Join(path, "windlass"), env: []string{
		"PATH=" + filepath.Join(dir, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		// All stacks share TMPDIR, so that stacks that start at the same time see each other's claims on
		// ports.
		"HOME=" + dir, "TMPDIR=" + temp,
		// Restate is installed once for this user.
		"XDG_CACHE_HOME=" + cache,
	}}}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(built, "modelserver"), filepath.Join(dir, "bin", "modelserver")))
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range []string{"dev.log", "controlplane/controlplane.log", "agents/us-east-1/agent.log"} {
				t.Logf("--- %s\n%s", log, tail(filepath.Join(d.data(), log), 40))
			}
		}
		if left := killAll(dir); len(left) > 0 {
			t.Errorf("cannot kill:\n%s", describe(left))
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

func (d *devStack) data() string { return filepath.Join(d.dir, "data") }

// dev runs `windlass dev` with the data directory.
func (d *devStack) dev(args ...string) ran {
	d.t.Helper()
	return d.run("", append([]string{"dev", "--data-dir", d.data()}, args...)...)
}

func (d *devStack) up(args ...string) ran {
	d.t.Helper()
	r := d.dev(append([]string{"--detach"}, args...)...)
	require.Zero(d.t, r.code, "windlass dev --detach\n%s%s", r.stdout, r.stderr)
	require.Contains(d.t, r.stdout, "Windlass is ready")
	require.Contains(d.t, r.stdout, "deploy -f")
	return r
}

func (d *devStack) status() (s devStatus, code int) {
	d.t.Helper()
	r := d.dev("status", "-o", "json")
	require.NoError(d.t, json.Unmarshal([]byte(r.stdout), &s), "%s%s", r.stdout, r.stderr)
	return s, r.code
}

func (d *devStack) eventually(what string, condition func() error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.Fail(d.t, "never came: "+what, "%v\nruns:\n%s", err, describe(processesOf(d.dir)))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// runs waits until n instances of the app are ready in each region, and
// returns their processes.
func (d *devStack) runs(app string, n int, regions ...string) []process {
	d.t.Helper()
	var got []process
	want := map[string]int{}
	for _, r := range regions {
		want[r] = n
	}
	d.eventually(fmt.Sprintf("%d instances of %s in each of %v", n, app, regions), func() error {
		got = slices.DeleteFunc(instancesOf(d.dir), func(p process) bool { return p.app() != app })
		if err := wantRunning(got, want); err != nil {
			return err
		}
		var s struct{ App struct{ Status string } }
		r := d.run("", "status", app, "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &s); err != nil || s.App.Status != "APP_STATUS_READY" {
			return fmt.Errorf("%s is %s: %s", app, s.App.Status, r.stderr)
		}
		return nil
	})
	return got
}

func (d *devStack) requireNothingRuns() {
	d.t.Helper()
	left := processesOf(d.dir)
	require.Empty(d.t, left, "this still runs:\n%s", describe(left))
}

// TestDev does what a new user does with `windlass dev`, first with TLS on every connection, then without.
func TestDev(t *testing.T) {
	t.Parallel()
	d := newDevStack(t)
	// The port that dev uses by default is taken. Another stack may have claimed it and not listen yet, so this
	// test listens only after a claim of its own.
	usual := localstack.Ports{Claims: localstack.ClaimsFolder()}
	if _, taken, err := usual.Take(7700); err == nil && !taken {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:7700")
		require.NoError(t, err)
		defer func() { _ = listener.Close() }()
	}
	s, code := d.status()
	require.Equal(t, 1, code)
	require.False(t, s.Running)

	d.up("--tls", "--regions", us+","+eu)
	s, code = d.status()
	require.Zero(t, code, "%+v", s)
	require.True(t, s.Healthy)
	require.Equal(t, []string{us, eu}, s.Regions)
	require.Len(t, s.Processes, 8)
	require.NotEqual(t, 7700, s.Ports["api"], "a port that is taken was used")
	for _, p := range s.Processes {
		require.Equal(t, "ok", p.Health, "%+v", p)
	}
	require.Regexp(t, "^https://", s.API)
	again := d.dev("--detach")
	require.Equal(t, 1, again.code)
	require.Contains(t, again.stderr, "already runs")

	deployed := d.ok("deploy", "-f", example(t, "echo.yaml"))
	require.Contains(t, deployed, "echo v1 is ready: 4 of 4")
	reached := regexp.MustCompile(`(?m)^https://echo-[0-9a-f]{12}\.windlass\.localhost:\d+$`).FindAllString(deployed, -1)
	require.Len(t, reached, 2, "the gateway of each region: %s", deployed)
	for _, address := range reached {
		require.NoError(t, d.answers(address+"/health"))
	}
	first := d.runs("echo", 2, us, eu)

	// A killed part is started again, and no instance ends with it.
	for _, name := range []string{"agent/" + us, "controlplane", "mariadb", "restate", "restate-tls"} {
		pid := d.pidOf(name)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		d.eventually(name+" runs again", func() error {
			s, _ := d.status()
			for _, p := range s.Processes {
				if p.Name == name && (p.PID == pid || p.PID == 0 || p.Restarts == 0) || p.Health != "ok" {
					return fmt.Errorf("%+v", p)
				}
			}
			return nil
		})
		requireSame(t, first, d.runs("echo", 2, us, eu), "no instance may end with "+name)
	}

	stopped := d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()

	// The next start brings the same apps back, for the same key, with TLS as before.
	require.Contains(t, d.up().stdout, "https://127.0.0.1:")
	second := d.runs("echo", 2, us, eu)
	require.NotSubset(t, keysOf(second), keysOf(first))
	for _, p := range second {
		require.Equal(t, "1", p.env["WINDLASS_VERSION"])
	}

	// This also works after everything was killed: first dev, then the processes that it left.
	s, _ = d.status()
	require.NoError(t, syscall.Kill(s.PID, syscall.SIGKILL))
	d.eventually("dev is gone", func() error {
		if s, _ := d.status(); s.Running {
			return errors.New("it runs")
		}
		return nil
	})
	stopped = d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()

	// A reset removes everything of earlier runs.
	require.NotContains(t, d.up("--reset", "--tls=false", "--regions", "ap-south-1").stdout, "https://127.0.0.1:")
	require.Contains(t, d.ok("list", "apps"), "No apps yet")
	require.Contains(t, d.ok("list", "regions"), "ap-south-1")
	require.NotContains(t, d.ok("list", "regions"), us)
	stopped = d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()
	require.NotContains(t, stopped.stdout, "panic")
}

func (d *devStack) pidOf(name string) int {
	d.t.Helper()
	s, _ := d.status()
	for _, p := range s.Processes {
		if p.Name == name && p.PID != 0 {
			return p.PID
		}
	}
	require.Fail(d.t, "no process "+name, "%+v", s)
	return 0
}
