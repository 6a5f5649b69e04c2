package gateways

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	"github.com/windlass-run/windlass/pkg/neighbours"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const (
	// Interval of heartbeats: a gateway finds within 15 s that its agent is gone. It costs two
	// small messages every 5 s.
	Interval = 5 * time.Second
	// silences is how many intervals without a report end a stream.
	silences = 3
	// Grace is how long a gateway that is away counts. It is longer than a gateway takes to find
	// that its stream is dead and to come back.
	Grace = 30 * time.Second
	// Patience is how long the removal of a deployment waits for requests in flight before it
	// orders the instances to stop. Their own grace begins with that order.
	Patience = 30 * time.Second
)

// Config of Gateways.
type Config struct {
	Inbox *inbox.Inbox
	// Zero knows which deployments are at zero. Default: one in memory only.
	Zero *zero.Zero
	// Files keeps the ids of the gateways that count, under Name, and the regions around this one,
	// under Around.
	Files        disk.Files
	Name, Around string
	// TableID is new with each start of the agent.
	TableID string
	// Expected is how many gateways must serve a route for the region to serve it.
	Expected   int
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Gateways is safe for concurrent use.
type Gateways struct {
	cfg Config
	// wake makes Run look for gateways that expire. progress is called when routed or released
	// may return something else.
	wake     chan struct{}
	progress func()
	// woken is called with deployments that a request woke.
	woken func(deploymentIDs []string)

	mu   sync.Mutex
	hub  *hub
	kept []string // the ids that the file holds
	// seen has the request counts that gateways reported, and demand the load of scaled apps.
	seen   *traffic.History
	demand *load.Demand
	// since has, by deployment, the time of its first Leave.
	since map[string]time.Time
	// falling has, by deployment that goes to zero, the time of its first Sleep.
	falling map[string]time.Time
	// knows is true once the table is complete; known is closed then. looked is true once the
	// runtime was observed.
	knows, looked bool
	known         chan struct{}
	// around has the regions that requests may be handed to, as the control plane sent them last.
	// aroundKept is what the file holds.
	around, aroundKept *neighbours.Picture
	// capacity is the last argument of Annotate, and noted its result.
	capacity, noted *agentv1.Capacity
}

// New returns Gateways that count the gateways in the file.
func New(cfg Config) (*Gateways, error) {
	if cfg.Inbox == nil || cfg.Files == nil || cfg.Name == "" || cfg.Around == "" || cfg.TableID == "" || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("gateways: every field of Config but Expected is required")
	}
	if cfg.Expected < 0 || cfg.Expected > maxGateways {
		return nil, fmt.Errorf("gateways: %d are expected: use 0 (none need to be there) to %d", cfg.Expected, maxGateways)
	}
	if cfg.Zero == nil {
		cfg.Zero = zero.New()
	}
	g := &Gateways{
		cfg: cfg, wake: make(chan struct{}, 1), progress: func() {},
		woken: func([]string) {}, since: map[string]time.Time{}, falling: map[string]time.Time{}, known: make(chan struct{}),
		seen: traffic.New(), demand: load.NewDemand(),
	}
	t := newTable(g.assignment)
	t.phase = func(id string) zero.Phase { return cfg.Zero.Phase(id, g.assignment(id)) }
	t.startTime = cfg.Zero.StartTime
	g.hub = newHub(t, cfg.Expected, Grace)
	data, err := cfg.Files.Read(cfg.Name)
	if err == nil {
		err = json.Unmarshal(data, &g.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read gateways %s: %w", cfg.Name, err)
	}
	g.hub.recall(g.kept, time.Now())
	if err := g.recallAround(); err != nil {
		cfg.Log.Error("new gateways do not learn of apps in other regions until the control plane is connected", "error", err)
	}
	registerConnected(cfg.Registerer, g.connected)
	return g, nil
}

// OnProgress sets f, which is called without locks held when Routed, Leave or Released may
// return something else than before. Call OnProgress before Run.
func (g *Gateways) OnProgress(f func()) { g.progress = f }

func (g *Gateways) assignment(deploymentID string) *agentv1.DeploymentState {
	item, _ := g.cfg.Inbox.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: deploymentID})
	return item.GetDeployment()
}

// Route sends an app's route to the gateways. The inbox must have stored it.
func (g *Gateways) Route(r *agentv1.Routes, epoch, generation int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hub.touched(g.hub.route(r, epoch, generation))
	g.learn()
}

// Held sends gateways what they need of the deployments among the keys, for which the inbox holds
// something new: previews, whether load is counted, and whether requests are held. It ignores keys
// of other kinds.
func (g *Gateways) Held(keys ...inbox.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.learn() {
		return // it has read the whole inbox
	}
	for _, k := range keys {
		if k.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			g.hub.touched(g.hub.hold(k.Name, g.assignment(k.Name)))
			g.hub.touched(g.hub.turn(k.Name)) // its phase may have changed
		}
	}
}

