package dev

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// runDetached runs this command again as a background process in a new session. It shows the events that the process
// sends through a pipe, and returns at the event that everything is ready. If the pipe ends before that event, the
// process has died.
func runDetached(cmd *cobra.Command, cfg Config, opts options) error {
	l := opts.dataLayout()
	if runs, err := l.isRunning(); err != nil {
		return err
	} else if runs {
		return l.alreadyRuns()
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := os.MkdirAll(opts.dataDir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if st, err := os.Stat(l.logPath()); err == nil && st.Size() > proc.LogLimit {
		if err := os.Rename(l.logPath(), l.logPath()+".1"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(l.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()

	const fd = 3 // the first of ExtraFiles
	args := []string{"dev", "--data-dir", opts.dataDir, "--context", opts.context, "--gpus", opts.gpus, fmt.Sprint("--report-fd=", fd)}
	if opts.regions != nil {
		args = append(args, "--regions", strings.Join(opts.regions, ","))
	}
	if opts.config != "" {
		args = append(args, "--config", opts.config)
	}
	if opts.runtime != "" {
		args = append(args, "--runtime", opts.runtime)
	}
	if opts.nodes != 0 {
		args = append(args, fmt.Sprint("--nodes=", opts.nodes))
	}
	for _, g := range opts.groups {
		args = append(args, "--group", g)
	}
	if opts.tls != nil {
		args = append(args, fmt.Sprint("--tls=", *opts.tls))
	}
	if opts.reset {
		args = append(args, "--reset")
	}
	child := exec.Command(self, args...)
	child.Env = append(os.Environ(), envPrometheus+"="+opts.prometheus)
	child.Stdout, child.Stderr = log, log
	child.ExtraFiles = []*os.File{w}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = child.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}

	screen := newTerminal(cmd.OutOrStdout(), cfg.Getenv)
	defer screen.close()
	screen.printLine("Windlass in " + shortPath(opts.dataDir) + ", in the background")
	events, done := make(chan event), make(chan struct{})
	defer close(done)
	go func() {
		defer close(events)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue
			}
			select {
			case events <- e:
			case <-done:
				return
			}
		}
	}()
	cancelled := cmd.Context().Done()
	for {
		select {
		case <-cancelled:
			// The child stops what it has started, and reports that.
			cancelled = nil
			_ = child.Process.Signal(syscall.SIGTERM)
		case e, ok := <-events:
			if !ok {
				_ = child.Wait()
				if cmd.Context().Err() != nil {
					return nil
				}
				return fmt.Errorf("the background process ended (%s) before it was ready; see %s", child.ProcessState, l.logPath())
			}
			screen.showEvent(e)
			switch e.Kind {
			case eventReady:
				return child.Process.Release()
			case eventFailed:
				_ = child.Wait()
				return errors.New(e.Text)
			default: // the event is shown, and the wait goes on
			}
		}
	}
}
