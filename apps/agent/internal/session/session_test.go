package session

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

const patience = time.Minute

// server is a control plane that follows a script, over real HTTP.
type server struct {
	agentv1connect.UnimplementedAgentServiceHandler
	watches chan *watch

	mu     sync.Mutex
	joins  []*agentv1.JoinRequest
	onJoin func(*agentv1.JoinRequest) error
}

// watch is one stream that an agent opened.
type watch struct {
	req    *agentv1.WatchRequest
	token  string
	frames chan *agentv1.WatchResponse
	end    chan error
	gone   <-chan struct{}
}

func (s *server) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	w := &watch{req: req, token: info.RequestHeader().Get("Authorization"), frames: make(chan *agentv1.WatchResponse), end: make(chan error), gone: ctx.Done()}
	select {
	case s.watches <- w:
	case <-ctx.Done():
		return nil
	}
	for {
		select {
		case f := <-w.frames:
			if err := out.Send(f); err != nil {
				return err
			}
		case err := <-w.end:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *server) Join(_ context.Context, req *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins = append(s.joins, req)
	if s.onJoin != nil {
		if err := s.onJoin(req); err != nil {
			return nil, err
		}
	}
	return &agentv1.JoinResponse{RegionId: "reg_1", RegionName: "us-east-1", Credential: &agentv1.Credential{Value: "credential", ExpiresAt: time.Now().Add(time.Hour).UnixMilli()}}, nil
}

// reporter gets sessions, and ends them when a test says so.
type reporter struct {
	sessions chan report.Session
	fail     chan error
}

func (r *reporter) Run(ctx context.Context, s report.Session) error {
	r.sessions <- s
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.fail:
		return err
	}
}

func (r *reporter) Reported() int64 { return 0 }

func (r *reporter) Heard() {}

type nothing struct{}

func (nothing) Logs(context.Context, string, int) ([]byte, error) { return []byte("line\n"), nil }
func (nothing) ReadLog(context.Context, string, runtime.LogQuery) (runtime.LogPage, error) {
	return runtime.LogPage{}, nil
}
func (nothing) Restart(context.Context, string) error { return nil }

type agent struct {
	t        *testing.T
	srv      *server
	rep      *reporter
	in       *inbox.Inbox
	s        *Session
	credPath string
	// left counts how often the agent closed its connections.
	left atomic.Int32
}

func setup(t *testing.T, silence time.Duration) *agent {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	dir := t.TempDir()
	srv := &server{watches: make(chan *watch)}
	_, handler := agentv1connect.NewAgentServiceHandler(srv)
	httpServer := httptest.NewServer(handler)
	httpClient := &http.Client{Transport: &http.Transport{}}
	in, err := inbox.Open(filepath.Join(dir, "inbox.db"), true)
	require.NoError(t, err)
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("wlj_token\n"), 0o600))
	a := &agent{t: t, srv: srv, in: in, rep: &reporter{sessions: make(chan report.Session, 100), fail: make(chan error)}, credPath: filepath.Join(dir, "credential.json")}
	creds, err := openCredentials(a.credPath)
	require.NoError(t, err)
	client := agentv1connect.NewAgentServiceClient(httpClient, httpServer.URL)
	a.s, err = New(Config{
		Client: client, Credentials: creds, TokenFile: token, Info: &agentv1.AgentInfo{}, Inbox: in, Reporter: a.rep,
		Changed: func(...inbox.Key) {}, Instances: nothing{}, Traffic: func(*agentv1.TrafficRequest) *agentv1.TrafficResponse { return nil }, Series: func(*agentv1.SeriesRequest) *agentv1.SeriesResponse { return nil }, Log: slog.New(slog.DiscardHandler),
		Elsewhere:  func() { a.left.Add(1) },
		Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0.5 },
		Reconnect: backoff.Policy{Min: time.Millisecond, Max: 5 * time.Millisecond}, Silence: silence,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, within(t, done))
		httpClient.CloseIdleConnections()
		httpServer.Close()
		require.NoError(t, in.Close())
	})
	return a
}

func within[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		require.Fail(t, "no value arrived in time")
	}
	return v
}

func (a *agent) watched() *watch {
	a.t.Helper()
	return within(a.t, a.srv.watches)
}

func (w *watch) send(t *testing.T, frames ...*agentv1.WatchResponse) {
	t.Helper()
	for _, f := range frames {
		select {
		case w.frames <- f:
		case <-time.After(patience):
			require.Fail(t, "the stream takes no frame")
		}
	}
}

