package gateways

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// peer is the true state of a gateway, or of the clients of a feed. The hub knows only what the
// peer reported.
type peer struct {
	id string
	// stream is nil while the peer is away. since is when it went away.
	stream *gateway
	since  time.Time
	begun  bool
	// feed is set if the peer stands for the clients of a feed.
	feed *gateway
	// sent has the states that were sent and not applied yet. served has the states by which the
	// peer routes.
	sent   []*gatewayv1.AppRoutes
	served map[string]*gatewayv1.AppRoutes
	// table is the number of the table from which served comes.
	table int
	// told has the apps that the peer may report since Begin. For a feed, it also has the changes
	// to report.
	told map[string]int64
	// flight has the number of the peer's requests in flight, by instance.
	flight map[string]int32
}

func (p *peer) sendsTo(instance string) bool {
	for _, a := range p.served {
		if openIn(a)[instance] {
			return true
		}
	}
	return p.flight[instance] > 0
}

// model is a region with two apps, three deployments, three gateways and two feeds.
type model struct {
	t     *rapid.T
	now   time.Time
	h     *hub
	table int
	peers []*peer
	// behind has one peer for the clients of each feed. In such a peer, sent has the states that the
	// clients have not acknowledged, and told has the changes that the feed has not reported.
	behind []*peer
	lists  map[string][]runtime.Instance
	gens   map[string]int64
	made   int
}

func (m *model) startAgent() {
	known := []string{}
	if m.h != nil {
		known = m.h.countingIDs()
	}
	m.table++
	m.h = newHub(newTable(func(string) *agentv1.DeploymentState { return nil }), 0, Grace)
	m.h.countKept(known, m.now)
	for _, b := range m.behind {
		b.feed, b.begun, b.sent, b.told = m.h.addFeed(b.id), false, nil, map[string]int64{}
	}
}

// follow takes the changed apps of a feed. The feed's clients, if there are any, apply some of
// them.
func (m *model) follow(b *peer) {
	if !b.begun {
		m.h.beginTable(b.feed, m.now)
		b.begun = true
	}
	b.sent = append(b.sent, m.h.takeDirty(b.feed)...)
	n := len(b.sent)
	if b.stream != nil {
		n = rapid.IntRange(0, n).Draw(m.t, "applied")
	}
	m.acknowledge(b, n)
}

// acknowledge applies the first n states that were sent. Once all sent states are applied, the feed
// reports them.
func (m *model) acknowledge(b *peer, n int) {
	for _, a := range b.sent[:n] {
		if b.told[a.AppId] = a.Change; b.stream != nil {
			b.served[a.AppId] = a
		}
	}
	if b.sent = b.sent[n:]; len(b.sent) > 0 {
		return
	}
	// The clients serve only apps that were sent to them.
	for id := range b.served {
		if b.stream != nil && m.h.apps[id] == nil {
			delete(b.served, id)
		}
	}
	m.h.recordFeed(b.feed, b.told, b.stream != nil, nil, m.now)
	b.told = map[string]int64{}
}

// addClient connects a client to the feed, which sends it the whole table.
func (m *model) addClient(b *peer) {
	if b.stream != nil || !b.begun {
		return
	}
	m.h.recordFeed(b.feed, nil, true, nil, m.now)
	b.stream, b.sent = b.feed, m.h.takeDirty(b.feed)
	sent := map[string]bool{}
	for _, a := range b.sent {
		sent[a.AppId] = true
	}
	for id, a := range m.h.apps {
		if !sent[id] {
			b.sent = append(b.sent, a.state)
		}
	}
}

// leaveFeed ends the only client behind the feed.
func (m *model) leaveFeed(b *peer) {
	if b.stream != nil {
		b.stream, b.since, b.sent = nil, m.now, nil
		m.h.recordFeed(b.feed, nil, false, nil, m.now)
	}
}

func (m *model) observe() {
	var seen []runtime.ObservedDeployment
	for _, id := range []string{"dep_1", "dep_2", "dep_3"} {
		seen = append(seen, runtime.ObservedDeployment{DeploymentID: id, Instances: slices.Clone(m.lists[id])})
	}
	m.h.markDirty(m.h.setObserved(seen))
}

