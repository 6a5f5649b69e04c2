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
	// Interval is the time between heartbeats. A gateway notices within three intervals that its
	// agent is gone.
	Interval = 5 * time.Second
	// silences is the number of intervals without a report after which a stream ends.
	silences = 3
	// Grace is how long a gateway that is away counts. It is longer than a gateway needs to notice
	// that its stream is dead and to reconnect.
	Grace = 30 * time.Second
	// Patience is how long the removal of a deployment waits for requests in flight before the
	// instances are told to stop. Their own grace period begins then.
	Patience = 30 * time.Second
)

// Config configures Gateways.
type Config struct {
	Inbox *inbox.Inbox
	// Zero knows which deployments are at zero. Default: a Zero in memory only.
	Zero *zero.Zero
	// Files stores three files: the ids of the gateways that count, under Name, the neighbours of the
	// region, under Around, and the versions of apps with pairs, under Versions.
	Files                  disk.Files
	Name, Around, Versions string
	// TableID is the id of the table, a new one for each start of the agent.
	TableID string
	// Expected is the number of gateways that must serve a route before the region serves it.
	Expected int
	// Counted is called with the request counts of an app that gateways report. It must not block. Nil: no call.
	Counted    func(appID string, more *traffic.Counts, now time.Time)
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Gateways is safe for concurrent use.
type Gateways struct {
	cfg Config
	// wake makes Run look for gateways that expire. progress is called when the results of Routed,
	// Leave or Released may have changed.
	wake     chan struct{}
	progress func()
	// woken is called with deployments that a request woke.
	woken func(deploymentIDs []string)
	// requested and used are the arguments of OnRequests.
	requested func(deploymentIDs []string)
	used      func(deploymentID string, requests uint64)

	mu   sync.Mutex
	hub  *hub
	kept []string // the ids in the file
	// traffic has the request counts that gateways reported. demand has the load of scaled apps.
	traffic *traffic.History
	demand  *load.Demand
	// leavingSince has, by deployment, the time of its first Leave.
	leavingSince map[string]time.Time
	// sleepingSince has, by deployment that goes to zero, the time of its first Sleep.
	sleepingSince map[string]time.Time
	// tableComplete is true once completeTable has loaded the inbox. At that moment, complete is
	// closed. observed is true once the runtime was observed.
	tableComplete, observed bool
	complete                chan struct{}
	// around has the newest neighbours from the control plane: the regions that gateways may hand
	// requests over to. aroundKept has the neighbours in the file.
	around, aroundKept *neighbours.Picture
	// versionsKept is the content of the file Versions.
	versionsKept []byte
	// capacity is the argument of the last call of Annotate, and noted is its result.
	capacity, noted *agentv1.Capacity
}

// New returns Gateways that count the gateways whose ids are in the file.
func New(cfg Config) (*Gateways, error) {
	if cfg.Inbox == nil || cfg.Files == nil || cfg.Name == "" || cfg.Around == "" || cfg.Versions == "" || cfg.TableID == "" || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("gateways: every field of Config except Zero, Expected and Counted is required")
	}
	if cfg.Expected < 0 || cfg.Expected > maxGateways {
		return nil, fmt.Errorf("gateways: Expected is %d: use 0 (routes wait for no gateway) to %d", cfg.Expected, maxGateways)
	}
	if cfg.Zero == nil {
		cfg.Zero = zero.New()
	}
	g := &Gateways{
		cfg: cfg, wake: make(chan struct{}, 1), progress: func() {},
		woken: func([]string) {}, requested: func([]string) {}, used: func(string, uint64) {}, leavingSince: map[string]time.Time{}, sleepingSince: map[string]time.Time{}, complete: make(chan struct{}),
		traffic: traffic.New(), demand: load.NewDemand(),
	}
	if cfg.Counted != nil {
		g.traffic.Counted = func(deploymentID string, more *traffic.Counts, now time.Time) {
			if appID := g.assignmentOf(deploymentID).GetDeployment().GetAppId(); appID != "" {
				cfg.Counted(appID, more, now)
			}
		}
	}
	t := newTable(g.assignmentOf)
	t.phase = func(id string) zero.Phase { return cfg.Zero.Phase(id, g.assignmentOf(id)) }
	t.startTime = cfg.Zero.StartTime
	g.hub = newHub(t, cfg.Expected, Grace)
	data, err := cfg.Files.Read(cfg.Name)
	if err == nil {
		err = json.Unmarshal(data, &g.kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read gateways %s: %w", cfg.Name, err)
	}
	g.hub.countKept(g.kept, time.Now())
	if err := g.recallAround(); err != nil {
		cfg.Log.Error("new gateways do not know the apps of other regions until the control plane is connected", "error", err)
	}
	if err := g.recallVersions(); err != nil {
		cfg.Log.Error("until running updates end, instances of their earlier versions get no requests as pairs of prefill and decode", "error", err)
	}
	registerConnected(cfg.Registerer, g.connectedCount)
	return g, nil
}

// OnProgress sets f. It is called without locks held when the results of Routed, Leave or Released
// may have changed. Call OnProgress before Run.
func (g *Gateways) OnProgress(f func()) { g.progress = f }

func (g *Gateways) assignmentOf(deploymentID string) *agentv1.DeploymentState {
	item, _ := g.cfg.Inbox.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: deploymentID})
	return item.GetDeployment()
}

