package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

// tx implements store.Tx for one attempt.
type tx struct {
	store    *Store
	readOnly bool
	pinned   *state // what a snapshot reads; nil: the newest
	restores int
	overlays []participant

	workspaces     overlay[string, model.Workspace]
	apiKeys        overlay[string, model.APIKey]
	projects       overlay[string, model.Project]
	environments   overlay[string, model.Environment]
	secrets        overlay[pair, secret]
	secretVersions overlay[versionKey, secretVersion]
	secretFloors   overlay[string, secretFloor]
	apps           overlay[string, model.App]
	deployments    overlay[string, model.Deployment]
	rollouts       overlay[string, model.Rollout]
	wakes          overlay[string, model.Wake]
	topology       overlay[pair, model.Topology]
	routes         overlay[pair, model.Route]
	observed       overlay[pair, model.Observed]
	routeObserved  overlay[pair, model.RouteObserved]
	instances      overlay[string, model.Instance]
	regions        overlay[string, model.Region]
	grants         overlay[pair, grant]
	joinTokens     overlay[string, model.JoinToken]
	quarantine     overlay[pair, model.Quarantined]
	heads          overlay[string, head]
	logs           overlay[string, logRow]
	history        overlay[string, model.History]
	audit          overlay[string, model.Audit]
	idempotency    overlay[pair, model.Idempotency]
	peers          overlay[string, model.Peer]
	peerKeys       overlay[pair, peerKey]
	streams        overlay[string, regionStream]
	limits         overlay[string, model.Admission]
	starts         overlay[string, starts]
	claims         overlay[string, model.Claim]
	rolloutStates  overlay[string, model.RolloutState]
	freezes        overlay[pair, model.Freeze]
	protections    overlay[pair, model.Protection]
	pins           overlay[pair, model.Pin]
	domains        overlay[pair, model.Domain]
	appKeys        overlay[pair, model.AppKey]

	changes map[string][]model.Change // by region, in the order of the calls
	bumped  map[string]bool           // regions whose epoch is new
	woken   map[string]time.Duration
	touched map[string]bool // apps
}

var _ store.Tx = (*tx)(nil)

// Company implements store.Tx.
func (t *tx) Batched() bool { return false }

func newTx(s *Store) *tx {
	t := &tx{
		store:    s,
		restores: s.restored(),
		changes:  map[string][]model.Change{}, bumped: map[string]bool{},
		woken: map[string]time.Duration{}, touched: map[string]bool{},
	}
	t.workspaces.bind(t, &workspaceSchema, func(s *state) **table[string, model.Workspace] { return &s.workspaces })
	t.apiKeys.bind(t, &apiKeySchema, func(s *state) **table[string, model.APIKey] { return &s.apiKeys })
	t.projects.bind(t, &projectSchema, func(s *state) **table[string, model.Project] { return &s.projects })
	t.environments.bind(t, &environmentSchema, func(s *state) **table[string, model.Environment] { return &s.environments })
	t.secrets.bind(t, &secretSchema, func(s *state) **table[pair, secret] { return &s.secrets })
	t.secretVersions.bind(t, &secretVersionSchema, func(s *state) **table[versionKey, secretVersion] { return &s.secretVersions })
	t.secretFloors.bind(t, &secretFloorSchema, func(s *state) **table[string, secretFloor] { return &s.secretFloors })
	t.apps.bind(t, &appSchema, func(s *state) **table[string, model.App] { return &s.apps })
	t.deployments.bind(t, &deploymentSchema, func(s *state) **table[string, model.Deployment] { return &s.deployments })
	t.rollouts.bind(t, &rolloutSchema, func(s *state) **table[string, model.Rollout] { return &s.rollouts })
	t.wakes.bind(t, &wakeSchema, func(s *state) **table[string, model.Wake] { return &s.wakes })
	t.topology.bind(t, &topologySchema, func(s *state) **table[pair, model.Topology] { return &s.topology })
	t.routes.bind(t, &routeSchema, func(s *state) **table[pair, model.Route] { return &s.routes })
	t.observed.bind(t, &observedSchema, func(s *state) **table[pair, model.Observed] { return &s.observed })
	t.routeObserved.bind(t, &routeObservedSchema, func(s *state) **table[pair, model.RouteObserved] { return &s.routeObserved })
	t.instances.bind(t, &instanceSchema, func(s *state) **table[string, model.Instance] { return &s.instances })
	t.regions.bind(t, &regionSchema, func(s *state) **table[string, model.Region] { return &s.regions })
	t.grants.bind(t, &grantSchema, func(s *state) **table[pair, grant] { return &s.grants })
	t.joinTokens.bind(t, &joinTokenSchema, func(s *state) **table[string, model.JoinToken] { return &s.joinTokens })
	t.quarantine.bind(t, &quarantineSchema, func(s *state) **table[pair, model.Quarantined] { return &s.quarantine })
	t.heads.bind(t, &headSchema, func(s *state) **table[string, head] { return &s.heads })
	t.logs.bind(t, &logSchema, func(s *state) **table[string, logRow] { return &s.logs })
	t.history.bind(t, &historySchema, func(s *state) **table[string, model.History] { return &s.history })
	t.audit.bind(t, &auditSchema, func(s *state) **table[string, model.Audit] { return &s.audit })
	t.idempotency.bind(t, &idempotencySchema, func(s *state) **table[pair, model.Idempotency] { return &s.idempotency })
	t.peers.bind(t, &peerSchema, func(s *state) **table[string, model.Peer] { return &s.peers })
	t.peerKeys.bind(t, &peerKeySchema, func(s *state) **table[pair, peerKey] { return &s.peerKeys })
	t.streams.bind(t, &streamSchema, func(s *state) **table[string, regionStream] { return &s.streams })
	t.limits.bind(t, &limitsSchema, func(s *state) **table[string, model.Admission] { return &s.limits })
	t.starts.bind(t, &startsSchema, func(s *state) **table[string, starts] { return &s.starts })
	t.claims.bind(t, &claimSchema, func(s *state) **table[string, model.Claim] { return &s.claims })
	t.rolloutStates.bind(t, &rolloutStateSchema, func(s *state) **table[string, model.RolloutState] { return &s.rolloutStates })
	t.protections.bind(t, &protectionSchema, func(s *state) **table[pair, model.Protection] { return &s.protections })
	t.freezes.bind(t, &freezeSchema, func(s *state) **table[pair, model.Freeze] { return &s.freezes })
	t.pins.bind(t, &pinSchema, func(s *state) **table[pair, model.Pin] { return &s.pins })
	t.appKeys.bind(t, &appKeySchema, func(s *state) **table[pair, model.AppKey] { return &s.appKeys })
	t.domains.bind(t, &domainSchema, func(s *state) **table[pair, model.Domain] { return &s.domains })
	return t
}

