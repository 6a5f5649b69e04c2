// Package mysql is the store on MySQL's protocol: MySQL 8.4 and MariaDB 10.11. It uses nothing that TiDB in
// pessimistic mode or Vitess lacks.
//
// # Transactions
//
//	Update         BEGIN (READ COMMITTED) -> fn -> feed -> COMMIT -> listeners
//	                  ^                                      |
//	                  +--- full jitter --- the server says: try again
//	UpdateBatched  the same, for all requests of a key that arrived while another one ran
//	View           single statements, each at its own moment
//	Snapshot       REPEATABLE READ, READ ONLY, WITH CONSISTENT SNAPSHOT
//
// The isolation level READ COMMITTED is set once for each connection, so that a transaction begins in one
// round trip. Arguments are interpolated, which saves a prepare and a close for each statement. It is safe
// because the connection's character set is utf8mb4. Statements of many rows are composed here, for the same
// reason and by the same rules.
//
// A deadlock rolls back the whole transaction on the server, which then runs later statements in autocommit
// mode. So the transaction keeps the first such error and refuses later statements. Update tries again even
// if fn swallowed the error.
//
// # When a connection is lost
//
// If the connection is lost before COMMIT was sent, the server rolls back, and Update tries again. If it is lost during
// COMMIT, the client cannot know whether the transaction is durable, and another run of fn might do its work
// twice. So Update returns model.ErrOutcomeUnknown and repeats nothing. Callers may repeat their calls: API
// mutations find their idempotency record, a workflow step fails its compare-and-set on the step number, and
// repeated reports are ignored because of their own guard. Listeners are not called. They are only hints: the
// tailer's beat and the sweep of overdue wake-ups find what the listeners miss.
//
// # The feed
//
// Feed reads of a View never go to the read-only handle, because an agent that is ahead of a lagging replica
// would look like a fork.
package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db"
)

// Config configures a Store.
type Config struct {
	// DSN is in the format of go-sql-driver/mysql: user:password@tcp(host:port)/name. Open sets the character
	// set, isolation level, time zone and modes. With several addresses, as tcp(a:3306,b:3306), the first one that is
	// up and accepts writes is used. All of them must be nodes of one cluster, or replicas of each other.
	DSN string
	// ReadDSN is a replica of the database, from which Views read. Reads that must be current, such as those of the
	// feed, use DSN. Empty: DSN.
	ReadDSN string
	// TLS returns the configuration of connections to the host. nil: the DSN decides.
	TLS func(host string) (*tls.Config, error)
	// MaxOpen is the maximum number of connections of each handle. Default: 32, because more than a few connections for
	// each core gain nothing, and a control plane has several processes.
	MaxOpen int
	// ConnLifetime is how long a connection is used before it is replaced. Default: 30 min, so that a failover
	// behind a load balancer is noticed.
	ConnLifetime time.Duration
	// StatementTimeout is the longest silence of the server during a statement. Default: 30 s.
	StatementTimeout time.Duration
	// LockWait is the longest wait for a row lock. Default: 10 s.
	LockWait time.Duration
	// MaxTries bounds the runs of a transaction that the server asks to repeat. Default: 10.
	MaxTries int
	// Registerer is for the store's metrics. nil: none.
	Registerer prometheus.Registerer
	// Failover and Log get what happens to several addresses. nil: nothing does.
	Failover *failover.Metrics
	Log      *slog.Logger
	// Random returns numbers in [0,1) for jitter. Default: math/rand.
	Random func() float64
}

func (c *Config) setDefaults() error {
	// Files and Secrets often end with a newline, which the driver would read as part of the last parameter or name.
	c.DSN, c.ReadDSN = strings.TrimSpace(c.DSN), strings.TrimSpace(c.ReadDSN)
	if c.DSN == "" {
		return errors.New("store: DSN is empty; set it to user:password@tcp(host:port)/name")
	}
	if c.MaxOpen < 0 || c.MaxTries < 0 || c.ConnLifetime < 0 || c.StatementTimeout < 0 || c.LockWait < 0 {
		return errors.New("store: limits must not be negative; leave them 0 for the defaults")
	}
	if c.MaxOpen = orDefault(c.MaxOpen, 32); c.MaxOpen < 2 {
		return errors.New("store: MaxOpen is 1; set it to 2 or more, a migration needs two connections")
	}
	c.MaxTries = orDefault(c.MaxTries, 10)
	c.ConnLifetime = orDefault(c.ConnLifetime, 30*time.Minute)
	c.StatementTimeout = orDefault(c.StatementTimeout, 30*time.Second)
	c.LockWait = orDefault(c.LockWait, 10*time.Second)
	if c.Random == nil {
		c.Random = rand.Float64
	}
	return nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Store implements store.Store.
type Store struct {
	cfg Config
	db  *sql.DB
	// primarySet has the addresses of db. nil: it has one.
	primarySet *failover.Set
	reads      *sql.DB // db itself without a replica
	metrics    *metrics
	batches    *batches
	// patience is a field so that tests can set it.
	patience time.Duration

	mu        sync.RWMutex
	listeners []func(store.Commit)
}

var _ store.Store = (*Store)(nil)

// Open connects, migrates the schema to this program's version, and returns the store. It fails with
// db.ErrNewerSchema on a schema that this program cannot run on.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	primary, primarySet, err := openDB(ctx, cfg, servicePrimary, cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("store: DSN: %w", err)
	}
	s := &Store{cfg: cfg, db: primary, primarySet: primarySet, reads: primary, metrics: newMetrics(), patience: patience}
	s.batches = s.newBatches()
	if cfg.ReadDSN != "" {
		if s.reads, _, err = openDB(ctx, cfg, serviceReads, cfg.ReadDSN); err != nil {
			return nil, errors.Join(fmt.Errorf("store: ReadDSN: %w", err), primary.Close())
		}
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	if err := checkRestored(ctx, s.db); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := db.Migrate(ctx, s.db); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if s.cfg.Registerer == nil {
		return nil
	}
	return s.metrics.registerAll(s.cfg.Registerer, s.db, s.reads)
}