func (m *model) route(app string) {
	m.gens[app]++
	r := &agentv1.Routes{AppId: app}
	if rapid.IntRange(0, 3).Draw(m.t, "targets") > 0 {
		r.Hosts = []string{app + ".test"}
		for _, id := range []string{"dep_1", "dep_2", "dep_3"} {
			if rapid.Bool().Draw(m.t, "target "+id) {
				r.Targets = append(r.Targets, &agentv1.RouteTarget{DeploymentId: id, Weight: 1})
			}
		}
	}
	m.h.markDirty(m.h.setRoute(r, 1, m.gens[app]))
}

// assign assigns a deployment of an app with a preview, or deletes it.
func (m *model) assign(app string) {
	id := rapid.SampledFrom([]string{"dep_1", "dep_2", "dep_3"}).Draw(m.t, "deployment")
	state := &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_DELETE}
	if rapid.Bool().Draw(m.t, "apply") {
		state = &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{Id: id, AppId: app, PreviewHost: id + ".test"}}
	}
	m.h.markDirty(m.h.setDeployment(id, state))
}

func (m *model) watch(p *peer) {
	if p.stream != nil {
		return
	}
	var have []*gatewayv1.AppVersion
	for id, a := range p.served {
		have = append(have, &gatewayv1.AppVersion{AppId: id, Epoch: a.Epoch, Generation: a.Generation, Change: a.Change})
	}
	p.stream, p.begun, p.sent, p.told = m.h.openStream(p.id, "", have, p.table == m.table, m.now), false, nil, map[string]int64{}
}

func (m *model) leave(p *peer) {
	if p.stream != nil {
		m.h.closeStream(p.stream, m.now)
		p.stream, p.since = nil, m.now
	}
}

// receive takes the dirty apps of the gateway, and applies some of them.
func (m *model) receive(p *peer) {
	if p.stream == nil {
		return
	}
	if !p.begun {
		m.h.beginTable(p.stream, m.now)
		p.begun, p.table = true, m.table
	}
	p.sent = append(p.sent, m.h.takeDirty(p.stream)...)
	n := rapid.IntRange(0, len(p.sent)).Draw(m.t, "applied")
	for _, a := range p.sent[:n] {
		p.served[a.AppId] = a
		p.told[a.AppId] = 0
	}
	p.sent = p.sent[n:]
}

func (m *model) report(p *peer) {
	if p.stream == nil || !p.begun {
		return
	}
	waiting := map[string]bool{}
	for _, a := range p.sent {
		waiting[a.AppId] = true
	}
	req := &gatewayv1.ReportRequest{GatewayId: p.id}
	for id, a := range p.served {
		// The gateway may have kept an app from another table. It must not report a change of the
		// app before the app was sent again.
		_, fresh := p.told[id]
		if fresh || p.stream.same && !waiting[id] {
			req.Served = append(req.Served, &gatewayv1.Served{AppId: id, Epoch: a.Epoch, Generation: a.Generation, InstancesChange: a.Change})
		}
	}
	open := map[string]bool{}
	for _, a := range p.served {
		for id := range openIn(a) {
			open[id] = true
		}
	}
	for id, n := range p.flight {
		if !open[id] && n > 0 {
			req.Instances = append(req.Instances, &gatewayv1.InstanceHealth{InstanceId: id, InFlight: n})
		}
	}
	if !m.h.applyReport(req, m.now) {
		m.t.Fatalf("the report of a gateway with a stream was refused")
	}
}

// requests begins requests to instances that the gateway may send to. It ends requests to other
// instances.
func (m *model) requests(p *peer) {
	for _, list := range m.lists {
		for _, in := range list {
			open := false
			for _, a := range p.served {
				open = open || openIn(a)[in.ID]
			}
			if rapid.Bool().Draw(m.t, "request") {
				if open {
					p.flight[in.ID]++
				} else {
					delete(p.flight, in.ID)
				}
			}
		}
	}
}

func (m *model) instances() {
	id := rapid.SampledFrom([]string{"dep_1", "dep_2", "dep_3"}).Draw(m.t, "deployment")
	list := slices.Clone(m.lists[id])
	ready, draining := windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	switch n := rapid.IntRange(0, 2).Draw(m.t, "change"); {
	case n == 0 && len(list) < 3:
		m.made++
		list = append(list, runtime.Instance{ID: fmt.Sprintf("ins_%d", m.made), Address: fmt.Sprintf("127.0.0.1:%d", 1000+m.made), Status: ready})
	case n == 1 && len(list) > 0:
		list[0].Status = draining
	case n == 2 && len(list) > 0 && list[0].Status == draining && m.h.isReleased(list[0].ID):
		m.requireNoneSends(list[0].ID)
		list = list[1:]
	}
	m.lists[id] = list
	m.observe()
}