// See sends the observed instances to the gateways. The caller must not change the lists afterwards.
func (g *Gateways) See(seen runtime.Observation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.looked
	g.looked = true
	g.hub.touched(g.hub.see(seen.Deployments))
	g.hub.meet(seen.Deployments, first)
	g.noteReady(seen.Deployments)
	for id := range g.since {
		if !slices.ContainsFunc(seen.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == id }) {
			delete(g.since, id)
			g.hub.touched(g.hub.stay(id))
		}
	}
	g.forgetFallen(seen.Deployments)
	g.seen.Forget(func(id string) bool { return g.assignment(id) != nil })
	if g.knows {
		maps.DeleteFunc(g.hub.shown, func(id string, _ zero.Phase) bool { return g.assignment(id) == nil })
		g.cfg.Zero.Forget(func(id string) bool { return g.assignment(id) != nil }, func(id string) bool { return g.hub.apps[id] != nil })
	}
	g.demand.Forget(func(appID string) bool { return g.hub.apps[appID].isScaled() })
	g.learn()
}

// Learn checks whether the inbox has received the region's desired state.
func (g *Gateways) Learn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.learn()
}

// learn completes the table, once, when the inbox is synced and the runtime was observed. It
// loads all routes and previews of the inbox, and reports whether it did so in this call.
// Called with mu held.
func (g *Gateways) learn() bool {
	if g.knows || !g.looked || !g.cfg.Inbox.Synced() {
		return false
	}
	g.hub.touched(g.hub.load(g.cfg.Inbox.Items()))
	g.knows = true
	close(g.known)
	return true
}

// Routed returns why the region does not serve an app's route yet; "" when it does.
func (g *Gateways) Routed(appID string, epoch, generation int64) (why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.routed(appID, epoch, generation)
}

// Released reports whether no gateway sends to the instance any more, or has a request in
// flight there.
func (g *Gateways) Released(instanceID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.released(instanceID)
}

// Leave ends new requests to a deployment that will be removed. It returns why the deployment
// must not be removed yet, and for how long that may last; "" when it may be removed. seen is
// what runs; nil if that is not known yet.
func (g *Gateways) Leave(deploymentID string, seen *runtime.Observation) (why string, left time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.hub.gateways) == 0 {
		return "", 0
	}
	now := time.Now()
	if _, ok := g.since[deploymentID]; !ok {
		g.since[deploymentID] = now
		g.hub.touched(g.hub.leave(deploymentID))
	}
	left = g.since[deploymentID].Add(Patience).Sub(now)
	switch {
	case left <= 0:
		return "", 0
	case seen == nil:
		return "waits until it is known what runs", left
	}
	for _, d := range seen.Deployments {
		if d.DeploymentID != deploymentID {
			continue
		}
		for n := range d.Instances {
			if id := d.Instances[n].ID; !g.hub.released(id) {
				return fmt.Sprintf("waits for the gateways to be done with instance %s, %s at most", id, Patience), left
			}
		}
	}
	return "", 0
}

// Stay takes Leave back: the deployment is wanted after all.
func (g *Gateways) Stay(deploymentID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.since, deploymentID)
	g.hub.touched(g.hub.stay(deploymentID))
}

// Countable returns what runs, with each instance as it counts in the region: one that passes
// its check but that no gateway can connect to is not ready. While nothing changes, the same
// argument gives the same lists.
func (g *Gateways) Countable(seen []runtime.ObservedDeployment) []runtime.ObservedDeployment {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.mask(seen)
}

// Annotate adds notes about the gateways, for people, to the region's capacity report. While
// nothing changes, the same argument gives the same result.
func (g *Gateways) Annotate(c *agentv1.Capacity) *agentv1.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	notes := g.hub.notes()
	if c == nil || len(notes) == 0 {
		return c
	}
	all := slices.Concat(c.Notes, notes)
	if g.capacity != c || !slices.Equal(g.noted.GetNotes(), all) {
		g.capacity, g.noted = c, proto.CloneOf(c)
		g.noted.Notes = all
	}
	return g.noted
}

func (g *Gateways) connected() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, one := range g.hub.gateways {
		if one.verified && one.stream != 0 {
			n++
		}
	}
	return n
}

// Run expires gateways and keeps the file up to date, until ctx ends.
func (g *Gateways) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			// The next agent must not wait for gateways that left just before this one ends.
			g.keepOrSay(ctx)
			return nil
		case <-g.wake:
		case <-timer.C:
		}
		g.mu.Lock()
		expired, next := g.hub.expire(time.Now())
		for _, id := range expired {
			g.left(id)
		}
		g.hub.judge()
		g.reassess()
		g.mu.Unlock()
		for _, id := range expired {
			g.cfg.Log.WarnContext(ctx, "a gateway was away too long: routes no longer wait for it", "gateway", id, "after", Grace)
		}
		g.keepOrSay(ctx)
		if len(expired) > 0 {
			g.progress()
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

func (g *Gateways) keepOrSay(ctx context.Context) {
	if err := g.keep(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store the list of gateways: after a restart the agent may wait for the wrong ones", "error", err)
	}
	if err := g.cfg.Zero.Keep(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "after a restart the agent may hold requests for longer than necessary", "error", err)
	}
	if err := g.keepAround(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store the neighbours of the region: after a restart the agent sends older ones to gateways", "error", err)
	}
}

// keep writes the file when the gateways that count are not those in it. Only Run calls it.
func (g *Gateways) keep() error {
	g.mu.Lock()
	ids := g.hub.known()
	g.mu.Unlock()
	if slices.Equal(ids, g.kept) {
		return nil
	}
	data, err := json.Marshal(append([]string{}, ids...))
	if err != nil {
		return err
	}
	if err := g.cfg.Files.Replace(g.cfg.Name, data); err != nil {
		return err
	}
	g.kept = ids
	return nil
}
