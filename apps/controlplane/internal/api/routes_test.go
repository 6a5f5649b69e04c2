package api_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	notVerified = windlassv1.ErrorReason_ERROR_REASON_DOMAIN_NOT_VERIFIED
	domainTaken = windlassv1.ErrorReason_ERROR_REASON_DOMAIN_TAKEN
)

// records are the TXT records of the DNS.
type records struct {
	mu   sync.Mutex
	txts map[string][]string
	err  error
}

func (r *records) set(name string, txts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.txts == nil {
		r.txts = map[string][]string{}
	}
	r.txts[name+"."] = txts
}

func (r *records) lookup(_ context.Context, name string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	return r.txts[name], nil
}

// routesOf returns the app's routes by host.
func (h *harness) routesOf(app string) map[string]*windlassv1.Route {
	h.t.Helper()
	return h.listRoutes(&windlassv1.ListRoutesRequest{App: app})
}

// endedRoutesOf is routesOf with routes of ended versions.
func (h *harness) endedRoutesOf(app string) map[string]*windlassv1.Route {
	h.t.Helper()
	return h.listRoutes(&windlassv1.ListRoutesRequest{App: app, Ended: true})
}

func (h *harness) listRoutes(req *windlassv1.ListRoutesRequest) map[string]*windlassv1.Route {
	h.t.Helper()
	res, err := h.routes(h.viewer).ListRoutes(h.t.Context(), req)
	require.NoError(h.t, err)
	out := map[string]*windlassv1.Route{}
	for _, r := range res.GetRoutes() {
		out[r.GetHost()] = r
	}
	return out
}

func (h *harness) addDomain(app, name string) (*windlassv1.Domain, error) {
	res, err := h.routes(h.deployer).AddDomain(h.t.Context(), &windlassv1.AddDomainRequest{App: app, Domain: name})
	return res.GetDomain(), err
}

func (h *harness) verifyDomain(app, name string) (*windlassv1.Domain, error) {
	res, err := h.routes(h.deployer).VerifyDomain(h.t.Context(), &windlassv1.VerifyDomainRequest{App: app, Domain: name})
	return res.GetDomain(), err
}

func TestHost_IsStableAndEachVersionHasAPreview(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", args("a"))
		app, err := w.apps(w.viewer).GetApp(t.Context(), &windlassv1.GetAppRequest{App: "chat"})
		require.NoError(t, err)
		digits := app.GetApp().GetId()[len(app.GetApp().GetId())-12:]
		stable := "chat-" + digits + ".apps.test"
		before := w.routesOf("chat")
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PENDING, before[stable].GetState())
		require.Equal(t, "no region serves the host yet", before[stable].GetMessage())

		w.settle("chat")
		w.versions("chat", "b")
		_, err = w.pin(1, 10)
		require.NoError(t, err)
		w.settle("chat")
		routes := w.routesOf("chat")
		require.Len(t, routes, 3)
		s := routes[stable]
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, s.GetState(), "%v", s)
		require.Equal(t, windlassv1.Route_KIND_STABLE, s.GetKind())
		require.Equal(t, "default/production/chat", s.GetApp())
		require.Len(t, s.GetRegions(), 2)
		for _, r := range s.GetRegions() {
			require.Equal(t, r.GetGeneration(), r.GetAcknowledgedGeneration())
			require.Len(t, r.GetTargets(), 2)
			require.Equal(t, []int32{1, 10, 2, 90}, []int32{r.GetTargets()[0].GetVersion(), r.GetTargets()[0].GetPercent(), r.GetTargets()[1].GetVersion(), r.GetTargets()[1].GetPercent()})
		}
		for version, host := range map[int32]string{1: "v1-" + stable, 2: "v2-" + stable} {
			require.Equal(t, windlassv1.Route_KIND_PREVIEW, routes[host].GetKind(), host)
			require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, routes[host].GetState())
			require.Equal(t, version, routes[host].GetVersion())
			require.Len(t, routes[host].GetRegions(), 2)
		}

		_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "chat"})
		require.NoError(t, err)
		require.NoError(t, w.stepper.Step(t.Context(), app.GetApp().GetId()))
		going := w.routesOf("chat")[stable]
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_TERMINATING, going.GetState())
		require.Equal(t, "2 regions must still remove the host", going.GetMessage())
		for _, host := range []string{"v1-" + stable, "v2-" + stable} {
			require.Contains(t, w.routesOf("chat"), host)
		}
		w.settle("chat")
		_, err = w.routes(w.viewer).ListRoutes(t.Context(), &windlassv1.ListRoutesRequest{App: "chat"})
		refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app")

		gone := w.routesOf(app.GetApp().GetId())
		require.Len(t, gone, 1)
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_TERMINATED, gone[stable].GetState(), "the route is shown until retention deletes the app")
		require.Empty(t, gone[stable].GetRegions())
		require.Len(t, w.endedRoutesOf(app.GetApp().GetId()), 3)
	})
}