// Route sends an app's route to the gateways. The inbox must have stored the route before.
func (g *Gateways) Route(r *agentv1.Routes, epoch, generation int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hub.markDirty(g.hub.setRoute(r, epoch, generation))
	g.completeTable()
}

// Received updates gateways after the inbox has received new states of these keys. The state of a
// deployment determines its preview, and whether gateways count its app's load and hold its
// requests. Keys of other kinds are ignored.
func (g *Gateways) Received(keys ...inbox.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.completeTable() {
		return // completeTable has read the whole inbox
	}
	for _, k := range keys {
		if k.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			g.hub.markDirty(g.hub.setDeployment(k.Name, g.assignmentOf(k.Name)))
			g.hub.markDirty(g.hub.renewIfPhaseChanged(k.Name)) // a new state may change the phase
		}
	}
}

// See sends the observed instances to the gateways. The caller must not change the lists afterwards.
func (g *Gateways) See(seen runtime.Observation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := !g.observed
	g.observed = true
	g.hub.markDirty(g.hub.setObserved(seen.Deployments))
	if g.hub.versionsNew {
		g.hub.versionsNew = false
		signalOn(g.wake) // so that Run stores them
	}
	g.hub.updateCandidates(seen.Deployments, first)
	g.noteReady(seen.Deployments)
	for id := range g.leavingSince {
		if !slices.ContainsFunc(seen.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == id }) {
			delete(g.leavingSince, id)
			g.hub.markDirty(g.hub.stopDraining(id))
		}
	}
	g.forgetStopped(seen.Deployments)
	g.traffic.Forget(func(id string) bool { return g.assignmentOf(id) != nil })
	if g.tableComplete {
		maps.DeleteFunc(g.hub.shown, func(id string, _ zero.Phase) bool { return g.assignmentOf(id) == nil })
		g.cfg.Zero.Forget(func(id string) bool { return g.assignmentOf(id) != nil }, func(id string) bool { return g.hub.apps[id] != nil })
	}
	g.demand.Forget(func(appID string) bool { return g.hub.apps[appID].isCounted() })
	g.completeTable()
}

// Learn completes the table if the inbox has received the region's desired state.
func (g *Gateways) Learn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.completeTable()
}

// completeTable loads all routes and previews of the inbox into the table, once, when the inbox
// is synced and the runtime was observed. It reports whether it did so in this call. The caller
// holds mu.
func (g *Gateways) completeTable() bool {
	if g.tableComplete || !g.observed || !g.cfg.Inbox.Synced() {
		return false
	}
	g.hub.markDirty(g.hub.setItems(g.cfg.Inbox.Items()))
	g.tableComplete = true
	close(g.complete)
	return true
}

