package ingest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// store writes a batch in one transaction. errs has one entry for each report: nil, or the error with which it is
// refused.
func (s *Service) store(ctx context.Context, batch []*pending) (errs []error, err error) {
	now := time.Now().UnixMilli()
	var current []model.Region
	var w writes
	err = s.cfg.Store.Update(ctx, func(tx Tx) error {
		w = writes{wake: map[string]int64{}}
		if errs, current, err = s.admitReports(tx, batch, now); err != nil {
			return err
		}
		var counted []*pending
		for i, p := range batch {
			if errs[i] == nil && !p.late {
				counted = append(counted, p)
			}
		}
		known, err := read(tx, counted)
		if err != nil {
			return err
		}
		for _, p := range counted {
			s.collectRows(&w, known, p, now)
		}
		return w.put(tx, now)
	})
	if err != nil {
		return nil, err
	}
	s.rememberCurrent(current)
	s.countStored(w.history, now)
	s.metrics.dropped.Add(float64(w.dropped))
	for _, err := range errs {
		if err != nil {
			s.metrics.stale.Inc()
		}
	}
	s.metrics.rows.Add(float64(len(w.instances)))
	s.metrics.wakes.Add(float64(len(w.wake)))
	return errs, nil
}

// admitReports renews the leases of reports whose session is current, and refuses other reports. The renewal locks the regions'
// rows until the end of the transaction, so that later reads stay valid until the reports are stored.
func (s *Service) admitReports(tx Tx, batch []*pending, now int64) (errs []error, current []model.Region, err error) {
	regions := make([]string, len(batch))
	for i, p := range batch {
		regions[i] = p.region
	}
	slices.Sort(regions)
	judge := func() error {
		if current, err = tx.CheckSessions(regions); err != nil {
			return fmt.Errorf("check sessions: %w", err)
		}
		byID := map[string]model.Region{}
		for _, r := range current {
			byID[r.ID] = r
		}
		errs = make([]error, len(batch))
		for i, p := range batch {
			errs[i] = checkSession(byID[p.region], p)
		}
		return nil
	}
	if err := judge(); err != nil {
		return nil, nil, err
	}
	before := current
	for _, p := range batch {
		if i := slices.IndexFunc(before, func(r model.Region) bool { return r.ID == p.region }); i >= 0 {
			p.heard = before[i].SessionSequence
		}
	}
	var sessions []model.Region
	for i, p := range batch {
		if errs[i] != nil {
			continue
		}
		session := model.Region{
			ID: p.region, SessionID: p.req.SessionId, SessionEpoch: p.req.Epoch, SessionFence: p.req.Fence,
			SessionSequence: p.req.Sequence, ReceivedRevision: p.req.ReceivedRevision, LastReportAt: now,
		}
		if p.req.Capacity != nil {
			if session.Capacity, err = encodeCapacity(p.req.Capacity); err != nil {
				return nil, nil, err
			}
		}
		sessions = append(sessions, session)
	}
	if len(sessions) == 0 {
		return errs, current, nil
	}
	slices.SortFunc(sessions, func(a, b model.Region) int { return cmp.Compare(a.ID, b.ID) })
	if err := tx.NoteReports(sessions, s.cfg.Lease().Milliseconds()); err != nil {
		return nil, nil, fmt.Errorf("renew leases: %w", err)
	}
	if err := wakeReturned(tx, before, sessions, now); err != nil {
		return nil, nil, err
	}
	err = judge()
	for _, p := range batch {
		p.late = slices.ContainsFunc(current, func(r model.Region) bool {
			return r.ID == p.region && r.SessionSequence > p.req.Sequence
		})
	}
	return errs, current, err
}

// wakeReturned wakes the apps of unreachable regions that have just reported in their current session, and notifies
// endpoints that the regions are back.
func wakeReturned(tx Tx, before, sessions []model.Region, now int64) error {
	for _, r := range before {
		if r.Status != windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE ||
			!slices.ContainsFunc(sessions, func(s model.Region) bool { return s.ID == r.ID && s.InSession(r) }) {
			continue
		}
		apps, err := tx.AppsInRegion(r.ID)
		if err != nil {
			return fmt.Errorf("list apps of region %s: %w", r.ID, err)
		}
		if err := tx.Wake(apps, now, now); err != nil {
			return fmt.Errorf("wake apps of region %s: %w", r.ID, err)
		}
		notice := model.RegionNotice{MessageID: ident.New("ntf"), RegionID: r.ID, Kind: model.NotifyRegionBack, At: now}
		if err := tx.NotifyRegion(notice); err != nil {
			return fmt.Errorf("notify of region %s: %w", r.ID, err)
		}
	}
	return nil
}

