package peers

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// wire carries calls inside of this process, to the handler that is plugged in at the
// address.
type wire struct {
	mu    sync.Mutex
	there map[string]http.Handler
}

func (w *wire) plug(address string, h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there[address] = h
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		return nil, fmt.Errorf("a credential in plaintext for %s", req.URL)
	}
	w.mu.Lock()
	h := w.there[req.URL.Host]
	w.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec.Result(), req.Context().Err()
}

// noAgents has no agent connected.
type noAgents struct{}

var errNoAgent = fmt.Errorf("no stream here: %w", model.ErrAgentUnreachable)

func (noAgents) Ask(context.Context, string, *agentv1.Request) ([]byte, error) {
	return nil, errNoAgent
}
func (noAgents) Connected(string) bool { return false }

// fakeScaler has one decision in each region, and the loads that it took.
type fakeScaler struct {
	mu    sync.Mutex
	has   map[string]*windlassv1.RegionScaling // by region id
	taken []string                             // region and app
}

func (f *fakeScaler) Current(region, app string) *windlassv1.RegionScaling {
	return f.Live(app)[region]
}

func (f *fakeScaler) Live(string) map[string]*windlassv1.RegionScaling {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]*windlassv1.RegionScaling{}
	maps.Copy(out, f.has)
	return out
}

func (f *fakeScaler) set(region string, d *windlassv1.RegionScaling) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.has = map[string]*windlassv1.RegionScaling{region: d}
}

func (f *fakeScaler) Take(region string, loads []*agentv1.LoadReport) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range loads {
		f.taken = append(f.taken, region+" "+l.GetAppId())
	}
	return 0
}

// took returns the loads that were taken since the last call.
func (f *fakeScaler) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.taken
	f.taken = nil
	return out
}

// harness is a database, a network and the key of one installation.
type harness struct {
	t   *testing.T
	db  *memory.Store
	net *wire
	box *seal.Box
}

func setup(t *testing.T) *harness {
	data, err := seal.Generate()
	require.NoError(t, err)
	box, err := seal.New(data)
	require.NoError(t, err)
	return &harness{
		t: t, box: box, net: &wire{there: map[string]http.Handler{}},
		db: memory.New(func() int64 { return time.Now().UnixMilli() }),
	}
}

// process is one process of the harness.
type process struct {
	*Service
	stop func()

	mu    sync.Mutex
	heard []Nudge
}

func (p *process) hear(n Nudge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, n)
}

// serve returns the handler of the process, behind the limits of its server.
func (p *process) serve() http.Handler {
	_, handler := p.Handler(rpc.Config{}, p.hear)
	return rpc.NewServer(rpc.ServerConfig{Handler: handler, Limits: Limits(nil)}).Handler
}

func (h *harness) start(id string, change ...func(*Config)) *process {
	h.t.Helper()
	p := &process{}
	cfg := Config{
		ID: id, Address: id + ":1", Store: store.Bind[Tx](h.db), Box: h.box, Agents: noAgents{}, Scaler: &fakeScaler{},
		HTTP: &http.Client{Transport: h.net}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	p.Service, err = New(cfg)
	require.NoError(h.t, err)
	h.net.plug(cfg.Address, p.serve())
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run(ctx)
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	return p
}

// taker returns the peer that took the region's last loads.
func (p *process) taker(region string) string {
	peer, _ := p.takers.takerOf(region, time.Now())
	return peer
}

func (p *process) nudges() []Nudge {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.heard)
}

func (p *process) knows() (ids []string) {
	p.Service.mu.RLock()
	defer p.Service.mu.RUnlock()
	for id := range p.senders {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (h *harness) rows() (ids []string) {
	h.t.Helper()
	require.NoError(h.t, h.db.View(h.t.Context(), func(tx store.Tx) error {
		rows, err := tx.ListPeers(time.Hour.Milliseconds())
		for _, p := range rows {
			ids = append(ids, p.ID)
		}
		return err
	}))
	return ids
}

// rarely makes a process read the table only at its start and when asked.
func rarely(c *Config) { c.Beat, c.Lease = 10*time.Hour, 100*time.Hour }

func TestNewcomer_IsKnownBeforeTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a := h.start("cp_a", rarely)
		defer a.stop()
		time.Sleep(time.Minute)
		b := h.start("cp_b", rarely)
		defer b.stop()
		time.Sleep(time.Second)
		require.Equal(t, []string{"cp_b"}, a.knows())
		require.Equal(t, []string{"cp_a"}, b.knows())
		a.Tell(Nudge{Regions: []string{"reg_1"}, Apps: []string{"app_1"}})
		synctest.Wait()
		require.Equal(t, []Nudge{{Regions: []string{"reg_1"}, Apps: []string{"app_1"}}}, b.nudges())
		require.Empty(t, a.nudges(), "no process receives its own nudge")
	})
}

