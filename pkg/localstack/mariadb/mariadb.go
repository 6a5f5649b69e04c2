// Package mariadb runs a private MariaDB server as a child process.
//
// The server listens on 127.0.0.1 and on a socket inside its own directory. It accepts
// one account with a random password, so other users of the machine cannot use it. A
// directory has one server at a time: Start stops a server that a killed process left
// running there, and InnoDB's file lock prevents a second server even without a record
// of the first.
package mariadb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// Durability says what a commit survives.
type Durability int

const (
	// Durable: a committed transaction survives a power failure.
	Durable Durability = iota
	// Relaxed: a committed transaction survives kill -9 of the server, but not a power
	// failure. For tests, because it makes new databases much faster.
	Relaxed
)

func (d Durability) logFileSize() string {
	if d == Relaxed {
		return "16M" // small, because the whole file is written when the directory is created
	}
	return "64M"
}

// logFileSize grows with the buffer pool. Without room in the log, InnoDB would write a
// page of the tables for each row.
func (c Config) logFileSize() string {
	if c.BufferPoolMiB <= defaultBufferPoolMiB {
		return c.Durability.logFileSize()
	}
	return strconv.Itoa(c.BufferPoolMiB/2) + "M"
}

const defaultBufferPoolMiB = 128

const (
	// startDeadline is long enough for the crash recovery of a small database on a busy disk.
	startDeadline = 2 * time.Minute
	// stopGrace is long enough to flush the buffer pool, which is small.
	stopGrace = 20 * time.Second
	// portAttempts is how often a start is tried, each time with another free port, because
	// another process may take a port before the server binds it.
	portAttempts = 3
)

// Config configures a server.
type Config struct {
	// Dir is the private directory. It is created if it does not exist. Required.
	Dir string
	// Port is a port on 127.0.0.1. 0: a free one. Start fails if the port is taken. See
	// localstack.Ports to choose another port.
	Port int
	// Durability says what a commit survives. Default: Durable.
	Durability Durability
	// BufferPoolMiB is the memory for rows and indexes. Default: 128, which is enough for
	// development and far too little for millions of rows.
	BufferPoolMiB int
	// TLS makes the server refuse connections without TLS. nil: no TLS.
	TLS *TLS
	// DieWithParent makes the kernel kill the server when this process ends. See proc.Spec.
	DieWithParent bool
	// Logger may be nil.
	Logger *slog.Logger
	// Progress receives lines for people. It may be nil.
	Progress func(string)
}

// TLS are PEM files. One file may hold the certificate and its key.
type TLS struct {
	// CA is the CA by which clients verify the server's certificate.
	CA string
	// Cert is the server's certificate for 127.0.0.1, and Key is its key. ReloadTLS makes the server read both
	// again.
	Cert, Key string
}

// Server is a running MariaDB.
type Server struct {
	ca       string // empty: connections have no TLS
	proc     *proc.Process
	dir      string
	port     int
	password string
}

// Start installs MariaDB if it is missing, prepares the directory, and starts a server
// on it. It returns when the server answers queries.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("start MariaDB: Dir is empty")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start MariaDB: %w", err)
	}
	progress := cfg.Progress
	if progress == nil {
		progress = func(string) {}
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	paths, err := Ensure(ctx, progress)
	if err != nil {
		return nil, err
	}
	pid, err := StopStray(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("start MariaDB: %w", err)
	}
	if pid != 0 {
		log.InfoContext(ctx, "stopped a MariaDB that an earlier run left behind", "pid", pid)
	}
	if cfg.Port != 0 && !localstack.PortFree(cfg.Port) {
		return nil, fmt.Errorf("start MariaDB: port %d is taken by another process", cfg.Port)
	}
	password, err := prepareDir(ctx, paths, dir, cfg.Durability, progress)
	if err != nil {
		return nil, fmt.Errorf("start MariaDB: %w", err)
	}

	for attempt := 1; ; attempt++ {
		port := cfg.Port
		if port == 0 {
			free := localstack.Ports{Claims: localstack.ClaimsFolder()}
			if port, _, err = free.Take(0); err != nil {
				return nil, fmt.Errorf("start MariaDB: %w", err)
			}
		}
		s := &Server{dir: dir, port: port, password: password}
		if cfg.TLS != nil {
			s.ca = cfg.TLS.CA
		}
		err := s.start(ctx, paths, cfg)
		if err == nil {
			log.InfoContext(ctx, "MariaDB is ready", "pid", s.PID(), "port", port, "version", paths.Version)
			return s, nil
		}
		portLost := cfg.Port == 0 && attempt < portAttempts && strings.Contains(err.Error(), "Address already in use")
		if !portLost || ctx.Err() != nil {
			return nil, fmt.Errorf("start MariaDB: %w", err)
		}
	}
}

