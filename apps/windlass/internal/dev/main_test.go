package dev_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/windlass/internal/dev"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// This test binary also runs as a windlass whose control plane and agent are small test
// programs. MariaDB, Restate, processes and signals are real.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "__kubelab":
		os.Exit(smallKubelab(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == "__instance":
		time.Sleep(time.Hour)
	case os.Getenv("DEV_TEST") != "":
		os.Exit(windlass())
	}
	os.Exit(m.Run())
}

func windlass() int {
	root := &cobra.Command{Use: "windlass", SilenceErrors: true}
	root.PersistentFlags().String("config", "", "")
	root.AddCommand(dev.Command(dev.Config{
		Getenv: os.Getenv,
		Programs: dev.Programs{
			ControlPlane: smallControlPlane, Agent: smallAgent, Gateway: smallGateway,
			Bootstrap: smallBootstrap, StopInstances: stopSmallInstance,
		},
	}))
	// As in the CLI, the context ends at the first signal.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := root.ExecuteContext(ctx)
	if code, ok := errors.AsType[dev.ExitCode](err); ok {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

func smallControlPlane(ctx context.Context, args []string) error {
	if os.Getenv("DEV_TEST_BROKEN") == "controlplane" {
		return errors.New("the key file is unreadable")
	}
	if args[0] != "serve" {
		return fmt.Errorf("unexpected command %q", args[0])
	}
	var f flag.FlagSet
	listen := f.String("listen", "", "")
	dsn := f.String("mysql-dsn", "", "")
	metrics := f.String("metrics-listen", "", "")
	for _, other := range []string{"restate-ingress", "restate-admin", "restate-listen", "restate-advertise", "key-file", "prometheus-url", "webhook-allow", "registry-allow", "domain", "log-format"} {
		f.String(other, "", "")
	}
	f.Bool("create-keyset", false, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	db, err := sql.Open("mysql", *dsn)
	if err != nil {
		return err
	}
	api, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(api, http.NotFoundHandler()) }()
	return serveReady(ctx, *metrics, db.PingContext)
}

func smallAgent(ctx context.Context, args []string) error {
	var f flag.FlagSet
	dir := f.String("data-dir", "", "")
	token := f.String("join-token-file", "", "")
	metrics := f.String("metrics-listen", "", "")
	f.Bool("trust-all-tenants", false, "")
	for _, other := range []string{"server", "gateway-url", "runtime", "gpus", "log-format", "kubeconfig", "pools-file", "pod-policy-file", "health-image", "image-command", "model-allow"} {
		f.String(other, "", "")
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if _, err := os.ReadFile(*token); err != nil {
		return err
	}
	if os.Getenv("WINDLASS_API_KEY") != "" {
		return errors.New("the agent was given the CLI's key")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if first, _, _ := strings.Cut(os.Getenv("PATH"), ":"); first != filepath.Dir(self) {
		return fmt.Errorf("PATH begins with %s", first)
	}
	if err := startSmallInstance(self, *dir); err != nil {
		return err
	}
	return serveReady(ctx, *metrics, func(context.Context) error { return nil })
}

func smallGateway(ctx context.Context, args []string) error {
	var f flag.FlagSet
	listen := f.String("listen", "", "")
	metrics := f.String("metrics-listen", "", "")
	for _, other := range []string{"agent", "data-dir", "drain-timeout", "neighbour-allow", "log-format"} {
		f.String(other, "", "")
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, http.NotFoundHandler()) }()
	return serveReady(ctx, *metrics, func(context.Context) error { return nil })
}

// startSmallInstance starts a process that outlives the agent, unless that process runs already.
func startSmallInstance(self, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, "instance")
	if b, err := os.ReadFile(file); err == nil {
		pid, err := strconv.Atoi(string(b))
		if err != nil {
			return err
		}
		if _, err := proc.Birth(pid); err == nil {
			return nil
		}
	}
	cmd := exec.Command(self, "__instance")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

func stopSmallInstance(_ context.Context, dir string, _ *slog.Logger) error {
	b, err := os.ReadFile(filepath.Join(dir, "instance"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return os.Remove(filepath.Join(dir, "instance"))
}

func smallBootstrap(ctx context.Context, cfg dev.Bootstrap) (dev.Bootstrapped, error) {
	db, err := sql.Open("mysql", cfg.MySQLDSN)
	if err != nil {
		return dev.Bootstrapped{}, err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS runs (id INT AUTO_INCREMENT PRIMARY KEY)"); err != nil {
		return dev.Bootstrapped{}, err
	}
	res, err := db.ExecContext(ctx, "INSERT INTO runs VALUES ()")
	if err != nil {
		return dev.Bootstrapped{}, err
	}
	n, err := res.LastInsertId()
	made := dev.Bootstrapped{APIKey: cfg.APIKey, OperatorKey: cfg.OperatorKey, JoinTokens: map[string]string{}}
	if made.APIKey == "" {
		made.APIKey = fmt.Sprintf("key-of-run-%d", n)
	}
	for _, r := range cfg.Regions {
		made.JoinTokens[r] = "token"
	}
	return made, err
}

func serveReady(ctx context.Context, listen string, check func(context.Context) error) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"status":"failing","checks":{"database":{"ok":false,"error":"down"}}}`)
		}
	})}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
