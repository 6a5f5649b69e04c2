// Command vulncheck searches each module with govulncheck for known vulnerabilities that its code calls:
//
//	go tool task vulncheck                 uses the database of Go, or the database of GOVULNDB
//	go tool task vulncheck -- --require    also fails if the database cannot be reached
//
// GOVULNDB is a URL: https:, or file: of a folder. Without it vulncheck reads https://vuln.go.dev.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/ci/tools/layout"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("vulncheck", flag.ContinueOnError)
	require := flags.Bool("require", false, "fail if the database of vulnerabilities cannot be reached")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	root, err := layout.Root(".")
	if err != nil {
		return err
	}
	address, err := parse(cmp.Or(os.Getenv("GOVULNDB"), standardURL))
	if err != nil {
		return fmt.Errorf("GOVULNDB: %w", err)
	}
	db, err := reach(ctx, address)
	if err != nil && *require {
		return fmt.Errorf("the database of vulnerabilities cannot be reached: %w", err)
	}
	if err != nil {
		_, _ = fmt.Fprintln(out, "vulncheck: skipped, the database of vulnerabilities cannot be reached:", err)
		return nil
	}
	scanner, err := command(ctx, root, nil, filepath.Join(root, ".ci", "tool"), "govulncheck")
	if err != nil {
		return err
	}
	modules, err := moduleFolders(ctx, root)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "vulncheck: %d modules, with the database %s\n", len(modules), db)
	return check{scanner: strings.TrimSpace(string(scanner)), db: db.url, accepted: accepted}.all(ctx, out, modules)
}

// module is a folder with a go.mod.
type module struct {
	name, dir string
	// env is added to the environment of the scan.
	env []string
}

// moduleFolders returns the modules of the repository.
func moduleFolders(ctx context.Context, root string) (modules []module, err error) {
	listed, err := command(ctx, root, nil, filepath.Join(root, ".ci", "modules"), "--all")
	if err != nil {
		return nil, err
	}
	workspace, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(listed)) {
		m := module{name: strings.TrimPrefix(name, "./"), dir: filepath.Join(root, name), env: []string{"CGO_ENABLED=0"}}
		if !bytes.Contains(workspace, []byte("\t"+name+"\n")) {
			m.env = append(m.env, "GOWORK=off")
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// check scans modules.
type check struct {
	// scanner is the path of govulncheck.
	scanner string
	// db is the URL of the database.
	db string
	// accepted has the vulnerabilities that are not a failure, by ID, with the reasons.
	accepted map[string]string
}

// all scans the modules, and returns an error if a module calls a vulnerability or cannot be scanned.
func (c check) all(ctx context.Context, out io.Writer, modules []module) error {
	var failed []string
	for _, m := range modules {
		begin := time.Now()
		found, err := c.one(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		bad := err != nil
		if err != nil {
			_, _ = fmt.Fprintf(out, "%s: %v\n", m.name, err)
		}
		for _, f := range found {
			if why, ok := c.accepted[f.id]; ok {
				_, _ = fmt.Fprintf(out, "%s: %s is accepted: %s\n", m.name, f.id, why)
				continue
			}
			bad = true
			_, _ = fmt.Fprintf(out, "%s: %s\n", m.name, f)
		}
		if bad {
			failed = append(failed, m.name)
			continue
		}
		_, _ = fmt.Fprintf(out, "%s: no known vulnerability is called (%s)\n", m.name, time.Since(begin).Round(time.Second))
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed for %s", strings.Join(failed, ", "))
	}
	return nil
}

// one returns the vulnerabilities that the module calls.
func (c check) one(ctx context.Context, m module) ([]finding, error) {
	answer, err := command(ctx, m.dir, m.env, c.scanner, "-db", c.db, "-format", "json", "./...")
	if err != nil {
		return nil, err
	}
	return called(bytes.NewReader(answer))
}

// command runs a program, and returns its output.
func command(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	answer, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return answer, nil
}