func TestRow_GoesWithAStopAndIsForgottenAfterADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a, b := h.start("cp_a"), h.start("cp_b")
		defer a.stop()
		// cp_dead is dead: its row exists, and nothing renews it.
		require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error {
			return tx.PutPeer(model.Peer{ID: "cp_dead", Address: "cp_dead:1"})
		}))
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"cp_b", "cp_dead"}, a.knows())
		b.stop()
		require.Equal(t, []string{"cp_a", "cp_dead"}, h.rows())
		// cp_b is gone, so the nudge to it fails. Then cp_a reads the table again.
		a.Tell(Nudge{Regions: []string{"reg_1"}})
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"cp_dead"}, a.knows())
		time.Sleep(time.Minute)
		require.Empty(t, a.knows())
		require.Equal(t, []string{"cp_a"}, h.rows())
	})
}

func TestSlowProcess_IsKnownAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a, b := h.start("cp_a"), h.start("cp_b")
		defer a.stop()
		defer b.stop()
		time.Sleep(10 * time.Second)
		require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.DeletePeer("cp_b") }))
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"cp_b"}, a.knows())
		require.Equal(t, []string{"cp_a", "cp_b"}, h.rows())
	})
}

func TestMissedNudge_IsSentOnceThePeerIsReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a, b := h.start("cp_a", rarely), h.start("cp_b", rarely)
		defer a.stop()
		defer b.stop()
		time.Sleep(time.Second)
		h.net.plug("cp_b:1", nil)
		for i := range 3 {
			a.Tell(Nudge{Regions: []string{fmt.Sprint("reg_", i)}})
			time.Sleep(10 * time.Second)
		}
		require.Empty(t, b.nudges())
		h.net.plug("cp_b:1", b.serve())
		time.Sleep(10 * time.Second)
		require.Equal(t, []Nudge{{Regions: []string{"reg_0", "reg_1", "reg_2"}}}, b.nudges(), "all in one call")
	})
}

func TestHangingPeer_IsBoundedAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a, b, c := h.start("cp_a", rarely), h.start("cp_b", rarely), h.start("cp_c", rarely)
		defer a.stop()
		defer b.stop()
		defer c.stop()
		time.Sleep(time.Second)
		h.net.plug("cp_b:1", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		const regions = maxNames + 10
		begin := time.Now()
		for i := range regions {
			a.Tell(Nudge{Regions: []string{fmt.Sprintf("reg_%06d", i)}, Apps: []string{fmt.Sprintf("app_%06d", i)}})
		}
		require.Zero(t, time.Since(begin), "a commit waits for no peer")
		synctest.Wait()
		heard := map[string]bool{}
		all := false
		for _, n := range c.nudges() {
			all = all || n.AllRegions
			for _, id := range n.Regions {
				heard[id] = true
			}
		}
		require.True(t, all || len(heard) == regions, "cp_c heard of every region at once")
		to := a.senders["cp_b"]
		to.mu.Lock()
		require.LessOrEqual(t, len(to.regions), maxNames)
		require.LessOrEqual(t, len(to.apps), maxNames)
		to.mu.Unlock()

		h.net.plug("cp_b:1", b.serve())
		time.Sleep(10 * time.Second)
		nudges := b.nudges()
		require.NotEmpty(t, nudges)
		require.True(t, slices.ContainsFunc(nudges, func(n Nudge) bool { return n.AllRegions }), "a nudge of too many regions is for all")
	})
}

