package session

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// absent is a control plane that is unreachable. It records the times of calls.
type absent struct {
	Client
	mu      sync.Mutex
	asked   []time.Time
	joined  *agentv1.JoinResponse
	renewed func() (*agentv1.RenewCredentialResponse, error)
}

func (n *absent) Watch(context.Context, *agentv1.WatchRequest) (*connect.ServerStreamForClient[agentv1.WatchResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, time.Now())
	return nil, connect.NewError(connect.CodeUnavailable, errors.New("refused"))
}

func (n *absent) Join(context.Context, *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.joined == nil {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("refused"))
	}
	return n.joined, nil
}

func (n *absent) RenewCredential(context.Context, *agentv1.RenewCredentialRequest) (*agentv1.RenewCredentialResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.renewed()
}

// alone returns a session without a control plane.
func alone(t *testing.T, in *inbox.Inbox, c Client, credential identity, seed uint64) *Session {
	s, err := New(Config{
		Client: c, Credentials: &Credentials{files: disk.NewMemory(), name: "credential.json", id: credential, session: "run_of_a_test"}, Info: &agentv1.AgentInfo{},
		Inbox: in, Reporter: &reporter{sessions: make(chan report.Session, 1)}, Changed: func(...inbox.Key) {}, Instances: nothing{}, Traffic: func(*agentv1.TrafficRequest) *agentv1.TrafficResponse { return nil }, Series: func(*agentv1.SeriesRequest) *agentv1.SeriesResponse { return nil },
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Rand: rand.New(rand.NewPCG(seed, 0)).Float64,
	})
	require.NoError(t, err)
	return s
}

func emptyInbox(t *testing.T) *inbox.Inbox {
	in, err := inbox.Open(filepath.Join(t.TempDir(), "inbox.db"), true)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	return in
}

func TestOutage_AgentsAskWithinThreeSecondsAndStaySpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd = 100
		in := emptyInbox(t)
		ctx, cancel := context.WithCancel(t.Context())
		var agents []*absent
		var wg sync.WaitGroup
		for n := range crowd {
			away := &absent{}
			agents = append(agents, away)
			s := alone(t, in, away, identity{Credential: "wla_credential"}, uint64(n))
			wg.Go(func() { _ = s.Run(ctx) })
		}
		begin := time.Now()
		time.Sleep(10 * time.Minute)
		cancel()
		wg.Wait()
		perSecond := map[int]int{}
		for _, a := range agents {
			for i, at := range a.asked {
				perSecond[int(at.Sub(begin)/time.Second)]++
				if i > 0 {
					require.LessOrEqual(t, at.Sub(a.asked[i-1]), 3*time.Second)
				}
			}
			require.LessOrEqual(t, time.Since(a.asked[len(a.asked)-1]), 3*time.Second)
		}
		for second, n := range perSecond {
			if second > 15 {
				require.Less(t, n, 90, "about %d agents should call in each second, and never all of them", crowd*10/16)
			}
		}
	})
}

func TestCredential_DueInAnOutageIsRenewedWithTheNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		away := &absent{renewed: func() (*agentv1.RenewCredentialResponse, error) { return nil, errors.New("refused") }}
		s := alone(t, emptyInbox(t), away, identity{Credential: "old", IssuedAt: now.UnixMilli(), ExpiresAt: now.Add(2 * time.Hour).UnixMilli()}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { _ = s.Renew(ctx) })
		time.Sleep(2*time.Hour - time.Second)
		require.Equal(t, "old", s.cfg.Credentials.Token())

		away.mu.Lock()
		away.renewed = func() (*agentv1.RenewCredentialResponse, error) {
			return &agentv1.RenewCredentialResponse{Credential: &agentv1.Credential{Value: "new", ExpiresAt: time.Now().Add(time.Hour).UnixMilli()}}, nil
		}
		away.mu.Unlock()
		f := &frames{session: s, cancel: func(error) {}, reporting: make(chan struct{})}
		require.NoError(t, f.startReports(ctx, &agentv1.Hello{}))
		synctest.Wait()
		require.Equal(t, "new", s.cfg.Credentials.Token())
	})
}

func TestJoin_SucceedsWithinFiveSecondsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, away := t.TempDir(), &absent{}
		token := filepath.Join(dir, "token")
		require.NoError(t, os.WriteFile(token, []byte("wlj_token"), 0o600))
		c, err := openCredentials(filepath.Join(dir, "credential.json"))
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- c.EnsureJoined(t.Context(), away, token, nil, backoff.Policy{}, rand.New(rand.NewPCG(1, 0)).Float64, slog.New(slog.DiscardHandler))
		}()
		time.Sleep(time.Hour)
		require.Empty(t, c.Token())
		away.mu.Lock()
		away.joined = &agentv1.JoinResponse{RegionName: "us-east-1", Credential: &agentv1.Credential{Value: "wla_credential"}}
		away.mu.Unlock()
		time.Sleep(5 * time.Second)
		require.Equal(t, "wla_credential", c.Token())
		require.NoError(t, <-done)
	})
}
