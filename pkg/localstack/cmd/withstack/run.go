package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// codeFailed is the exit code for withstack's own failures, as in env(1) and timeout(1).
const codeFailed = 125

// stopDeadline limits the stop of both servers. It is longer than their grace.
const stopDeadline = 30 * time.Second

func run(args []string) (code int, err error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return codeFailed, errors.New("usage: withstack [--] command [args...]")
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return codeFailed, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	dir, err := os.MkdirTemp("", "withstack-")
	if err != nil {
		return codeFailed, err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	db, rs, err := startStack(dir, signals)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
		defer cancel()
		var g errgroup.Group
		if db != nil {
			g.Go(func() error { return db.Stop(ctx) })
		}
		if rs != nil {
			g.Go(func() error { return rs.Stop(ctx) })
		}
		if err = errors.Join(err, g.Wait()); err != nil && code == 0 {
			code = codeFailed
		}
	}()
	if err != nil {
		return codeFailed, err
	}

	cmd := exec.Command(program, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(),
		stacktest.EnvMySQL+"="+db.DSN(""),
		stacktest.EnvRestateIngress+"="+rs.IngressURL(),
		stacktest.EnvRestateAdmin+"="+rs.AdminURL())
	return superviseCommand(cmd, signals, db.Done(), rs.Done())
}

// startStack starts MariaDB and Restate in parallel. A signal cancels the start.
func startStack(dir string, signals <-chan os.Signal) (db *mariadb.Server, rs *restate.Server, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%s", s))
		case <-started:
		}
	}()
	progress := func(line string) { fmt.Fprintln(os.Stderr, "withstack:", line) }
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		db, err = mariadb.Start(ctx, mariadb.Config{
			Dir: filepath.Join(dir, "mariadb"), Durability: mariadb.Relaxed, DieWithParent: true, Progress: progress,
		})
		return err
	})
	g.Go(func() (err error) {
		rs, err = restate.Start(ctx, restate.Config{
			Dir: filepath.Join(dir, "restate"), Relaxed: true, DieWithParent: true, Progress: progress,
		})
		return err
	})
	err = g.Wait()
	return db, rs, err
}

// superviseCommand runs the command, forwards signals to it, and returns its exit code. For a command that a signal
// ended, the code is 128 + the signal's number, as in shells. superviseCommand returns an error if a server ends before
// the command, because the command's own failure would not name the server.
func superviseCommand(cmd *exec.Cmd, signals <-chan os.Signal, db, rs <-chan struct{}) (int, error) {
	// At a terminal the command stays in the foreground group, so that it can read input. Then the terminal
	// sends it Ctrl-C itself.
	foreground := isTerminal(os.Stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !foreground}
	if err := cmd.Start(); err != nil {
		return codeFailed, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var lost error
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGINT || !foreground {
				_ = cmd.Process.Signal(s)
			}
		case <-db:
			lost, db = errors.Join(lost, errors.New("MariaDB ended while the command ran")), nil
		case <-rs:
			lost, rs = errors.Join(lost, errors.New("Restate ended while the command ran")), nil
		case err := <-done:
			return exitCode(err), lost
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return codeFailed
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return exit.ExitCode()
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