func TestPreview_OfAnEndedVersionIsTerminated(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", args("a"))
		w.settle("chat")
		w.versions("chat", "b")
		var over []*windlassv1.Route
		for host, r := range w.endedRoutesOf("chat") {
			if now := w.routesOf("chat")[host]; now == nil {
				over = append(over, r)
			} else {
				require.Equal(t, now.GetState(), r.GetState(), host)
			}
		}
		require.Len(t, over, 1)
		require.EqualValues(t, 1, over[0].GetVersion())
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_TERMINATED, over[0].GetState())
		require.Len(t, over[0].GetRegions(), 2)
		for _, r := range over[0].GetRegions() {
			require.Equal(t, windlassv1.RouteState_ROUTE_STATE_TERMINATED, r.GetState())
			require.Empty(t, r.GetTargets())
		}
	})
}

func TestDomain_ServesOnceItsRecordExists(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", args("a"))
		w.settle("chat")
		d, err := w.addDomain("chat", "Chat.Example.com.")
		require.NoError(t, err)
		require.Equal(t, []string{"chat.example.com", "_windlass.chat.example.com"}, []string{d.GetName(), d.GetTxtName()})
		require.True(t, strings.HasPrefix(d.GetTxtValue(), "windlass-verify_"))
		require.False(t, d.GetVerified())
		again, err := w.addDomain("chat", "chat.example.com")
		require.NoError(t, err)
		require.Equal(t, d.GetTxtValue(), again.GetTxtValue())
		w.settle("chat")
		waiting := w.routesOf("chat")["chat.example.com"]
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PENDING, waiting.GetState())
		require.Equal(t, "the domain is not verified yet", waiting.GetMessage())

		_, err = w.verifyDomain("chat", "chat.example.com")
		refused(t, err, connect.CodeFailedPrecondition, notVerified, "domain")
		require.ErrorContains(t, err, "no TXT record exists yet")
		w.records.set(d.GetTxtName(), "something else")
		_, err = w.verifyDomain("chat", "chat.example.com")
		refused(t, err, connect.CodeFailedPrecondition, notVerified, "domain")
		require.ErrorContains(t, err, `the TXT record is "something else"`)
		for want, broken := range map[string]error{
			"no answer in time":   context.DeadlineExceeded,
			"a DNS server failed": &net.DNSError{Err: "server misbehaving", Server: "10.96.0.10:53", IsTemporary: true},
			"no usable answer":    &net.OpError{Op: "dial", Net: "udp", Addr: &net.UDPAddr{IP: net.IPv4(10, 96, 0, 10), Port: 53}, Err: errors.New("refused")},
		} {
			w.records.err = broken
			_, err = w.verifyDomain("chat", "chat.example.com")
			refused(t, err, connect.CodeFailedPrecondition, notVerified, "domain")
			require.ErrorContains(t, err, "the DNS look-up failed: "+want)
			require.NotContains(t, err.Error(), "10.96.0.10", "tenants must not see addresses of resolvers")
		}
		w.records.err = nil

		w.records.set(d.GetTxtName(), "something else", d.GetTxtValue())
		d, err = w.verifyDomain("chat", "chat.example.com")
		require.NoError(t, err)
		require.True(t, d.GetVerified())
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PROVISIONING, w.routesOf("chat")["chat.example.com"].GetState())
		w.settle("chat")
		served := w.routesOf("chat")["chat.example.com"]
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, served.GetState(), "%v", served)
		require.Equal(t, windlassv1.Route_KIND_DOMAIN, served.GetKind())
		require.Len(t, served.GetRegions(), 2)
		w.records.set(d.GetTxtName())
		_, err = w.verifyDomain("chat", "chat.example.com")
		require.NoError(t, err, "the domain is already verified, and is not looked up")
		w.versions("chat", "b")
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, w.routesOf("chat")["chat.example.com"].GetState())

		_, err = w.routes(w.deployer).RemoveDomain(t.Context(), &windlassv1.RemoveDomainRequest{App: "chat", Domain: "chat.example.com"})
		require.NoError(t, err)
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_TERMINATING, w.routesOf("chat")["chat.example.com"].GetState())
		app := w.settle("chat")
		require.NotContains(t, w.routesOf("chat"), "chat.example.com")
		_, err = w.verifyDomain("chat", "chat.example.com")
		refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "domain")
		var what []string
		entries, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: app.GetId()})
		require.NoError(t, err)
		for _, h := range entries.GetEntries() {
			if strings.HasPrefix(h.GetWhat(), "Domain") {
				what = append(what, h.GetWhat())
			}
		}
		require.Equal(t, []string{"DomainRemoved", "DomainVerified", "DomainAdded"}, what)
	})
}