func TestAgent_OfAGoneProcessIsUnreachableAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		a, b := h.start("cp_a"), h.start("cp_b")
		defer a.stop()
		defer b.stop()
		time.Sleep(time.Second)
		ask := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			_, err := a.Ask(ctx, "reg_1", &agentv1.Request{Kind: &agentv1.Request_Logs{Logs: &agentv1.LogsRequest{InstanceId: "ins_1"}}})
			require.Zero(t, time.Since(begin))
			return err
		}
		stream := func(id string) {
			require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", id) }))
		}
		require.ErrorIs(t, ask(), errNoAgent, "without a row of the stream, this process answers")
		for _, holder := range []string{"cp_b", "cp_unknown"} {
			stream(holder)
			require.ErrorIs(t, ask(), model.ErrAgentUnreachable, holder)
		}
		stream("cp_b")
		h.net.plug("cp_b:1", nil)
		require.ErrorIs(t, ask(), model.ErrAgentUnreachable)
	})
}

// failing has every agent connected, and fails.
type failing struct{ err error }

func (f failing) Ask(context.Context, string, *agentv1.Request) ([]byte, error) { return nil, f.err }
func (failing) Connected(string) bool                                           { return true }

// A caller must know whether an agent may have carried out a request, whichever process sent the request.
func TestAgent_MayHaveDoneWhatItDidNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		agents  Agents
		maybe   bool
		unreach bool
	}{
		"not asked":    {failing{errNoAgent}, false, true},
		"not answered": {failing{fmt.Errorf("ask: %w", model.ErrNoAnswer)}, true, true},
		"refused":      {failing{errors.New("no such instance")}, false, false},
		"lost":         {nil, true, true}, // nothing listens at the process any more
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := setup(t)
				a, b := h.start("cp_a"), h.start("cp_b", func(cfg *Config) { cfg.Agents = cmp.Or(c.agents, cfg.Agents) })
				defer a.stop()
				defer b.stop()
				time.Sleep(time.Second)
				require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", "cp_b") }))
				if c.agents == nil {
					h.net.plug("cp_b:1", nil)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := a.Ask(ctx, "reg_1", &agentv1.Request{Kind: &agentv1.Request_Restart{Restart: &agentv1.RestartRequest{InstanceId: "ins_1"}}})
				require.Equal(t, c.maybe, errors.Is(err, model.ErrNoAnswer), err)
				require.Equal(t, c.unreach, errors.Is(err, model.ErrAgentUnreachable), err)
			})
		})
	}
}

func TestCredential_IsOfOneProcessPurposeAndTime(t *testing.T) {
	h := setup(t)
	to := func(id string) *Service {
		s, err := New(Config{
			ID: id, Address: id + ":1", Store: store.Bind[Tx](h.db), Box: h.box, Agents: noAgents{}, Scaler: &fakeScaler{},
			HTTP: http.DefaultClient,
			Log:  slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		require.NoError(t, err)
		return s
	}
	a, b := to("cp_a"), to("cp_b")
	now := time.Now()
	good, err := a.issueCredential("cp_b", now)
	require.NoError(t, err)
	require.NoError(t, b.verify(good, now))
	require.NoError(t, b.verify(good, now.Add(credentialFor)))

	require.ErrorContains(t, b.verify(good, now.Add(credentialTTL)), "expired")
	require.ErrorContains(t, a.verify(good, now), "another process")
	require.ErrorContains(t, b.verify("", now), "needs the credential")
	require.ErrorContains(t, b.verify(good[:len(good)-4], now), "key file")
	require.ErrorContains(t, b.verify(CredentialPrefix+"!", now), "damaged")

	// This value is sealed under the same key, for another purpose.
	agents, err := h.box.Seal([]byte(`{"f":"cp_a","t":"cp_b","e":99999999999999}`), "windlass agent credential")
	require.NoError(t, err)
	require.ErrorContains(t, b.verify(CredentialPrefix+base64.RawURLEncoding.EncodeToString(agents), now), "key file")
	foreign := setup(t)
	b.cfg.Box = foreign.box
	require.ErrorContains(t, b.verify(good, now), "key file")
}

// lost is a database that is away.
type lost struct{ Store }

func (lost) View(context.Context, func(Tx) error) error {
	return errors.New("dial tcp 10.0.0.7:3306: connection refused")
}

func TestDatabaseOutage_IsNotTheAgentsAnswer(t *testing.T) {
	s := &Service{cfg: Config{ID: "cp_a", Store: lost{}, Agents: noAgents{}}}
	_, err := s.Ask(t.Context(), "reg_1", &agentv1.Request{})
	require.ErrorIs(t, err, model.ErrAgentUnreachable, "tenants see an agent's errors")
}
