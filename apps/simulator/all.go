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
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
)

// all is the command that runs the entries of the project's benchmark table.
type all struct {
	Small bool     `help:"Run small sizes. This takes minutes, and the figures only show whether something broke."`
	Out   string   `help:"File for the results. Default: a file in .cache/bench, named after the time and the commit." type:"path"`
	Only  []string `help:"Run only entries whose names begin with one of these prefixes."`
	Skip  []string `help:"Leave out entries whose names begin with one of these prefixes."`
	Page  string   `help:"Markdown page whose table gets the figures, such as docs/performance.md. Not with --small." type:"existingfile"`
}

// entry is one line of the benchmark table. The first part of its name, up to a hyphen, is the scenario.
type entry struct {
	name string
	// smallFlags and fullFlags are the scenario's flags in a small run and in a full run. Empty smallFlags leave
	// the entry out of small runs.
	smallFlags, fullFlags string
}

var entries = []entry{
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
	{"converge-groups", "--instances=480 --regions=3 --rounds=2 --again=groups", "--instances=8000 --rounds=6 --again=groups"},
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
	{"siege", "--window=1s --floor=50ms --idle=500 --uploads=16 --poison=4 --watches=300 --half=594 --held=600", "--realtime"},
	{"zero", "--times=4", ""},
	{"scaling", "--apps=60 --regions=3 --window=10s --settle=3s --period=30s --floor=30s", ""},
	{"scaling-everywhere", "", "--each=10"},
	{"follow", "--steps=1:2s,24:10s --target=10s", ""},
	{"follow-2", "", "--regions=2"},
	{"follow-rollouts", "", "--rollouts=rolling,canary,blue-green,rollback"},
	{"pairs", "--requests=100 --rate=50 --refused=1000 --only=update-both,kill-decode,kill-prefill,kill-agent,replace-gateway", "--requests=20000"},
	{"watchers", "--window=2s --streams=300 --most=2000 --floor=1s", ""},
	{"dashboards", "--regions=2 --apps=10 --replicas=2 --viewers=20 --keys=2 --rounds=1 --changes=10", ""},
	{"regions", "--exist=10,100 --changes=100 --apps=10", ""},
}

// flagsFor returns the entry's flags for a small run or a full run. ok is false if that run leaves the entry out.
func (e entry) flagsFor(small bool) (flags []string, ok bool) {
	switch {
	case !small:
		return strings.Fields(e.fullFlags), true
	case e.smallFlags == "" && e.name == "converge-1000":
		return nil, true // the scenario's default size is small enough
	}
	return strings.Fields(e.smallFlags), e.smallFlags != ""
}

// isSelected reports whether --only and --skip select the entry.
func (a *all) isSelected(name string) bool {
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

// resultsFile is the content of the file for the results.
type resultsFile struct {
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
	if a.Small && a.Page != "" {
		return errors.New("--page: small runs give no figures for a page: leave out --small")
	}
	out := resultsFile{Scenario: "all", OK: true, Small: a.Small, Commit: measure.Commit(), Started: time.Now().UTC(), Machine: measure.ThisMachine()}
	if out.File = a.Out; out.File == "" {
		out.File = filepath.Join(".cache", "bench", out.Started.Format("20060102T150405Z")+"-"+strings.TrimSuffix(out.Commit, "+")+"-scenarios.json")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var failed []string
	for _, e := range entries {
		entryFlags, ok := e.flagsFor(a.Small)
		if !ok || !a.isSelected(e.name) {
			continue
		}
		r, err := a.runEntry(ctx, self, e.name, entryFlags, flags, stdout, stderr)
		if err != nil {
			return err
		}
		out.Results = append(out.Results, r)
		var outcome struct{ OK bool }
		if err := json.Unmarshal(r, &outcome); err != nil {
			return fmt.Errorf("%s: read its result: %w", e.name, err)
		}
		if !outcome.OK {
			out.OK = false
			failed = append(failed, e.name)
		}
		// The file is written after each entry, so that a later failure does not lose earlier results.
		if err := out.write(); err != nil {
			return err
		}
		if a.Page != "" {
			if err := updatePage(a.Page, out.Results); err != nil {
				return err
			}
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

// runEntry runs an entry in a process of its own, and returns its result. In one process, the memory of earlier
// entries would count in the figures of later ones.
func (a *all) runEntry(ctx context.Context, self, name string, entryFlags []string, flags common, stdout, stderr io.Writer) (json.RawMessage, error) {
	dir, remove, err := makeResultFolder()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer remove()
	flags.As, flags.Result = name, filepath.Join(dir, "result.json")
	command, _, _ := strings.Cut(name, "-")
	cmd := exec.CommandContext(ctx, self, slices.Concat([]string{command}, entryFlags, flags.entryArgs())...)
	// With a process group of its own, the entry does not get the SIGINT of Ctrl-C. Cancel stops it then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.Stderr = stderr
	if !flags.JSON {
		cmd.Stdout = stdout
	}
	runErr := cmd.Run()
	// A failed entry writes a result with the reason, unless it failed before it could write one.
	text, err := os.ReadFile(flags.Result)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(context.Cause(ctx), runErr, err))
	}
	return text, nil
}

// makeResultFolder makes the folder for the result of an entry. It is locked, because other runs on this machine remove
// folders of runs that have ended.
func makeResultFolder() (dir string, remove func(), err error) {
	dir, lock, err := stack.MakeRoot(os.TempDir())
	return dir, func() { _ = errors.Join(os.RemoveAll(dir), lock.Unlock()) }, err // a later run removes what is left
}

// stopTimeout limits how long a scenario may take to stop the processes that it has started.
const stopTimeout = time.Minute

// entryArgs returns the flags as arguments for the process of an entry.
func (f common) entryArgs() []string {
	out := []string{
		"--seed=" + strconv.FormatUint(f.Seed, 10),
		"--max-memory-gib=" + strconv.FormatFloat(f.MaxMemoryGiB, 'g', -1, 64), "--deadline=" + f.Deadline.String(),
		"--as=" + f.As, "--result=" + f.Result,
	}
	if f.ControlPlanes > 1 { // otherwise the entry may have its own --control-planes
		out = append(out, "--control-planes="+strconv.Itoa(f.ControlPlanes))
	}
	for name, value := range map[string]string{"--control-plane=": f.ControlPlane, "--pprof=": f.Pprof} {
		if value != "" {
			out = append(out, name+value)
		}
	}
	for name, on := range map[string]bool{"--json": f.JSON, "--relaxed": f.Relaxed, "--keep": f.Keep, "--verbose": f.Verbose} {
		if on {
			out = append(out, name)
		}
	}
	return out
}

func (r *resultsFile) write() error {
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