func TestDomain_BelongsToOneApp(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		for _, app := range []string{"chat", "search"} {
			w.deploy(app, args("a"))
			w.settle(app)
		}
		one, err := w.addDomain("chat", "example.com")
		require.NoError(t, err)
		two, err := w.addDomain("search", "example.com")
		require.NoError(t, err, "several apps may add a domain before one verifies it")
		require.NotEqual(t, one.GetTxtValue(), two.GetTxtValue())
		w.records.set(one.GetTxtName(), one.GetTxtValue(), two.GetTxtValue())
		_, err = w.verifyDomain("search", "example.com")
		require.NoError(t, err)
		_, err = w.verifyDomain("chat", "example.com")
		refused(t, err, connect.CodeFailedPrecondition, domainTaken, "domain")
		require.ErrorContains(t, err, "default/production/search")

		_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "search"})
		require.NoError(t, err)
		_, err = w.verifyDomain("chat", "example.com")
		require.NoError(t, err)
		list, err := w.routes(w.viewer).ListDomains(t.Context(), &windlassv1.ListDomainsRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetDomains(), 1)
		others, err := w.routes(w.rival).ListDomains(t.Context(), &windlassv1.ListDomainsRequest{})
		require.NoError(t, err)
		require.Empty(t, others.GetDomains())

		for name, field := range map[string]string{"https://example.com": "domain", "x.apps.test": "domain", "apps.test": "domain", "localhost": "domain"} {
			_, err := w.addDomain("chat", name)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, field)
		}
		for i := range model.MaxDomains - 1 {
			_, err := w.addDomain("chat", "d"+strings.Repeat("x", i)+".example.com")
			require.NoError(t, err)
		}
		_, err = w.addDomain("chat", "more.example.com")
		refused(t, err, connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "domain")
		_, err = w.routes(w.viewer).AddDomain(t.Context(), &windlassv1.AddDomainRequest{App: "chat", Domain: "a.example.com"})
		require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
	})
}

// lapse makes the domain lapse, as after a long time without its record.
func (h *harness) lapse(name string) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		return tx.NoteDomainChecks(model.DomainChecks{Missing: []string{name}, Lapsed: []string{name}}, 1)
	})
}