func (m *model) requireNoneSends(instance string) {
	for _, p := range slices.Concat(m.peers, m.behind) {
		away := p.stream == nil && !m.now.Before(p.since.Add(Grace))
		if !away && p.sendsTo(instance) {
			m.t.Fatalf("%s may be stopped while %s sends to it", instance, p.id)
		}
	}
}

func TestRelease_WaitsForEveryGatewayProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			t: t, now: time.Unix(1_800_000_000, 0), lists: map[string][]runtime.Instance{}, gens: map[string]int64{},
		}
		for _, id := range []string{"feed", "other feed"} {
			m.behind = append(m.behind, &peer{id: id, since: m.now.Add(-time.Hour), served: map[string]*gatewayv1.AppRoutes{}, told: map[string]int64{}})
		}
		m.startAgent()
		for n := range 3 {
			m.peers = append(m.peers, &peer{
				id: fmt.Sprintf("gateway-%d", n), since: m.now.Add(-time.Hour),
				served: map[string]*gatewayv1.AppRoutes{}, flight: map[string]int32{},
			})
		}
		pick := func() *peer { return rapid.SampledFrom(m.peers).Draw(t, "gateway") }
		behind := func() *peer { return rapid.SampledFrom(m.behind).Draw(t, "feed") }
		t.Repeat(map[string]func(*rapid.T){
			"route":    func(*rapid.T) { m.route(rapid.SampledFrom([]string{"app_1", "app_2"}).Draw(t, "app")) },
			"preview":  func(*rapid.T) { m.assign(rapid.SampledFrom([]string{"app_1", "app_2"}).Draw(t, "app")) },
			"instance": func(*rapid.T) { m.instances() },
			"watch":    func(*rapid.T) { m.watch(pick()) },
			"receive":  func(*rapid.T) { m.receive(pick()) },
			"report":   func(*rapid.T) { m.report(pick()) },
			"feed":     func(*rapid.T) { m.follow(behind()) },
			"come":     func(*rapid.T) { m.addClient(behind()) },
			"go":       func(*rapid.T) { m.leaveFeed(behind()) },
			"requests": func(*rapid.T) { m.requests(pick()) },
			"break":    func(*rapid.T) { m.leave(pick()) },
			"time": func(*rapid.T) {
				m.now = m.now.Add(10 * time.Second)
				m.h.expireGateways(m.now)
			},
			"restart of the agent": func(*rapid.T) {
				for _, p := range m.peers {
					m.leave(p)
				}
				for _, b := range m.behind {
					m.leaveFeed(b)
				}
				old := m.h.apps
				m.startAgent()
				for id, a := range old {
					for deployment, p := range a.previews {
						m.h.setDeployment(deployment, &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{AppId: id, PreviewHost: p.host}})
					}
					if a.routes != nil {
						m.h.setRoute(a.routes, a.state.Epoch, a.state.Generation)
					}
				}
				m.observe()
			},
			"": func(*rapid.T) {
				for _, list := range m.lists {
					for _, in := range list {
						if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING && m.h.isReleased(in.ID) {
							m.requireNoneSends(in.ID)
						}
					}
				}
			},
		})

		// Every wait ends once all gateways and feeds have reported.
		for _, p := range m.peers {
			m.watch(p)
			for range 2 {
				if m.receive(p); len(p.sent) > 0 {
					for _, a := range p.sent {
						p.served[a.AppId], p.told[a.AppId] = a, 0
					}
					p.sent = nil
				}
			}
			for id := range p.flight {
				delete(p.flight, id)
			}
			m.report(p)
		}
		for _, b := range m.behind {
			m.follow(b)
			m.addClient(b)
			m.follow(b)
			m.acknowledge(b, len(b.sent))
		}
		for app, generation := range m.gens {
			if why := m.h.whyNotServed(app, 1, generation); why != "" {
				t.Fatalf("%s is not served: %s", app, why)
			}
		}
		for _, list := range m.lists {
			for _, in := range list {
				if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING && !m.h.isReleased(in.ID) {
					t.Fatalf("%s is never released", in.ID)
				}
			}
		}
		if len(m.h.closed) > 0 && !slices.ContainsFunc(m.peers, func(p *peer) bool { return len(p.stream.have) > 0 }) {
			t.Fatalf("closed has entries that no gateway needs: %v", m.h.closed)
		}
	})
}
