package mysql

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestSplitDSN_KeepsEverythingButTheAddress(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string][]string{
		"u:p@tcp(a:3306)/windlass?tls=true":                         {"u:p@tcp(a:3306)/windlass?tls=true"},
		"u:p@tcp(a:3306, b:3307)/windlass?tls=true":                 {"u:p@tcp(a:3306)/windlass?tls=true", "u:p@tcp(b:3307)/windlass?tls=true"},
		"u:p,(@/x)@tcp([::1]:1,[::2]:2,c)/windlass":                 {"u:p,(@/x)@tcp([::1]:1)/windlass", "u:p,(@/x)@tcp([::2]:2)/windlass", "u:p,(@/x)@tcp(c)/windlass"},
		"u@unix(/run/a,b.sock)/windlass?timeout=1s":                 nil,
		"u@tcp(a,,b)/windlass":                                      nil,
		"u@tcp(1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17)/windlass": nil,
		"windlass": {"windlass"},
		"/":        {"/"},
	} {
		got, addresses, err := splitDSN(dsn)
		if want == nil {
			require.Error(t, err, dsn)
			continue
		}
		require.NoError(t, err, dsn)
		require.Equal(t, want, got)
		if len(want) > 1 {
			require.Len(t, addresses, len(want))
		}
	}
}

func TestJudgeNode_RefusesServersThatTakeNoWork(t *testing.T) {
	t.Parallel()
	synced := map[string]string{"wsrep_ready": "ON", "wsrep_local_state": "4", "wsrep_local_state_comment": "Synced"}
	for says, c := range map[string]struct {
		variables, status map[string]string
		writable          bool
	}{
		"":                        {map[string]string{"read_only": "OFF", "super_read_only": "OFF"}, nil, true},
		"the server is read-only": {map[string]string{"read_only": "1"}, nil, true},
		"is not ready":            {nil, map[string]string{"wsrep_ready": "OFF", "wsrep_local_state": "4"}, true},
		"it is Donor/Desynced":    {nil, map[string]string{"wsrep_ready": "ON", "wsrep_local_state": "2", "wsrep_local_state_comment": "Donor/Desynced"}, false},
	} {
		err := judgeNode(c.variables, c.status, c.writable)
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
	}
	require.NoError(t, judgeNode(map[string]string{"read_only": "ON"}, synced, false), "a replica serves reads")
}

// A former primary that was started again lacks what was written since.
func TestNodes_SeveralPrimariesAreRefused(t *testing.T) {
	t.Parallel()
	open := func(servers ...server) *nodes {
		n := &nodes{known: make([]atomic.Pointer[server], len(servers))}
		var err error
		n.set, err = failover.New(failover.Config{Addresses: []string{"a:1", "b:1", "c:1"}[:len(servers)], Check: func(context.Context, int) error { return nil }})
		require.NoError(t, err)
		for i := range servers {
			n.known[i].Store(&servers[i])
		}
		n.set.CheckAll(t.Context())
		return n
	}
	two := open(server{identity: "one"}, server{identity: "two"})
	require.ErrorContains(t, two.requireOnePrimary(true), "a:1 and b:1 accept writes")
	require.NoError(t, two.requireOnePrimary(false), "all may serve reads")
	require.NoError(t, open(server{identity: "one"}, server{identity: "one"}).requireOnePrimary(true), "one server has two addresses")
	require.NoError(t, open(server{"one", true}, server{"two", true}, server{"three", true}).requireOnePrimary(true), "a cluster has no primary")
}

func TestNodes_ATimeoutIsNoLostServer(t *testing.T) {
	t.Parallel()
	require.True(t, isNodeFailure(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}))
	require.False(t, isNodeFailure(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}))
	require.False(t, isNodeFailure(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "db1"}}))
}

func TestReadOnlyServer_IsTriedAgainAndMeansUnavailable(t *testing.T) {
	t.Parallel()
	for number, message := range map[uint16]string{
		errNotReady: "WSREP has not yet prepared node for application use", errReadOnlyMode: "Running in read-only mode",
		errOptionPrevents: "The MariaDB server is running with the --read-only option so it cannot execute this statement",
	} {
		err := error(&mysql.MySQLError{Number: number, Message: message})
		require.Equal(t, "not_writable", retryReason(err))
		require.True(t, IsUnavailable(err))
		require.NotErrorIs(t, commitError(err), model.ErrOutcomeUnknown)
	}
	require.Empty(t, retryReason(&mysql.MySQLError{Number: errOptionPrevents, Message: "running with the --secure-file-priv option"}))
}