func TestDomain_LapsedServesUntilAnotherAppVerifiesIt(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		const name = "chat.example.com"
		w.deploy("chat", args("a"))
		app := w.settle("chat")
		d, err := w.addDomain("chat", name)
		require.NoError(t, err)
		w.records.set(d.GetTxtName(), d.GetTxtValue())
		_, err = w.verifyDomain("chat", name)
		require.NoError(t, err)
		w.settle("chat")
		_, err = w.apps(w.rival).CreateApp(t.Context(), &windlassv1.CreateAppRequest{Name: "theirs"})
		require.NoError(t, err)
		claim := &windlassv1.AddDomainRequest{App: "theirs", Domain: name}
		_, err = w.routes(w.rival).AddDomain(t.Context(), claim)
		refused(t, err, connect.CodeFailedPrecondition, domainTaken, "domain")

		w.records.set(d.GetTxtName(), "nothing of ours")
		w.lapse(name)
		list, err := w.routes(w.viewer).ListDomains(t.Context(), &windlassv1.ListDomainsRequest{})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1}, []int64{list.GetDomains()[0].GetMissingSince(), list.GetDomains()[0].GetLapsedAt()})
		require.True(t, list.GetDomains()[0].GetVerified())
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_RUNNING, w.routesOf("chat")[name].GetState())
		_, err = w.verifyDomain("chat", name)
		refused(t, err, connect.CodeFailedPrecondition, notVerified, "domain")

		// The domain's app can verify it again at once.
		w.records.set(d.GetTxtName(), d.GetTxtValue())
		keyed := &windlassv1.VerifyDomainRequest{App: "chat", Domain: name, Mutation: &windlassv1.Mutation{IdempotencyKey: "verify"}}
		first, err := w.routes(w.deployer).VerifyDomain(t.Context(), keyed)
		require.NoError(t, err)
		d = first.GetDomain()
		require.Zero(t, d.GetLapsedAt()+d.GetMissingSince())

		w.lapse(name)
		w.records.set(d.GetTxtName(), "nothing of ours")
		again, err := w.routes(w.deployer).VerifyDomain(t.Context(), keyed)
		require.NoError(t, err, "a repeated call has the first answer, although the record is gone")
		require.Equal(t, first.String(), again.String())
		theirs, err := w.routes(w.rival).AddDomain(t.Context(), claim)
		require.NoError(t, err)
		verify := &windlassv1.VerifyDomainRequest{App: "theirs", Domain: name}
		_, err = w.routes(w.rival).VerifyDomain(t.Context(), verify)
		refused(t, err, connect.CodeFailedPrecondition, notVerified, "domain")
		w.records.set(d.GetTxtName(), d.GetTxtValue(), theirs.GetDomain().GetTxtValue())
		_, err = w.routes(w.rival).VerifyDomain(t.Context(), verify)
		refused(t, err, connect.CodeFailedPrecondition, domainTaken, "domain")
		w.records.set(d.GetTxtName(), theirs.GetDomain().GetTxtValue())
		taken, err := w.routes(w.rival).VerifyDomain(t.Context(), verify)
		require.NoError(t, err)
		require.True(t, taken.GetDomain().GetVerified())

		list, err = w.routes(w.viewer).ListDomains(t.Context(), &windlassv1.ListDomainsRequest{})
		require.NoError(t, err)
		require.False(t, list.GetDomains()[0].GetVerified(), "the app must verify the domain again")
		w.settle("chat")
		require.Equal(t, windlassv1.RouteState_ROUTE_STATE_PENDING, w.routesOf("chat")[name].GetState())
		entries, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: app.GetId()})
		require.NoError(t, err)
		i := slices.IndexFunc(entries.GetEntries(), func(e *windlassv1.HistoryEntry) bool { return e.GetWhat() == "DomainTaken" })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, "somebody of another workspace", entries.GetEntries()[i].GetWho())
	})
}