// These are the services of failover.
const (
	servicePrimary = "database"
	serviceReads   = "database-read"
)

// openDB returns a pool of connections. service names it in the metrics of failover. ctx bounds the first check of
// several addresses.
func openDB(ctx context.Context, cfg Config, service, dsn string) (*sql.DB, *failover.Set, error) {
	dsns, addresses, err := splitDSN(dsn)
	if err != nil {
		return nil, nil, err
	}
	var configs []*mysql.Config
	for _, one := range dsns {
		c, err := driverConfig(cfg, one, len(dsns) > 1)
		if err != nil {
			return nil, nil, err
		}
		configs = append(configs, c)
	}
	var connector driver.Connector
	var set *failover.Set
	if len(dsns) > 1 {
		n, err := newNodes(ctx, cfg, service, addresses, configs, service == servicePrimary)
		if err != nil {
			return nil, nil, err
		}
		connector, set = n, n.set
	} else if connector, err = mysql.NewConnector(configs[0]); err != nil {
		return nil, nil, err
	}
	d := sql.OpenDB(readCommitted{connector})
	d.SetMaxOpenConns(cfg.MaxOpen)
	d.SetMaxIdleConns(cfg.MaxOpen)
	d.SetConnMaxLifetime(cfg.ConnLifetime)
	d.SetConnMaxIdleTime(5 * time.Minute)
	return d, set, nil
}

// driverConfig returns the driver's configuration for a DSN with one address.
func driverConfig(cfg Config, dsn string, several bool) (*mysql.Config, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	if c.DBName == "" {
		return nil, errors.New("it names no database; end it with /name")
	}
	if cfg.TLS != nil {
		if c.TLS, err = hostTLS(cfg, c); err != nil {
			return nil, err
		}
	}
	c.ClientFoundRows = true // counts rows that match a compare-and-set, even if their values do not change
	c.InterpolateParams = true
	c.MultiStatements = false
	c.Logger = &mysql.NopLogger{} // the driver also returns the errors that it would log
	c.Collation = "utf8mb4_bin"
	dialTimeout := 5 * time.Second
	if several {
		dialTimeout = nodeDialTimeout
	}
	c.Timeout = orDefault(c.Timeout, dialTimeout)
	c.ReadTimeout = orDefault(c.ReadTimeout, cfg.StatementTimeout)
	c.WriteTimeout = orDefault(c.WriteTimeout, cfg.StatementTimeout)
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	c.Params["time_zone"] = "'+00:00'"
	c.Params["sql_mode"] = "'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ENGINE_SUBSTITUTION'"
	c.Params["innodb_lock_wait_timeout"] = fmt.Sprint(max(1, int(cfg.LockWait.Seconds())))
	return c, nil
}

// OnCommit implements store.Store.
func (s *Store) OnCommit(f func(store.Commit)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(slices.Clone(s.listeners), f)
}

func (s *Store) notify(c store.Commit) {
	if len(c.Revisions) == 0 && len(c.Woken) == 0 && len(c.Apps) == 0 {
		return
	}
	s.mu.RLock()
	listeners := s.listeners
	s.mu.RUnlock()
	for _, f := range listeners {
		f(c)
	}
}

// Ping implements store.Store. It checks the primary.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("store: ping: %w", err)
	}
	return nil
}

// ListAddresses returns the states of the addresses of the database. nil: it has one address.
func (s *Store) ListAddresses() []failover.Status {
	if s.primarySet == nil {
		return nil
	}
	return s.primarySet.ListStatus()
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.batches.Close()
	err := s.db.Close()
	if s.reads != s.db {
		err = errors.Join(err, s.reads.Close())
	}
	return err
}