// writes has the rows that a batch writes.
type writes struct {
	observed    []model.Observed
	routes      []model.RouteObserved
	instances   []model.Instance
	history     []model.History
	dropped     int // notices that are not stored
	ended       []inventory
	quarantined map[string][]model.Quarantined
	wake        map[string]int64 // by app: time of the wake-up
}

// gather is how long an app's wake-up is delayed, so that further reports can arrive and cause only one step. If the
// app has a rollout in flight, or the reported deployment starts or stops, the app is woken at once.
const gather = 200 * time.Millisecond

// addWake adds the wake-up of an app because of a report about one of its deployments in a region.
func (w *writes) addWake(of model.Assignment, now int64) {
	at := now
	if of.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED && !of.UnderWay {
		at += gather.Milliseconds()
	}
	w.wakesAt(of.AppID, at)
}

func (w *writes) wakesAt(appID string, at int64) {
	if earlier, ok := w.wake[appID]; !ok || at < earlier {
		w.wake[appID] = at
	}
}

// inventory is a finished inventory. Instances that it did not name are lost.
type inventory struct {
	region string
	since  model.Guard
}

// collectRows adds the rows of one report to w.
func (s *Service) collectRows(w *writes, k *knowledge, p *pending, now int64) {
	req := p.req
	guard := model.NewGuard(req.Fence, req.Sequence)
	owners, before, routes := k.owners[p.region], k.observed[p.region], k.routes[p.region]

	after := map[string]model.Observed{}
	row := func(id string) (model.Observed, bool) {
		if o, ok := after[id]; ok {
			return o, true
		}
		owner, ok := owners[id]
		if !ok {
			// The deployment was never assigned to the region, so the region's reports about it do not count.
			return model.Observed{}, false
		}
		o, ok := before[id]
		if ok && o.Guard >= guard {
			return o, false // already stored, or outdated
		}
		if !ok {
			o = model.Observed{WorkspaceID: owner.WorkspaceID, AppID: owner.AppID, DeploymentID: id, RegionID: p.region}
		}
		o.Guard, o.UpdatedAt = guard, now
		return o, true
	}
	for _, a := range req.Applied {
		switch a.Kind {
		case agentv1.ItemKind_ITEM_KIND_DEPLOYMENT:
			if o, ok := row(a.Key); ok {
				o.AppliedEpoch, o.AppliedGeneration = a.Epoch, a.Generation
				o.Phase, o.Code, o.Message = int32(a.Phase), clipText(a.Code, maxReason), clipText(a.Message, maxMessage)
				o.Retryable, o.Deleted = a.Retryable, a.Deleted
				after[a.Key] = o
			}
		case agentv1.ItemKind_ITEM_KIND_ROUTES:
			before, ok := routes[a.Key]
			if !ok || before.Guard >= guard {
				continue
			}
			o := model.RouteObserved{
				AppID: a.Key, RegionID: p.region, Guard: guard, Epoch: a.Epoch, Generation: a.Generation,
				Phase: int32(a.Phase), Code: clipText(a.Code, maxReason), Message: clipText(a.Message, maxMessage), UpdatedAt: now,
			}
			w.routes = append(w.routes, o)
			if s.cfg.RouteEdges(before, o) {
				w.wakesAt(a.Key, now)
			}
		}
	}
	for _, r := range req.Rollups {
		if o, ok := row(r.DeploymentId); ok {
			o.CountsGeneration = r.Generation
			o.Pending, o.Running, o.Ready = max(r.Pending, 0), max(r.Running, 0), max(r.Ready, 0)
			o.Draining, o.Fail = max(r.Draining, 0), max(r.Failed, 0)
			o.ReadyReplicas, o.Doomed, o.Restarts = max(r.ReadyReplicas, 0), max(r.Doomed, 0), max(r.Restarts, 0)
			o.Reason, o.ReasonMessage = clipText(r.Reason, maxReason), clipText(r.Message, maxMessage)
			o.SlowestStartMS = r.SlowestStartMs
			o.RoleCounts = model.EncodeRoleCounts(r)
			after[r.DeploymentId] = o
		}
	}
	for id, o := range after {
		w.observed = append(w.observed, o)
		if s.cfg.Edges(before[id], o) {
			w.addWake(owners[id], now)
		}
	}
	w.instances = slices.Grow(w.instances, len(req.Instances))
	for _, i := range req.Instances {
		owner, ok := owners[i.DeploymentId]
		if _, known := windlassv1.InstanceStatus_name[int32(i.Status)]; !ok || !known || !isID(i.Id) {
			continue
		}
		w.instances = append(w.instances, model.Instance{
			ID: i.Id, WorkspaceID: owner.WorkspaceID, AppID: owner.AppID, DeploymentID: i.DeploymentId, RegionID: p.region,
			Role: clipText(i.Role, maxName), Group: i.Group, Slot: i.Slot, Status: i.Status,
			Reason: clipText(i.Reason, maxReason), Message: clipText(i.Message, maxMessage),
			Address: clipText(i.Address, maxName), RuntimeName: clipText(i.RuntimeName, maxName), Restarts: i.Restarts,
			GPUs:  clipAll(i.Gpus, maxGPUs, maxReason),
			Guard: guard, StartedAt: i.StartedAt, ReadyAt: i.ReadyAt, UpdatedAt: now,
		})
	}
	history, dropped := s.noticeEntries(p, owners, now)
	w.history, w.dropped = append(w.history, history...), w.dropped+dropped
	if req.InventoryEnd {
		w.ended = append(w.ended, inventory{region: p.region, since: model.NewGuard(req.Fence, req.InventorySince)})
	}
	if req.QuarantineComplete {
		rows := make([]model.Quarantined, 0, len(req.Quarantined))
		seen := map[string]bool{}
		for _, q := range req.Quarantined {
			if seen[q.Key] || !isID(q.Key) {
				continue
			}
			seen[q.Key] = true
			rows = append(rows, model.Quarantined{RegionID: p.region, Key: q.Key, Generation: q.Generation, Instances: q.Instances, Since: now})
		}
		if w.quarantined == nil {
			w.quarantined = map[string][]model.Quarantined{}
		}
		w.quarantined[p.region] = rows
	}
}

