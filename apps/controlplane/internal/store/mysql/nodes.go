package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
)

const (
	// nodeDialTimeout is shorter than the timeout for one address, because there are others to try.
	nodeDialTimeout = 2 * time.Second
	// maxAddresses bounds the checks. Clusters of databases have three to nine nodes.
	maxAddresses = 16
)

// splitDSN returns one DSN for each address of a DSN such as user:password@tcp(a:3306,b:3306)/name, and the addresses.
// A DSN with one address is returned as it is.
func splitDSN(dsn string) (dsns, addresses []string, err error) {
	// The order is that of mysql.ParseDSN: the last slash, the last @ before it, the first parenthesis after that.
	slash := strings.LastIndexByte(dsn, '/')
	if slash < 1 || dsn[slash-1] != ')' {
		return []string{dsn}, nil, nil
	}
	from := strings.LastIndexByte(dsn[:slash], '@') + 1
	open := strings.IndexByte(dsn[from:slash], '(')
	if open < 0 || !strings.Contains(dsn[from+open:slash-1], ",") {
		return []string{dsn}, nil, nil
	}
	if protocol := dsn[from : from+open]; protocol != "tcp" {
		return nil, nil, fmt.Errorf("several addresses are for tcp(host:port,host:port), not %s(...)", protocol)
	}
	for address := range strings.SplitSeq(dsn[from+open+1:slash-1], ",") {
		if address = strings.TrimSpace(address); address == "" {
			return nil, nil, errors.New("one of its addresses is empty: use tcp(host:port,host:port)")
		}
		addresses = append(addresses, address)
		dsns = append(dsns, dsn[:from+open+1]+address+dsn[slash-1:])
	}
	if len(addresses) > maxAddresses {
		return nil, nil, fmt.Errorf("it has %d addresses: use at most %d", len(addresses), maxAddresses)
	}
	return dsns, addresses, nil
}

// nodes is a driver.Connector for several addresses. Connections go to the address in use. Connections to other
// addresses leave the pool when they are idle, and those to an address that is down are closed at once, so that no
// statement waits for a dead server until its timeout.
type nodes struct {
	set        *failover.Set
	connectors []driver.Connector
	open       []*openConns
	// checks has one connection for each address.
	checks []*sql.DB
	// known are the servers that answered last at each address. nil: none has answered yet.
	known []atomic.Pointer[server]
	stop  context.CancelFunc
	done  chan struct{}
}

var (
	_ driver.Connector = (*nodes)(nil)
	_ io.Closer        = (*nodes)(nil)
)

