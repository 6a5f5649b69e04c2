// Package stacktest provides a real MariaDB and Restate for tests.
//
// With the environment of cmd/withstack, tests use its servers. Without it, each test process starts its own
// servers on first use, and they die with it. A process cannot clean up after its own end, so the next process
// removes the directories that no process has locked.
package stacktest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// Environment variables that give a running stack to tests.
const (
	// EnvMySQL is a DSN without a database.
	EnvMySQL = "WINDLASS_TEST_MYSQL"
	// EnvRestateIngress and EnvRestateAdmin are URLs.
	EnvRestateIngress = "WINDLASS_TEST_RESTATE_INGRESS"
	EnvRestateAdmin   = "WINDLASS_TEST_RESTATE_ADMIN"
)

// startDeadline limits a start, with the installation of the server on a new machine.
const startDeadline = 10 * time.Minute

// The servers of this process are global, because they live as long as the process.
var (
	sharedMariaDB = sync.OnceValues(func() (string, error) {
		if dsn := os.Getenv(EnvMySQL); dsn != "" {
			return dsn, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
		defer cancel()
		dir, err := processDir()
		if err != nil {
			return "", err
		}
		s, err := mariadb.Start(ctx, mariadb.Config{
			Dir: filepath.Join(dir, "mariadb"), Durability: mariadb.Relaxed,
			DieWithParent: true, Progress: toStderr,
		})
		if err != nil {
			return "", err
		}
		return s.DSN(""), nil
	})
	sharedRestate = sync.OnceValues(func() (urls [2]string, err error) {
		ingress, admin := os.Getenv(EnvRestateIngress), os.Getenv(EnvRestateAdmin)
		if (ingress == "") != (admin == "") {
			return urls, fmt.Errorf("set both %s and %s, or neither", EnvRestateIngress, EnvRestateAdmin)
		}
		if ingress != "" {
			return [2]string{ingress, admin}, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
		defer cancel()
		dir, err := processDir()
		if err != nil {
			return urls, err
		}
		s, err := restate.Start(ctx, restate.Config{
			Dir: filepath.Join(dir, "restate"), Relaxed: true, DieWithParent: true, Progress: toStderr,
		})
		if err != nil {
			return urls, err
		}
		return [2]string{s.IngressURL(), s.AdminURL()}, nil
	})
	processDir = sync.OnceValues(makeProcessDir)
)

func toStderr(line string) { fmt.Fprintln(os.Stderr, "stacktest:", line) }

// MariaDB returns the DSN of a new, empty database, which is dropped at the end of the test. The only
// parameter that the DSN sets is clientFoundRows=true.
func MariaDB(t testing.TB) string {
	t.Helper()
	base, err := sharedMariaDB()
	if err != nil {
		t.Fatalf("no MariaDB for tests: %v", err)
	}
	cfg, err := mysql.ParseDSN(base)
	if err != nil {
		t.Fatalf("%s: %v", EnvMySQL, err)
	}
	cfg.DBName, cfg.ClientFoundRows = "", true
	name := ident.New("test")
	exec(t, cfg, "CREATE DATABASE `"+name+"`")
	t.Cleanup(func() { exec(t, cfg, "DROP DATABASE `"+name+"`") })

	own := cfg.Clone()
	own.DBName = name
	return own.FormatDSN()
}

func exec(t testing.TB, cfg *mysql.Config, query string) {
	t.Helper()
	// A test's context has ended when its cleanup runs. A drop waits for open transactions that a test
	// forgot, so it needs a deadline.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, query); err != nil {
		t.Errorf("%s: %v", query, err)
	}
}

// Restate returns the URLs of a Restate. Other tests use the same server at the same time, and with withstack also
// tests of other processes. So each test must give its services unique names.
func Restate(t testing.TB) (ingress, admin string) {
	t.Helper()
	urls, err := sharedRestate()
	if err != nil {
		t.Fatalf("no Restate for tests: %v", err)
	}
	return urls[0], urls[1]
}

const dirPrefix = "windlass-stack-"

// makeProcessDir creates a directory that is locked while this process lives, and removes the directories of
// ended processes.
func makeProcessDir() (string, error) {
	Sweep(os.TempDir())
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return "", err
	}
	_, err = flock.Try(filepath.Join(dir, "lock"))
	return dir, err
}

// Sweep removes the directories of ended test processes. It ignores errors, because a directory that it
// cannot remove belongs to another user or is being removed.
func Sweep(tempDir string) {
	entries, err := os.ReadDir(tempDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		// A directory exists for a moment before it is locked.
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), dirPrefix) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		dir := filepath.Join(tempDir, e.Name())
		lock, err := flock.Try(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		_ = os.RemoveAll(dir)
		_ = lock.Unlock()
	}
}