// knowledge is the stored state that reports are compared with, by region.
type knowledge struct {
	owners   map[string]map[string]model.Assignment    // of all deployments in the reports
	observed map[string]map[string]model.Observed      // of deployments with counts or acknowledgements
	routes   map[string]map[string]model.RouteObserved // of apps with a route in the region
}

// read reads the state that the reports of a batch need.
func read(tx Tx, batch []*pending) (*knowledge, error) {
	k := &knowledge{
		owners:   map[string]map[string]model.Assignment{},
		observed: map[string]map[string]model.Observed{},
		routes:   map[string]map[string]model.RouteObserved{},
	}
	mentioned, observed := map[string][]string{}, map[string][]string{}
	var apps []string
	for _, p := range batch {
		m := mentionedIn(p.req)
		if len(m.deployments) > 0 {
			mentioned[p.region] = slices.Sorted(maps.Keys(m.deployments))
		}
		if len(m.observed) > 0 {
			observed[p.region] = slices.Sorted(maps.Keys(m.observed))
		}
		apps = append(apps, m.routed...)
	}
	if len(mentioned) > 0 {
		rows, err := tx.GetAssignments(mentioned)
		if err != nil {
			return nil, fmt.Errorf("read assignments: %w", err)
		}
		for _, t := range rows {
			regionPart(k.owners, t.RegionID)[t.DeploymentID] = t
		}
	}
	if len(observed) > 0 {
		rows, err := tx.GetObserved(observed)
		if err != nil {
			return nil, fmt.Errorf("read observed states: %w", err)
		}
		for _, o := range rows {
			regionPart(k.observed, o.RegionID)[o.DeploymentID] = o
		}
	}
	if len(apps) == 0 {
		return k, nil
	}
	slices.Sort(apps)
	apps = slices.Compact(apps)
	routes, err := tx.ListRoutes(apps)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	for _, r := range routes {
		regionPart(k.routes, r.RegionID)[r.AppID] = model.RouteObserved{}
	}
	acknowledged, err := tx.ListRouteObserved(apps)
	if err != nil {
		return nil, fmt.Errorf("read acknowledged routes: %w", err)
	}
	for _, o := range acknowledged {
		if _, ok := k.routes[o.RegionID][o.AppID]; ok {
			k.routes[o.RegionID][o.AppID] = o
		}
	}
	return k, nil
}

