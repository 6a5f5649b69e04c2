package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	// stopGrace is the time for a component to end in order.
	stopGrace = 10 * time.Second
	// healthyAfter is how long a component must run so that its end counts as a first failure.
	healthyAfter = 30 * time.Second
	// restarts is the maximum number of restarts in a row. After more failures the cluster ends, because the
	// cause will not pass.
	restarts = 5
)

// child is one component, a process that is started again when it ends.
type child struct {
	name string
	spec proc.Spec
	log  *slog.Logger
	rnd  func() float64
	// from is the offset at which the log of this start begins.
	from int64
	proc *proc.Process
}

func (p *Plane) newChild(name string, args []string) *child {
	path, argv := p.self, append([]string{name}, args...)
	if foreign := p.foreign[name]; foreign != "" {
		path, argv = foreign, args
	}
	return &child{
		name: name, log: p.log.With("component", name), rnd: p.cfg.Rand,
		spec: proc.Spec{
			Name: name, Path: path, Args: argv, Env: p.environ(), Dir: p.cfg.DataDir,
			RecordFile:    filepath.Join(p.cfg.DataDir, "run", name+".json"),
			LogFile:       filepath.Join(p.cfg.DataDir, "log", name+".log"),
			DieWithParent: true,
		},
	}
}

func (c *child) start() error {
	c.from = 0
	if st, err := os.Stat(c.spec.LogFile); err == nil && st.Size() <= proc.LogLimit {
		c.from = st.Size()
	}
	var err error
	c.proc, err = proc.Start(c.spec)
	return err
}

// ended returns an error that says how the process ended, with its last log lines.
func (c *child) ended() error {
	err := c.proc.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended (%w): %s (log: %s)", c.name, err, lastWords(c.spec.LogFile, c.from), c.spec.LogFile)
}

// keep restarts the process whenever it ends. When ctx ends, it stops the process. It returns an error if the
// process keeps ending or cannot be started.
func (c *child) keep(ctx context.Context) error {
	policy := backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for failures := 0; ; {
		started := time.Now()
		select {
		case <-ctx.Done():
			return c.proc.Stop(context.WithoutCancel(ctx), stopGrace)
		case <-c.proc.Done():
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended, so the process had to end
		}
		if time.Since(started) > healthyAfter {
			failures = 0
		}
		if failures++; failures > restarts {
			return fmt.Errorf("%w; %d times in a row", c.ended(), failures)
		}
		c.log.WarnContext(ctx, "a component ended; starting it again", "error", c.ended())
		if err := backoff.Sleep(ctx, policy.Delay(failures-1, c.rnd)); err != nil {
			return nil //nolint:nilerr // ctx ended while no process ran
		}
		if err := c.start(); err != nil {
			return err
		}
	}
}

// lastWords returns the last lines of a log after offset, joined to one line. They usually show a refused
// flag or a taken port.
func lastWords(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= offset {
		return "no output"
	}
	lines := strings.Split(strings.TrimSpace(string(b[offset:])), "\n")
	lines = lines[max(0, len(lines)-3):]
	text := strings.Join(lines, " | ")
	return text[max(0, len(text)-2000):]
}