func (s *Server) start(ctx context.Context, paths Paths, cfg Config) error {
	st, err := os.Stat(s.logFile())
	var logStart int64
	if err == nil && st.Size() <= proc.LogLimit {
		logStart = st.Size()
	}
	s.proc, err = proc.Start(proc.Spec{
		Name: "MariaDB", Path: paths.Server, Args: s.serverArgs(paths, cfg),
		RecordFile: RecordFile(s.dir), LogFile: s.logFile(),
		DieWithParent: cfg.DieWithParent,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not ready after %s", startDeadline))
	defer cancel()
	db, err := s.Open("")
	if err != nil {
		return errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	defer func() { _ = db.Close() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := db.PingContext(pctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.proc.Done():
			return fmt.Errorf("the server ended (%w): %s (log: %s)", s.exitReason(), loggedError(s.logFile(), logStart), s.logFile())
		case <-ctx.Done():
			stopped := s.Stop(context.WithoutCancel(ctx))
			return errors.Join(fmt.Errorf("%w: %w (log: %s)", context.Cause(ctx), err, s.logFile()), stopped)
		case <-tick.C:
		}
	}
}

// exitReason returns why the server ended. It is never nil.
func (s *Server) exitReason() error {
	if err := s.proc.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

func (s *Server) serverArgs(paths Paths, cfg Config) []string {
	args := []string{
		"--no-defaults",
		"--basedir=" + paths.BaseDir,
		"--datadir=" + filepath.Join(s.dir, "data"),
		"--tmpdir=" + filepath.Join(s.dir, "tmp"),
		"--pid-file=mariadbd.pid",
		// Relative to the data directory, because the path of a socket may have at most
		// 107 bytes.
		"--socket=mariadbd.sock",
		"--port=" + strconv.Itoa(s.port),
		"--bind-address=127.0.0.1",
		"--init-file=" + filepath.Join(s.dir, "init.sql"),
		"--skip-name-resolve",
		"--character-set-server=utf8mb4",
		"--collation-server=utf8mb4_bin",
		"--transaction-isolation=READ-COMMITTED",
		"--max-connections=500",
		"--max-allowed-packet=64M",
		"--skip-log-bin",
		"--innodb-buffer-pool-size=" + strconv.Itoa(cmp.Or(cfg.BufferPoolMiB, defaultBufferPoolMiB)) + "M",
		"--innodb-log-file-size=" + cfg.logFileSize(),
		"--key-buffer-size=1M",
		"--aria-pagecache-buffer-size=8M",
	}
	if cfg.TLS != nil {
		args = append(args, "--ssl-ca="+cfg.TLS.CA, "--ssl-cert="+cfg.TLS.Cert, "--ssl-key="+cfg.TLS.Key,
			"--tls-version=TLSv1.2,TLSv1.3", "--require-secure-transport=ON")
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	if cfg.Durability == Relaxed {
		// 2 writes each commit to the kernel and does not wait for the disk.
		return append(args, "--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync",
			"--innodb-doublewrite=0", "--sync-frm=0")
	}
	return append(args, "--innodb-flush-log-at-trx-commit=1")
}

// RecordFile returns the path of the pid record of a directory's server; see proc.Find.
func RecordFile(dir string) string { return filepath.Join(dir, "mariadbd.json") }

// StopStray stops a server that a killed process left running on a directory. It returns
// the server's pid, or 0 if no server was running.
func StopStray(ctx context.Context, dir string) (int, error) {
	pid, err := proc.StopStray(ctx, RecordFile(dir), stopGrace)
	if err != nil {
		return 0, fmt.Errorf("stop the MariaDB left on %s: %w", dir, err)
	}
	return pid, nil
}

// Ping returns an error unless the server of a directory answers on the port. Another process may have
// started the server. ca is the CA of Config.TLS. Empty: no TLS.
func Ping(ctx context.Context, dir string, port int, ca string) error {
	password, err := os.ReadFile(filepath.Join(dir, "password"))
	if err != nil {
		return fmt.Errorf("ping MariaDB: %w", err)
	}
	s := &Server{ca: ca, dir: dir, port: port, password: strings.TrimSpace(string(password))}
	db, err := s.Open("")
	if err != nil {
		return fmt.Errorf("ping MariaDB: %w", err)
	}
	defer func() { _ = db.Close() }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("ping MariaDB: %w", err)
	}
	return nil
}

// DSN returns a DSN for github.com/go-sql-driver/mysql, with clientFoundRows=true. database
// may be empty. With Config.TLS, a client also needs the CA, which is not in the DSN.
func (s *Server) DSN(database string) string { return s.clientConfig(database).FormatDSN() }

// ReloadTLS makes the server read its certificate and key again. Open connections stay.
func (s *Server) ReloadTLS(ctx context.Context) error {
	db, err := s.Open("")
	if err != nil {
		return fmt.Errorf("reload the certificate of MariaDB: %w", err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "FLUSH SSL"); err != nil {
		return fmt.Errorf("reload the certificate of MariaDB: %w", err)
	}
	return nil
}

// Open returns a pool of connections to a database. The caller must close the pool. database may be empty.
func (s *Server) Open(database string) (*sql.DB, error) {
	config := s.clientConfig(database)
	if s.ca != "" {
		var err error
		if config.TLS, err = (certfile.RemoteFlags{CA: s.ca}).Config("mysql-", "127.0.0.1", nil); err != nil {
			return nil, err
		}
	}
	c, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

func (s *Server) clientConfig(database string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd = account, s.password
	c.Net, c.Addr = "tcp", "127.0.0.1:"+strconv.Itoa(s.port)
	c.DBName = database
	c.ClientFoundRows = true
	c.Logger = &mysql.NopLogger{} // the driver also returns the errors that it logs
	return c
}

// CreateDatabase creates the database if it does not exist.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	db, err := s.Open("")
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+strings.ReplaceAll(name, "`", "``")+"`"); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// PID returns the server's pid.
func (s *Server) PID() int { return s.proc.PID() }

// Port returns the port of 127.0.0.1 on which the server listens.
func (s *Server) Port() int { return s.port }

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return s.logFile() }

func (s *Server) logFile() string { return filepath.Join(s.dir, "mariadbd.log") }

// Done returns a channel that is closed when the server has ended. Wait returns its error.
func (s *Server) Done() <-chan struct{} { return s.proc.Done() }

// Wait waits until the server has ended. It returns nil for exit status 0.
func (s *Server) Wait() error { return s.proc.Wait() }

// Stop shuts the server down. It kills the server if that takes too long or ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.proc.Stop(ctx, stopGrace); err != nil {
		return fmt.Errorf("stop MariaDB: %w", err)
	}
	return nil
}

// loggedError returns an error that the server logged since offset: the last one about a taken
// address, or else the first one. If the server logged no error, it returns the last line.
func loggedError(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < offset {
		return "no log"
	}
	last, found := "no output", ""
	for line := range strings.Lines(string(b[offset:])) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, "[ERROR] "); ok && !strings.Contains(after, "Aborting") {
			// The first error is the cause of later errors. But callers look for the error
			// about the address.
			if found == "" || strings.Contains(after, "Address already in use") {
				found = after
			}
		}
		if line != "" {
			last = line
		}
	}
	if found != "" {
		return found
	}
	return last
}