func hello() *agentv1.WatchResponse {
	return &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Hello{Hello: &agentv1.Hello{Epoch: 1, Fence: 3, LeaseTtl: durationpb.New(time.Second)}}}
}

func snapshot(revision int64, items ...*agentv1.Item) []*agentv1.WatchResponse {
	return []*agentv1.WatchResponse{
		{Frame: &agentv1.WatchResponse_SnapshotBegin{SnapshotBegin: &agentv1.SnapshotBegin{Epoch: 1, Revision: revision, Chain: []byte("chain"), Count: int64(len(items))}}},
		{Frame: &agentv1.WatchResponse_SnapshotItems{SnapshotItems: &agentv1.SnapshotItems{Items: items}}},
		{Frame: &agentv1.WatchResponse_SnapshotEnd{SnapshotEnd: &agentv1.SnapshotEnd{}}},
	}
}

func delta(after, upto int64) *agentv1.WatchResponse {
	return &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Delta{Delta: &agentv1.Delta{Epoch: 1, After: after, Upto: upto}}}
}

func item(key string) *agentv1.Item {
	return &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: key, Epoch: 1, Generation: 1, Content: &agentv1.Item_Deployment{
		Deployment: &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{Id: key}},
	}}
}

func TestGap_StartsAStreamFromTheCursor(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	require.Zero(t, w.req.ReceivedRevision)
	w.send(t, hello())
	w.send(t, snapshot(5, item("dep_1"))...)
	w.send(t, delta(5, 6), delta(7, 8))
	next := a.watched()
	require.EqualValues(t, 6, next.req.ReceivedRevision)
	require.Equal(t, w.req.SessionId, next.req.SessionId, "it is the same session")
}

func TestSnapshot_IncompleteIsDropped(t *testing.T) {
	a := setup(t, patience)
	counted := func(n int64) []*agentv1.WatchResponse {
		frames := snapshot(5, item("dep_1"))
		frames[0].GetSnapshotBegin().Count, frames[2].GetSnapshotEnd().Count = 0, n
		return frames
	}
	w := a.watched()
	require.True(t, w.req.CountsAtEnd)
	w.send(t, hello())
	w.send(t, counted(2)...)
	w = a.watched()
	require.Zero(t, w.req.ReceivedRevision)
	require.Empty(t, a.in.Items())
	w.send(t, hello())
	w.send(t, counted(1)...)
	require.Eventually(t, func() bool { return a.in.Cursor().Revision == 5 }, patience, time.Millisecond)
	require.Len(t, a.in.Items(), 1)
}

func TestDrift_StartsAStreamWithBucketSumsOnce(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, hello())
	w.send(t, snapshot(5, item("dep_1"))...)
	w.send(t, &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{Epoch: 1, Revision: 5, Digest: 1}}})
	w = a.watched()
	sums := a.in.Sums()
	require.Equal(t, sums[:], w.req.BucketSums)
	w.send(t, hello())
	w.end <- errors.New("cut")
	require.Empty(t, a.watched().req.BucketSums)
}

func TestSnapshot_RequestedByTheInboxComesAfterABookmark(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, hello())
	w.send(t, snapshot(5)...)
	gone := item("dep_1")
	gone.Content = &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
		Action: agentv1.DeploymentState_ACTION_DELETE, WorkloadKey: "dep_1", HandedOver: true,
	}}
	told := delta(5, 6)
	told.GetDelta().Items = []*agentv1.Item{gone}
	w.send(t, told)
	require.Eventually(t, func() bool { return a.in.Cursor().Revision == 6 }, patience, time.Millisecond)
	a.in.Ask(inbox.Key{Kind: gone.Kind, Name: gone.Key})
	sums := a.in.Sums()
	w.send(t, &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{Epoch: 1, Revision: 6, Digest: sums.Total()}}})
	w = a.watched()
	require.Len(t, w.req.BucketSums, len(sums))
	for i, sum := range w.req.BucketSums {
		require.NotEqual(t, sums[i], sum, "every bucket is requested")
	}
	w.send(t, hello())
	w.end <- errors.New("cut")
	require.NotEmpty(t, a.watched().req.BucketSums, "buckets are requested until a snapshot came")
}

func TestReport_RefusedStartsAStream(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, hello())
	s := within(t, a.rep.sessions)
	require.EqualValues(t, 3, s.Fence)
	a.rep.fail <- report.ErrSessionOver
	within(t, w.gone)
	a.watched().send(t, hello())
	within(t, a.rep.sessions)

	a.rep.fail <- nil // the reporter ends although its stream is open
	a.watched()
}

