// Package kubelab runs the program apps/kubelab as a child process: a real Kubernetes control plane with
// simulated nodes.
//
// The program is not imported, because it contains Kubernetes, whose modules are outside this workspace on
// purpose. It is found, or built into the user's cache under the hash of its sources, so that a checkout
// always runs its own kubelab. A cluster is ready when the program writes its ready file.
package kubelab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	// startDeadline limits a start. It is long because tests start several labs at once.
	startDeadline = 5 * time.Minute
	// stopGrace is longer than the program's own deadlines for its components, so that only a program that
	// hangs is killed.
	stopGrace = 45 * time.Second
	poll      = 25 * time.Millisecond
)

// Config configures a cluster. Zero values stand for the defaults of the program's flags.
type Config struct {
	// DataDir is the private directory, which is created if missing. It is required.
	DataDir string
	// CIDR is the network of pods' addresses, within 127.0.0.0/8. Labs that run at the same time need
	// different networks. Default: 127.64.0.0/16.
	CIDR string
	// Groups are groups of nodes, in the form of the flag --group, such as
	// "name=h100,nodes=4,gpu=nvidia.com/gpu=8,gpu-product=NVIDIA-H100-80GB-HBM3". Default: four nodes with
	// eight H100.
	Groups []string
	// APIPort is the port on 127.0.0.1. 0 means the port of the last run on the directory, or a free port.
	APIPort int
	// PodGroups serves PodGroups of scheduling.k8s.io, with which the scheduler places pods all or nothing.
	PodGroups bool
	// NodeGrace is how long a node may be silent before it is NotReady. EvictAfter is how long pods stay on
	// a node that is NotReady. CrashBackoff is the first delay before a crashed container is started again.
	NodeGrace, EvictAfter, CrashBackoff time.Duration
	// DieWithParent is as in proc.Spec. The cluster's own children always die with it.
	DieWithParent bool
	// Log may be nil.
	Log *slog.Logger
	// Progress receives lines for people. It may be nil.
	Progress func(string)
}

// Cluster is a running kubelab.
type Cluster struct {
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string

	proc *proc.Process
	dir  string
}

// Start starts a cluster on the directory. It first stops a cluster that a killed parent left there. It returns when
// pods can be created. If needed, it builds the program first, which takes minutes.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cluster, err := startCluster(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start kubelab: %w", err)
	}
	return cluster, nil
}

func startCluster(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.DataDir == "" {
		return nil, errors.New("DataDir is empty")
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	program, err := Ensure(ctx, cfg.Progress)
	if err != nil {
		return nil, err
	}
	pid, err := StopStray(ctx, dir)
	if err != nil {
		return nil, err
	}
	if pid != 0 {
		log.InfoContext(ctx, "stopped a kubelab that an earlier run left behind", "pid", pid)
	}
	cluster := &Cluster{Kubeconfig: filepath.Join(dir, "kubeconfig"), dir: dir}
	began := time.Now()
	if err := cluster.start(ctx, program, cfg); err != nil {
		return nil, err
	}
	log.InfoContext(ctx, "kubelab is ready", "pid", cluster.PID(), "kubeconfig", cluster.Kubeconfig,
		"took", time.Since(began).Round(time.Millisecond))
	return cluster, nil
}

func (c *Cluster) start(ctx context.Context, program string, cfg Config) error {
	// The ready file of an earlier run would make this run ready at once.
	if err := os.Remove(c.readyFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var logStart int64
	if st, err := os.Stat(c.LogFile()); err == nil && st.Size() <= proc.LogLimit {
		logStart = st.Size()
	}
	var err error
	c.proc, err = proc.Start(proc.Spec{
		Name: "kubelab", Path: program, Args: c.programArgs(cfg), Dir: c.dir,
		RecordFile: RecordFile(c.dir), LogFile: c.LogFile(), DieWithParent: cfg.DieWithParent,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not ready after %s", startDeadline))
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if _, err := os.Stat(c.readyFile()); err == nil {
			return nil
		}
		select {
		case <-c.proc.Done():
			return fmt.Errorf("it ended (%w): %s (log: %s)", c.endError(), lastLine(c.LogFile(), logStart), c.LogFile())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w (log: %s)", context.Cause(ctx), c.LogFile()), c.Stop(context.WithoutCancel(ctx)))
		case <-tick.C:
		}
	}
}

func (c *Cluster) programArgs(cfg Config) []string {
	args := []string{
		"up", "--data-dir=" + filepath.Join(c.dir, "cluster"),
		"--kubeconfig=" + c.Kubeconfig, "--ready-file=" + c.readyFile(),
	}
	if cfg.CIDR != "" {
		args = append(args, "--cidr="+cfg.CIDR)
	}
	for _, g := range cfg.Groups {
		args = append(args, "--group="+g)
	}
	if cfg.APIPort != 0 {
		args = append(args, "--api-port="+strconv.Itoa(cfg.APIPort))
	}
	if cfg.PodGroups {
		args = append(args, "--pod-groups")
	}
	for flag, d := range map[string]time.Duration{
		"--node-grace=": cfg.NodeGrace, "--evict-after=": cfg.EvictAfter, "--crash-backoff=": cfg.CrashBackoff,
	} {
		if d != 0 {
			args = append(args, flag+d.String())
		}
	}
	return args
}

func (c *Cluster) readyFile() string { return filepath.Join(c.dir, "ready") }

// endError returns how the program ended. It is never nil.
func (c *Cluster) endError() error {
	if err := c.proc.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// PID returns the program's pid.
func (c *Cluster) PID() int { return c.proc.PID() }

// LogFile returns the path of the program's log. The logs of its components are in cluster/log next to it.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, "kubelab.log") }

// Done returns a channel that is closed when the program has ended.
func (c *Cluster) Done() <-chan struct{} { return c.proc.Done() }

// Wait blocks until the program has ended. It returns nil for exit status 0.
func (c *Cluster) Wait() error { return c.proc.Wait() }

// Stop ends the cluster, and kills it after stopGrace or when ctx ends. The cluster's objects are kept for the
// next Start on the directory.
func (c *Cluster) Stop(ctx context.Context) error {
	if err := c.proc.Stop(ctx, stopGrace); err != nil {
		return fmt.Errorf("stop kubelab: %w", err)
	}
	return nil
}

// Kill ends the cluster as a power failure would, and waits until its process is gone.
func (c *Cluster) Kill() error {
	// The ended context leaves no grace.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.proc.Stop(ctx, 0); err != nil {
		return fmt.Errorf("kill kubelab: %w", err)
	}
	return nil
}

// RecordFile returns the path of the record of a directory's cluster; see proc.Find.
func RecordFile(dir string) string { return filepath.Join(dir, "kubelab.json") }

// StopStray stops the cluster that a killed parent left running on a directory, and
// returns its pid, or 0 if there was none.
func StopStray(ctx context.Context, dir string) (int, error) {
	pid, err := proc.StopStray(ctx, RecordFile(dir), stopGrace)
	if err != nil {
		return 0, fmt.Errorf("stop the kubelab left on %s: %w", dir, err)
	}
	return pid, nil
}

// lastLine returns the last line of a log after offset, which is the program's error.
func lastLine(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= offset {
		return "no output"
	}
	lines := strings.Split(strings.TrimSpace(string(b[offset:])), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
