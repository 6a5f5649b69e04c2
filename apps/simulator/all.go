package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// all runs the entries of the project's benchmark table.
type all struct {
	Small bool     `help:"Small sizes: takes minutes, and the figures only show whether something broke."`
	Out   string   `help:"File for the results; empty: one in .cache/bench, by time and commit." type:"path"`
	Only  []string `help:"Run only those whose name begins so."`
	Skip  []string `help:"Leave out those whose name begins so."`
}

// entry is one line of the table: flags for a small run and for the full run. An entry without small flags is
// left out of small runs.
type entry struct {
	name        string
	small, full string
}

var table = []entry{
	{"baselines", "--window=2s", ""},
	{"latency", "--regions=100 --apps=20 --changes=200", ""},
	{"latency-2", "--regions=100 --apps=20 --changes=200 --control-planes=2", "--control-planes=2"},
	{"burst", "--changes=500", ""},
	{"snapshot", "--items=250 --repeat=3", ""},
	{"ingest", "--instances=10000 --window=3s", "--instances=100000"},
	{"ingest-bare", "--instances=10000 --window=3s --bare", "--instances=100000 --bare"},
	{"idle", "--agents=0,100 --window=5s --settle=2s", ""},
	{"converge-1000", "", ""},
	{"converge-5000", "", "--instances=5000 --rounds=2"},
	{"converge-5000-of-5", "", "--instances=5000 --deployments=5 --rounds=2"},
	{"converge-5000-more", "", "--instances=5000 --deployments=5 --rounds=2 --again=apps"},
	{"converge-slow-start", "--instances=500 --deployments=5 --start-p50=200ms --start-p99=2s --fail=0.02", "--instances=20000 --deployments=20 --start-p50=5s --start-p99=30s --fail=0.02"},
	{"converge-2000000", "", "--instances=2000000 --deployments=2000"},
	{"deploys", "--apps=50 --concurrency=1,16", ""},
	{"rollouts", "--apps=10 --regions=4 --waves=3 --replicas=1,4", ""},
	{"reconnect", "--agents=100 --apps=10 --cuts=1", ""},
	{"restart", "--agents=60 --apps=20 --quiet=5s --pause=1s", ""},
	{"slow", "--agents=20 --changes=60 --rounds=1", ""},
	{"flood", "--deploys=30 --rounds=1", ""},
	{"overload", "--instances=4000 --regions=8 --edges=1 --calm=3s --window=8s", ""},
	{"retention", "--apps=1 --regions=2 --deploys=6 --scales=3 --crashes=3 --keep-changes=60 --keep-versions=10 --keep-history=80", ""},
	{"siege", "--window=1s --floor=50ms --idle=500 --uploads=16 --poison=4 --watches=300 --half=594 --held=600", ""},
	{"zero", "--times=4", ""},
	{"watchers", "--window=2s --streams=300 --most=2000 --floor=1s", ""},
	{"regions", "--exist=10,100 --changes=100 --apps=10", ""},
}

// runs reports whether the entry is in a run, and returns its flags there.
func (e entry) runs(small bool) (flags []string, ok bool) {
	switch {
	case !small:
		return strings.Fields(e.full), true
	case e.small == "" && e.name == "converge-1000":
		return nil, true // its size is small already
	}
	return strings.Fields(e.small), e.small != ""
}

func (a *all) wants(name string) bool {
	for _, skip := range a.Skip {
		if strings.HasPrefix(name, skip) {
			return false
		}
	}
	for _, only := range a.Only {
		if strings.HasPrefix(name, only) {
			return true
		}
	}
	return len(a.Only) == 0
}

// report is the content of the file of results.
type report struct {
	Scenario string            `json:"scenario"` // "all"
	OK       bool              `json:"ok"`
	Small    bool              `json:"small"`
	Commit   string            `json:"commit"`
	Started  time.Time         `json:"started"`
	Machine  measure.Machine   `json:"machine"`
	File     string            `json:"file"`
	Results  []json.RawMessage `json:"results"`
}

func (a *all) run(ctx context.Context, flags common, stdout, stderr io.Writer) error {
	out := report{Scenario: "all", OK: true, Small: a.Small, Commit: measure.Commit(), Started: time.Now().UTC(), Machine: measure.ThisMachine()}
	if out.File = a.Out; out.File == "" {
		out.File = filepath.Join(".cache", "bench", out.Started.Format("20060102T150405Z")+"-"+strings.TrimSuffix(out.Commit, "+")+"-scenarios.json")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var failed []string
	for _, e := range table {
		more, ok := e.runs(a.Small)
		if !ok || !a.wants(e.name) {
			continue
		}
		r, err := a.one(ctx, self, e.name, more, flags, stdout, stderr)
		if err != nil {
			return err
		}
		out.Results = append(out.Results, r)
		var told struct{ OK bool }
		if err := json.Unmarshal(r, &told); err != nil {
			return fmt.Errorf("%s: read its result: %w", e.name, err)
		}
		if !told.OK {
			out.OK = false
			failed = append(failed, e.name)
		}
		// The file is written after each entry, so that a later failure does not lose results.
		if err := out.write(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if flags.JSON {
		if err := json.NewEncoder(stdout).Encode(out); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	} else {
		fmt.Fprintln(stdout, "results:", out.File) //nolint:errcheck // a closed stdout cannot be reported
	}
	if len(failed) > 0 {
		return errors.New("failed: " + strings.Join(failed, ", "))
	}
	return nil
}

// one runs an entry as its command line would. Each entry has a process of its own, so that it is not
// measured with the memory of the entry before.
func (a *all) one(ctx context.Context, self, name string, more []string, flags common, stdout, stderr io.Writer) (json.RawMessage, error) {
	dir, err := os.MkdirTemp("", "windlass-sim-all-")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	flags.As, flags.Result = name, filepath.Join(dir, "result.json")
	command, _, _ := strings.Cut(name, "-")
	cmd := exec.CommandContext(ctx, self, slices.Concat([]string{command}, more, flags.args())...)
	// Ctrl-C at the terminal reaches only this process, which then stops the other.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = leaveWithin
	cmd.Stderr = stderr
	if !flags.JSON {
		cmd.Stdout = stdout
	}
	failed := cmd.Run()
	// A failed entry has a result with the reason, unless it failed before it could write one.
	text, err := os.ReadFile(flags.Result)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(context.Cause(ctx), failed, err))
	}
	return text, nil
}

// leaveWithin bounds the time in which a scenario stops what it has started.
const leaveWithin = time.Minute

// args returns the flags as arguments of a command line.
func (f common) args() []string {
	out := []string{
		"--seed=" + strconv.FormatUint(f.Seed, 10),
		"--max-memory-gib=" + strconv.FormatFloat(f.MaxMemoryGiB, 'g', -1, 64), "--deadline=" + f.Deadline.String(),
		"--as=" + f.As, "--result=" + f.Result,
	}
	if f.ControlPlanes > 1 { // without it, an entry of the table may have its own
		out = append(out, "--control-planes="+strconv.Itoa(f.ControlPlanes))
	}
	for name, value := range map[string]string{"--control-plane=": f.ControlPlane, "--pprof=": f.Pprof} {
		if value != "" {
			out = append(out, name+value)
		}
	}
	for name, is := range map[string]bool{"--json": f.JSON, "--relaxed": f.Relaxed, "--keep": f.Keep, "--verbose": f.Verbose} {
		if is {
			out = append(out, name)
		}
	}
	return out
}

func (r *report) write() error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(r.File), 0o755)
	}
	if err == nil {
		err = os.WriteFile(r.File, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