// newNodes checks the addresses once, and then until Close. writable requires addresses that accept writes.
func newNodes(ctx context.Context, cfg Config, service string, addresses []string, configs []*mysql.Config, writable bool) (*nodes, error) {
	n := &nodes{done: make(chan struct{}), known: make([]atomic.Pointer[server], len(configs))}
	for _, c := range configs {
		open := &openConns{conns: map[net.Conn]struct{}{}}
		c.DialFunc = open.dial
		connector, err := mysql.NewConnector(c)
		if err != nil {
			return nil, errors.Join(err, n.closeChecks())
		}
		n.connectors, n.open = append(n.connectors, connector), append(n.open, open)
		d := sql.OpenDB(connector)
		d.SetMaxOpenConns(1)
		n.checks = append(n.checks, d)
	}
	var err error
	n.set, err = failover.New(failover.Config{
		Service: service, Addresses: addresses, Metrics: cfg.Failover, Log: cfg.Log,
		Check: func(ctx context.Context, i int) error {
			found, err := checkNode(ctx, n.checks[i], writable)
			if err == nil {
				n.known[i].Store(&found)
			}
			return err
		},
		// A former primary that was started again lacks what was written since. A Galera node gets it.
		MayReturn: func(i int) bool { return !writable || n.known[i].Load().isClustered() },
		Switched: func(from, _ int, down bool) {
			if down {
				n.open[from].closeAll()
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, n.closeChecks())
	}
	n.set.CheckAll(ctx)
	if err := n.requireOnePrimary(writable); err != nil {
		n.set.Close()
		return nil, errors.Join(err, n.closeChecks())
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = stop
	go func() {
		defer close(n.done)
		_ = n.set.Run(run) // it ends only with its context
	}()
	return n, nil
}

// requireOnePrimary returns an error if several servers accept writes that are not nodes of a cluster. One of them may
// be a former primary, and which one is not known.
func (n *nodes) requireOnePrimary(writable bool) error {
	var primaries []string
	seen := map[string]bool{}
	for i, status := range n.set.ListStatus() {
		found := n.known[i].Load()
		if status.Up && writable && !found.isClustered() && !seen[found.identity] {
			primaries, seen[found.identity] = append(primaries, status.Address), true
		}
	}
	if len(primaries) < 2 {
		return nil
	}
	return fmt.Errorf("%s accept writes, and are not nodes of a Galera cluster: set read_only=ON on all servers but the primary", strings.Join(primaries, " and "))
}

// Close implements io.Closer. database/sql calls it.
func (n *nodes) Close() error {
	n.stop()
	<-n.done
	n.set.Close()
	_ = n.closeChecks() // a connection may be closed already, because the server is down
	return nil
}

func (n *nodes) closeChecks() error {
	var errs []error
	for _, d := range n.checks {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Driver implements driver.Connector.
func (n *nodes) Driver() driver.Driver { return n.connectors[0].Driver() }

// Connect implements driver.Connector.
func (n *nodes) Connect(ctx context.Context) (conn driver.Conn, err error) {
	err = n.set.TryEach(ctx, func(i int) error {
		c, err := n.connectors[i].Connect(ctx)
		if err != nil {
			if isNodeFailure(err) {
				return failover.TryNext(err)
			}
			return err
		}
		full, ok := c.(fullConn)
		if !ok {
			return errors.Join(fmt.Errorf("the driver's connection %T lacks a method", c), c.Close())
		}
		conn = &nodeConn{fullConn: full, nodes: n, index: i}
		return nil
	})
	return conn, err
}

// isNodeFailure reports whether an error means that the address cannot be used now. A time-out and a name that was not
// resolved may concern one connection: the checks find out whether the server is down.
func isNodeFailure(err error) bool {
	if _, name := errors.AsType[*net.DNSError](err); name {
		return false
	}
	if e, network := errors.AsType[net.Error](err); network && e.Timeout() {
		return false
	}
	if _, network := errors.AsType[net.Error](err); network {
		return true
	}
	return connectionLost(err) || notWritable(err)
}

// fullConn is what the driver's connections implement.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// nodeConn is a connection to one address.
type nodeConn struct {
	fullConn
	nodes *nodes
	index int
}

// noteError marks the address as down if the server says that it takes no work.
func (c *nodeConn) noteError(err error) {
	if notWritable(err) && c.nodes.set.CurrentIndex() == c.index {
		c.nodes.set.MarkDown(c.index, err)
	}
}

// ExecContext implements driver.ExecerContext.
func (c *nodeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.fullConn.ExecContext(ctx, query, args)
	c.noteError(err)
	return res, err
}

// QueryContext implements driver.QueryerContext.
func (c *nodeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.fullConn.QueryContext(ctx, query, args)
	c.noteError(err)
	return rows, err
}

// BeginTx implements driver.ConnBeginTx.
func (c *nodeConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.fullConn.BeginTx(ctx, opts)
	c.noteError(err)
	return tx, err
}

// ResetSession implements driver.SessionResetter. The pool then takes another connection.
func (c *nodeConn) ResetSession(ctx context.Context) error {
	if !c.isCurrent() {
		return driver.ErrBadConn
	}
	return c.fullConn.ResetSession(ctx)
}

// Close implements driver.Conn. The server of an address that is down cannot be told, which is no error.
func (c *nodeConn) Close() error {
	if err := c.fullConn.Close(); err != nil && c.isCurrent() {
		return err
	}
	return nil
}

// IsValid implements driver.Validator. The pool closes connections that are not valid.
func (c *nodeConn) IsValid() bool { return c.isCurrent() && c.fullConn.IsValid() }

func (c *nodeConn) isCurrent() bool { return c.nodes.set.CurrentIndex() == c.index }

// openConns are the open connections to one address.
type openConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (o *openConns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	// The driver uses the methods of a TCP connection to see that an idle one was closed.
	conn := &openConn{TCPConn: tcp, of: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conns[conn] = struct{}{}
	return conn, nil
}

// closeAll closes the connections. Statements on them fail at once.
func (o *openConns) closeAll() {
	o.mu.Lock()
	conns := o.conns
	o.conns = map[net.Conn]struct{}{}
	o.mu.Unlock()
	for c := range conns {
		_ = c.Close() // the server is down, so nothing is lost
	}
}

type openConn struct {
	*net.TCPConn
	of *openConns
}

// Close implements net.Conn.
func (c *openConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.TCPConn.Close()
}

// server is what an address tells about its server.
type server struct {
	// identity differs between servers. One server may have several addresses.
	identity string
	// clustered is true for a node of a Galera cluster.
	clustered bool
}

func (s *server) isClustered() bool { return s != nil && s.clustered }

// checkNode returns the server, and an error unless it does what its role needs. All servers know the two statements,
// but not all of the variables.
func checkNode(ctx context.Context, d *sql.DB, writable bool) (found server, err error) {
	variables, err := readPairs(ctx, d, `SHOW GLOBAL VARIABLES WHERE Variable_name IN
		('read_only', 'super_read_only', 'wsrep_on', 'server_uuid', 'server_uid', 'hostname', 'port', 'datadir')`)
	if err != nil {
		return found, err
	}
	found.identity = strings.Join([]string{variables["server_uuid"], variables["server_uid"], variables["hostname"], variables["port"], variables["datadir"]}, " ")
	status := map[string]string{}
	if found.clustered = isOn(variables["wsrep_on"]); found.clustered {
		if status, err = readPairs(ctx, d, "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_ready', 'wsrep_local_state', 'wsrep_local_state_comment')"); err != nil {
			return found, err
		}
	}
	return found, judgeNode(variables, status, writable)
}

// galeraSynced is the value of wsrep_local_state of a node that has all changes. A node that gives or gets a copy of
// the data may stop for minutes.
const galeraSynced = "4"

var errServerReadOnly = errors.New("the server is read-only")

// judgeNode returns an error unless a server with these variables can be used. status has variables of a Galera node,
// and is empty for other servers.
func judgeNode(variables, status map[string]string, writable bool) error {
	if writable && (isOn(variables["read_only"]) || isOn(variables["super_read_only"])) {
		return errServerReadOnly
	}
	if ready, ok := status["wsrep_ready"]; ok && !isOn(ready) {
		return errors.New("the Galera node is not ready: it is not in the primary part of its cluster")
	}
	if state, ok := status["wsrep_local_state"]; ok && state != galeraSynced {
		return fmt.Errorf("the Galera node is not synced: it is %s", status["wsrep_local_state_comment"])
	}
	return nil
}

func isOn(value string) bool { return value == "1" || strings.EqualFold(value, "ON") }

// readPairs returns the rows of a query of names and values.
func readPairs(ctx context.Context, d *sql.DB, query string) (_ map[string]string, err error) {
	rows, err := d.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	pairs := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		pairs[strings.ToLower(name)] = value
	}
	return pairs, rows.Err()
}

// hostTLS returns the TLS configuration for the address of c.
func hostTLS(cfg Config, c *mysql.Config) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return nil, fmt.Errorf("TLS is for tcp(host:port), not %s(%s)", c.Net, c.Addr)
	}
	return cfg.TLS(host)
}