func TestStream_ThatIsSilentIsClosed(t *testing.T) {
	a := setup(t, 100*time.Millisecond)
	a.watched() // this stream does not even send a Hello
	w := a.watched()
	w.send(t, hello())
	within(t, w.gone)
	a.watched()
}

func TestStream_WithoutAHelloIsClosed(t *testing.T) {
	a := setup(t, patience)
	a.watched().send(t, delta(0, 5))
	a.watched()
	require.Zero(t, a.in.Cursor())
}

func TestSnapshot_LargerThanAnnouncedIsNotHeld(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, hello())
	frames := snapshot(5, item("dep_1"))
	w.send(t, frames[0], frames[1], frames[1])
	a.watched()
	require.False(t, a.in.Synced())
}

func TestAgent_ReconnectsAfterAGoAway(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, &agentv1.WatchResponse{Frame: &agentv1.WatchResponse_GoAway{GoAway: &agentv1.GoAway{RetryAfter: durationpb.New(20 * time.Millisecond)}}})
	start := time.Now()
	w = a.watched()
	require.Less(t, time.Since(start), patience)
	require.EqualValues(t, 1, a.left.Load(), "on the old connection, the agent would reach the same server again")
	w.end <- connect.NewError(connect.CodeUnavailable, errors.New("a failure"))
	a.watched()
	require.EqualValues(t, 1, a.left.Load())
}

func TestFrame_UnknownIsSkippedUnlessRequired(t *testing.T) {
	a := setup(t, patience)
	w := a.watched()
	w.send(t, hello(), &agentv1.WatchResponse{})
	w.send(t, snapshot(5, item("dep_1"))...)
	w.send(t, &agentv1.WatchResponse{Required: true})
	require.EqualValues(t, 5, a.watched().req.ReceivedRevision)
}

func TestJoin_UnansweredIsRepeatedWithTheSameID(t *testing.T) {
	dir := t.TempDir()
	token, path := filepath.Join(dir, "token"), filepath.Join(dir, "credential.json")
	require.NoError(t, os.WriteFile(token, []byte("wlj_token\n"), 0o600))
	srv := &server{}
	_, handler := agentv1connect.NewAgentServiceHandler(srv)
	httpServer := httptest.NewServer(handler)
	defer httpServer.Close()
	client := agentv1connect.NewAgentServiceClient(httpServer.Client(), httpServer.URL)
	srv.onJoin = func(*agentv1.JoinRequest) error {
		require.FileExists(t, filepath.Join(dir, keyName), "a credential must never be bound to a key that a crash could lose")
		return connect.NewError(connect.CodeUnavailable, errors.New("the answer is lost"))
	}

	c, err := openCredentials(path)
	require.NoError(t, err)
	require.Error(t, c.joinWithToken(t.Context(), client, token, nil, time.Now()))
	srv.onJoin = nil
	c, err = openCredentials(path) // the agent was killed and started again
	require.NoError(t, err)
	require.NoError(t, c.EnsureJoined(t.Context(), client, token, nil, backoff.Policy{}, func() float64 { return 0 }, slog.New(slog.DiscardHandler)))
	require.Len(t, srv.joins, 2)
	require.Equal(t, srv.joins[0].JoinId, srv.joins[1].JoinId)
	require.Len(t, srv.joins[0].PublicKey, ed25519.PublicKeySize)
	require.Equal(t, srv.joins[0].PublicKey, srv.joins[1].PublicKey)
	require.Equal(t, "wlj_token", srv.joins[1].Token)

	c, err = openCredentials(path)
	require.NoError(t, err)
	require.Equal(t, "credential", c.Token())
	require.Equal(t, "us-east-1", c.Region())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestCredential_RefusedJoinsAgain(t *testing.T) {
	a := setup(t, patience)
	a.watched().end <- connect.NewError(connect.CodeUnauthenticated, errors.New("revoked"))
	a.watched()
	a.srv.mu.Lock()
	require.Len(t, a.srv.joins, 2)
	a.srv.onJoin = func(*agentv1.JoinRequest) error {
		return connect.NewError(connect.CodePermissionDenied, errors.New("used"))
	}
	a.srv.mu.Unlock()
	require.Equal(t, "credential", a.s.cfg.Credentials.Token())
}

func openCredentials(path string) (*Credentials, error) {
	return OpenCredentials(disk.Dir(filepath.Dir(path)), filepath.Base(path))
}