// read calls f with what is committed. f must be short and call nothing that
// locks.
func (t *tx) read(f func(*state)) {
	if t.pinned != nil {
		f(t.pinned)
		return
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	f(t.store.state)
}

func (t *tx) touch(appID string) { t.touched[appID] = true }

// Change implements store.TopologyTx.
func (t *tx) Change(regionID string, kind model.ChangeKind, key string, generation int64) {
	list := t.changes[regionID]
	for i, c := range list {
		if c.Kind == kind && c.Key == key {
			list[i].Generation = max(c.Generation, generation)
			return
		}
	}
	t.changes[regionID] = append(list, model.Change{RegionID: regionID, Kind: kind, Key: key, Generation: generation})
}

// checkChanges refuses changes that cannot be appended.
func (t *tx) checkChanges(s *state) error {
	if len(t.changes) > store.MaxRegions {
		return fmt.Errorf("store: change %d regions, at most %d: %w", len(t.changes), store.MaxRegions, model.ErrTooManyRegions)
	}
	for _, id := range slices.Sorted(maps.Keys(t.changes)) {
		_, committed := s.heads.rows[id]
		if w, mine := t.heads.writes[id]; mine {
			committed = w != nil
		}
		if !committed {
			return fmt.Errorf("store: change region %q: %w", id, model.ErrNotFound)
		}
	}
	return nil
}

// appendChanges assigns revisions. The writes are applied already, and the mutex
// is held: nothing comes between reading a head and moving it.
func (t *tx) appendChanges(s *state, at uint64) {
	if len(t.changes) == 0 {
		return
	}
	s.heads, s.logs = s.heads.thawed(), s.logs.thawed()
	for _, region := range slices.Sorted(maps.Keys(t.changes)) {
		h := headSchema.copy(s.heads.rows[region].value)
		feed := s.logs.rows[region].value
		for _, c := range t.changes[region] {
			h.Revision++
			c.Revision, c.ID = h.Revision, ident.New("chg")
			c.Chain = changefeed.Chain(h.Chain, c.ID)
			h.Chain = c.Chain
			feed.changes = append(feed.changes, c)
		}
		s.heads.set(region, &h, at)
		s.logs.set(region, &feed, at)
	}
}

// committed tells what the transaction changed.
func (t *tx) committed(s *state) store.Commit {
	c := store.Commit{
		Revisions: map[string]int64{},
		Woken:     maps.Clone(t.woken),
		Apps:      slices.Sorted(maps.Keys(t.touched)),
	}
	for region := range t.changes {
		c.Revisions[region] = s.heads.rows[region].value.Revision
	}
	for region := range t.bumped {
		c.Revisions[region] = s.heads.rows[region].value.Revision
	}
	return c
}

func notFound(what string, id any) error {
	return fmt.Errorf("store: %s %v: %w", what, id, model.ErrNotFound)
}

func conflict(what string, id any) error {
	return fmt.Errorf("store: %s %v: %w", what, id, model.ErrConflict)
}

// one is a row that must exist and, with a tenant given, be that tenant's.
func one[V any](v V, ok bool, what string, id any) (V, error) {
	if !ok {
		var none V
		return none, notFound(what, id)
	}
	return v, nil
}

// page sorts rows by key and cuts the page out of them.
func page[V any](rows []V, p store.Page, key func(V) string) []V {
	slices.SortFunc(rows, func(a, b V) int { return cmp.Compare(key(a), key(b)) })
	from, _ := slices.BinarySearchFunc(rows, p.After, func(v V, after string) int {
		if key(v) <= after && after != "" {
			return -1
		}
		return 1
	})
	return first(rows[from:], p.Limit)
}

// pageDown is page from the highest key downwards.
func pageDown[V any](rows []V, p store.Page, key func(V) string) []V {
	slices.SortFunc(rows, func(a, b V) int { return cmp.Compare(key(b), key(a)) })
	from, _ := slices.BinarySearchFunc(rows, p.After, func(v V, before string) int {
		if before != "" && key(v) >= before {
			return -1
		}
		return 1
	})
	return first(rows[from:], p.Limit)
}

// first are at most n rows; no limit when n is not positive.
func first[V any](rows []V, n int) []V {
	if n > 0 && len(rows) > n {
		return rows[:n]
	}
	return rows
}

func byPlace(a, b pair) int { return cmp.Or(cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b)) }

// set is the strings as a set.
func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}

// distinct returns the strings sorted, each once.
func distinct(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