// Routed returns why the region does not serve an app's route yet, or "" if it does.
func (g *Gateways) Routed(appID string, epoch, generation int64) (why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.whyNotServed(appID, epoch, generation)
}

// Released reports whether no gateway sends requests to the instance any more or has one in flight
// there.
func (g *Gateways) Released(instanceID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.isReleased(instanceID)
}

// Leave ends new requests to a deployment that will be removed. It returns why the deployment must
// not be removed yet, and the longest time to wait. why is "" if the deployment may be removed.
// seen is the observation of the runtime, or nil if there is none yet.
func (g *Gateways) Leave(deploymentID string, seen *runtime.Observation) (why string, remaining time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.hub.gateways) == 0 {
		return "", 0
	}
	now := time.Now()
	if _, ok := g.leavingSince[deploymentID]; !ok {
		g.leavingSince[deploymentID] = now
		g.hub.markDirty(g.hub.startDraining(deploymentID))
	}
	remaining = g.leavingSince[deploymentID].Add(Patience).Sub(now)
	switch {
	case remaining <= 0:
		return "", 0
	case seen == nil:
		return "waits for the first observation of the runtime", remaining
	}
	for _, d := range seen.Deployments {
		if d.DeploymentID != deploymentID {
			continue
		}
		for n := range d.Instances {
			if id := d.Instances[n].ID; !g.hub.isReleased(id) {
				return fmt.Sprintf("waits until the gateways have finished their requests to instance %s, %s at most", id, Patience), remaining
			}
		}
	}
	return "", 0
}

// Stay undoes Leave: the deployment is not removed.
func (g *Gateways) Stay(deploymentID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.leavingSince, deploymentID)
	g.hub.markDirty(g.hub.stopDraining(deploymentID))
}

// Countable returns the observed deployments, with the instance states that count in the region. An
// instance that passes its check is not ready if no gateway can connect to it. While nothing
// changes, the same argument returns the same lists.
func (g *Gateways) Countable(seen []runtime.ObservedDeployment) []runtime.ObservedDeployment {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.applyFindings(seen)
}

// Annotate adds notes about the gateways, for people, to the region's capacity report. While
// nothing changes, the same argument returns the same result.
func (g *Gateways) Annotate(c *agentv1.Capacity) *agentv1.Capacity {
	g.mu.Lock()
	defer g.mu.Unlock()
	notes := g.hub.notesForPeople()
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

// connectedCount returns the number of verified gateways with an open stream.
func (g *Gateways) connectedCount() int {
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

// Run expires gateways and writes the files, until ctx ends.
func (g *Gateways) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			// The next agent must not wait for gateways that left just before this one ends.
			g.keepFiles(ctx)
			return nil
		case <-g.wake:
		case <-timer.C:
		}
		g.mu.Lock()
		expired, next := g.hub.expireGateways(time.Now())
		for _, id := range expired {
			g.forgetCounts(id)
		}
		g.hub.computeFindings()
		g.renewAsleep()
		g.mu.Unlock()
		for _, id := range expired {
			g.cfg.Log.WarnContext(ctx, "a gateway was away for too long: routes no longer wait for it", "gateway", id, "after", Grace)
		}
		g.keepFiles(ctx)
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

// keepFiles writes the files whose content is out of date, and logs errors.
func (g *Gateways) keepFiles(ctx context.Context) {
	if err := g.keepIDs(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store the list of gateways: after a restart, the agent may wait for gateways that are gone, or not wait for gateways that exist", "error", err)
	}
	if err := g.cfg.Zero.Keep(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store which deployments are at zero: after a restart, the agent may hold requests for longer than necessary", "error", err)
	}
	if err := g.keepVersions(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store the versions of pairs: after a restart in an update, instances of its earlier version get no requests as pairs of prefill and decode", "error", err)
	}
	if err := g.keepAround(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store the neighbours of the region: after a restart, the agent sends older neighbours to gateways", "error", err)
	}
}

// keepIDs writes the file if it does not have exactly the ids of the gateways that count. Only Run
// calls it.
func (g *Gateways) keepIDs() error {
	g.mu.Lock()
	ids := g.hub.countingIDs()
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