// relay forwards connections to a server, until it is cut.
type relay struct {
	t        testing.TB
	target   string
	address  string
	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	// silent relays accept connections and forward nothing.
	silent bool
}

func newRelay(t testing.TB, target string) *relay {
	r := &relay{t: t, target: target}
	r.listen("127.0.0.1:0")
	t.Cleanup(r.cut)
	return r
}

func (r *relay) listen(address string) {
	l, err := net.Listen("tcp", address)
	require.NoError(r.t, err)
	r.mu.Lock()
	r.listener, r.address = l, l.Addr().String()
	r.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.forward(c)
		}
	}()
}

func (r *relay) forward(c net.Conn) {
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		_ = c.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, c, server)
	silent := r.silent
	r.mu.Unlock()
	if silent {
		return
	}
	go func() { _, _ = io.Copy(server, c); _ = server.Close() }()
	_, _ = io.Copy(c, server)
	_ = c.Close()
}

// cut closes the listener and all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.listener.Close()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// twoNodes returns a store with two addresses of one server, each behind a relay.
func twoNodes(t testing.TB, metrics *failover.Metrics) (s *Store, first, second *relay) {
	c, err := mysql.ParseDSN(stacktest.MariaDB(t))
	require.NoError(t, err)
	if c.Net != "tcp" {
		t.Skip("the server has no TCP address")
	}
	first, second = newRelay(t, c.Addr), newRelay(t, c.Addr)
	c.Addr = first.address + "," + second.address
	s, err = Open(t.Context(), Config{DSN: c.FormatDSN(), Failover: metrics, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, first, second
}

func addRegion(ctx context.Context, s *Store, id string) error {
	return s.Update(ctx, func(tx store.Tx) error {
		return tx.InsertRegion(model.Region{ID: id, Name: "region-" + id[len("reg_"):], ResourceVersion: 1})
	})
}

func TestNodes_ALostServerIsReplacedByTheNext(t *testing.T) {
	s, first, second := twoNodes(t, failover.NewMetrics())
	require.NoError(t, addRegion(t.Context(), s, "reg_1"))
	require.Equal(t, 0, s.primarySet.CurrentIndex())

	first.cut()
	require.NoError(t, addRegion(t.Context(), s, "reg_2"), "the first write after the loss goes to the next server")
	require.Equal(t, 1, s.primarySet.CurrentIndex())
	require.NoError(t, s.Ping(t.Context()))
	require.False(t, s.ListAddresses()[0].Up)

	second.cut()
	err := addRegion(t.Context(), s, "reg_3")
	require.Error(t, err)
	require.True(t, IsUnavailable(err), "%v", err)

	first.listen(first.address)
	require.Eventually(t, func() bool { return addRegion(t.Context(), s, "reg_4") == nil }, time.Minute, 50*time.Millisecond)
	require.Equal(t, 0, s.primarySet.CurrentIndex())
}

// A server that is cut off answers nothing, not even with a refusal.
func TestNodes_StatementsDoNotWaitForASilentServer(t *testing.T) {
	s, first, _ := twoNodes(t, nil)
	begin := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var once sync.Once
		done <- s.Update(context.Background(), func(tx store.Tx) error {
			once.Do(func() {
				close(begin)
				first.mu.Lock()
				defer first.mu.Unlock()
				first.silent = true
			})
			return tx.InsertRegion(model.Region{ID: "reg_1", Name: "region-1", ResourceVersion: 1})
		})
	}()
	<-begin
	s.primarySet.MarkDown(0, errors.New("no answer"))
	select {
	case err := <-done:
		require.NoError(t, err, "the transaction runs again on the next server")
	case <-time.After(time.Minute):
		t.Fatal("the transaction waits for the server that is down")
	}
	require.Equal(t, 1, s.primarySet.CurrentIndex())
}

func TestOpenDB_NamesWhatIsWrong(t *testing.T) {
	_, _, err := openDB(t.Context(), Config{}, servicePrimary, "u@tcp(127.0.0.1:1,127.0.0.1:1)/windlass")
	require.ErrorContains(t, err, "127.0.0.1:1 is listed twice")
	d, set, err := openDB(t.Context(), Config{}, servicePrimary, "u@tcp(127.0.0.1:1)/windlass")
	require.NoError(t, err)
	require.Nil(t, set)
	require.NoError(t, d.Close())
}