// regionPart returns the region's part of m.
func regionPart[V any](m map[string]map[string]V, region string) map[string]V {
	if m[region] == nil {
		m[region] = map[string]V{}
	}
	return m[region]
}

// mentioned has the deployments and apps that a report names.
type mentioned struct {
	deployments map[string]bool
	observed    map[string]bool // deployments with counts or acknowledgements
	routed      []string        // apps
}

func mentionedIn(r *agentv1.ReportRequest) mentioned {
	m := mentioned{observed: map[string]bool{}}
	for _, a := range r.Applied {
		switch a.Kind {
		case agentv1.ItemKind_ITEM_KIND_DEPLOYMENT:
			m.observed[a.Key] = true
		case agentv1.ItemKind_ITEM_KIND_ROUTES:
			m.routed = append(m.routed, a.Key)
		}
	}
	for _, c := range r.Rollups {
		m.observed[c.DeploymentId] = true
	}
	m.deployments = maps.Clone(m.observed)
	for _, i := range r.Instances {
		m.deployments[i.DeploymentId] = true
	}
	for _, n := range r.Notices {
		m.deployments[n.DeploymentId] = true
	}
	return m
}

// put writes the rows. Every batch uses the same order, so that two batches cannot deadlock. The store sorts the rows
// of each call.
func (w *writes) put(tx Tx, now int64) error {
	slices.SortFunc(w.observed, func(a, b model.Observed) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	slices.SortFunc(w.routes, func(a, b model.RouteObserved) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID))
	})

	if len(w.observed) > 0 {
		if err := tx.PutObserved(w.observed); err != nil {
			return fmt.Errorf("put observed: %w", err)
		}
	}
	if len(w.routes) > 0 {
		if err := tx.PutRouteObserved(w.routes); err != nil {
			return fmt.Errorf("put acknowledged routes: %w", err)
		}
	}
	if len(w.instances) > 0 {
		if err := tx.PutInstances(w.instances); err != nil {
			return fmt.Errorf("put instances: %w", err)
		}
	}
	if err := w.putHistory(tx); err != nil {
		return err
	}
	for _, inv := range w.ended {
		if _, err := tx.MarkLost(inv.region, inv.since, now); err != nil {
			return fmt.Errorf("mark lost instances of region %s: %w", inv.region, err)
		}
		apps, err := tx.ResetObserved(inv.region, inv.since, now)
		if err != nil {
			return fmt.Errorf("reset counts of region %s: %w", inv.region, err)
		}
		for _, app := range apps {
			w.wakesAt(app, now)
		}
	}
	for _, region := range slices.Sorted(maps.Keys(w.quarantined)) {
		if err := tx.SetQuarantine(region, w.quarantined[region]); err != nil {
			return fmt.Errorf("set quarantine of region %s: %w", region, err)
		}
	}
	if len(w.wake) > 0 {
		if err := tx.WakeAt(w.wake, now); err != nil {
			return fmt.Errorf("wake apps: %w", err)
		}
	}
	return nil
}

// Limits on texts of agents, in bytes. They fit the columns.
const (
	maxReason  = 64
	maxMessage = 1024
	maxName    = 255
	maxGPUs    = 64
	// maxCapacity is the limit on an encoded capacity, in bytes, which has room for thousands of pools. The limit is
	// needed because capacities are read with every region.
	maxCapacity = 60 << 10
)

// isID reports whether s fits a column of ids.
func isID(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

func clipAll(list []string, count, size int) []string {
	out := make([]string, 0, min(len(list), count))
	for _, s := range list[:min(len(list), count)] {
		out = append(out, clipText(s, size))
	}
	return out
}

// encodeCapacity encodes c. It drops the lists of c if they do not fit the column.
func encodeCapacity(c *agentv1.Capacity) ([]byte, error) {
	if proto.Size(c) > maxCapacity {
		c = &agentv1.Capacity{CpuMillicores: c.CpuMillicores, MemoryMib: c.MemoryMib, Notes: []string{"the agent reported more pools and nodes than can be stored"}}
	}
	data, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode capacity: %w", err)
	}
	return data, nil
}

func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	// The cut must not be inside of a rune, because the database would refuse the row.
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
