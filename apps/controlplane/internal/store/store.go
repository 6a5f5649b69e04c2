// Package store is the contract of the control plane's database. Two
// implementations pass one suite (storetest): mysql, the real one, and memory,
// for tests that need virtual time.
//
// The users of the store (api, rollout, dispatch, ingest, fleet) do not import
// this package: each declares the few methods that it calls, and Bind narrows a
// Store to that.
//
// # Transactions
//
// Update runs its function in one read-write transaction (READ COMMITTED), and
// commits it. When the database asks for a retry (deadlock, lock timeout), the
// whole function runs again. So the function must have no effects outside the
// transaction. Row locks are taken in this order: the app, its topology sorted
// by (deployment, region), the workspace, and region heads last. Update itself
// locks heads, after the function has returned:
//
//	fn ... tx.Change(region A) tx.Change(region B) ... return nil
//	    -> lock heads of A and B in key order
//	    -> revision = head+1, +2 ...; chain = hash(previous chain, change id)
//	    -> append the changes, move the heads, commit
//
// Heads stay locked to the commit. So revisions of a region are gap-free and in
// commit order. The ids of an AUTO_INCREMENT are not: a reader that remembers the
// highest id misses a transaction that took a lower id and committed later. At
// most MaxRegions regions change in one transaction.
//
// A Get of one object that does not exist returns model.ErrNotFound. An Insert of a taken id or
// name returns model.ErrExists.
//
// In comments on methods, "locked" means to the end of the transaction, and a list "by X" is
// sorted by X, ascending.
package store

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// MaxRegions bounds the head rows that one transaction holds.
const MaxRegions = 32

// WakeWindow is the maximum time until a wake-up in Commit.Woken is due.
const WakeWindow = 500 * time.Millisecond

// Commit is what an Update changed, once it is durable.
type Commit struct {
	// Revisions are the new revisions of the heads that moved, by region id.
	Revisions map[string]int64
	// Woken are the apps whose wake-up row was unset or had a later time, and is now due within
	// WakeWindow. The value is the time until the row is due.
	Woken map[string]time.Duration
	// Apps are the ids of apps whose row, rollout, deployments, topology or observed state changed.
	Apps []string
}

// Store is a database.
type Store interface {
	// Update runs fn in a read-write transaction, as the package comment says.
	Update(ctx context.Context, fn func(Tx) error) error
	// UpdateBatched is Update for requests that may share a transaction. Requests with the same key
	// that arrive while a transaction of the key runs may share the next one. A request without a key
	// has a transaction of its own.
	//
	// First the fn of each request runs, and then each function that an fn returned (nil for none).
	// These functions take the locks that all requests need. A request sees the changes of the requests
	// before it. If it fails, it gets its error, and only its own changes are undone.
	//
	// app is the id or the name of the app that fn will lock, empty if unknown. With it, the apps of
	// a batch can be read in one query.
	UpdateBatched(ctx context.Context, key, app string, fn func(Tx) (last func() error, err error)) error
	// View runs fn for reads that may be of different moments. Writing fails.
	View(ctx context.Context, fn func(Tx) error) error
	// Snapshot runs fn so that everything it reads is of one moment. Writing fails.
	Snapshot(ctx context.Context, fn func(Tx) error) error
	// OnCommit calls f after each commit whose Commit is not empty, in the goroutine of
	// the committer. f must not block.
	OnCommit(f func(Commit))
	// Ping reports whether the database answers.
	Ping(ctx context.Context) error
	Close() error
}

// Tx is a transaction. It is for one goroutine.
type Tx interface {
	TenantTx
	AppTx
	DomainTx
	AppKeyTx
	BrowserSessionTx
	MemberTx
	TopologyTx
	ObservedTx
	RegionTx
	FeedTx
	RecordTx
	RetentionTx
	PeerTx
	SealedTx
	AdmissionTx
	FeatureTx
	PresetTx
	NotificationTx

	// Batched reports whether other requests share the transaction. A batched request need not check
	// first whether its idempotency key is free: if it is taken, the request runs again alone.
	Batched() bool
}

// TenantTx has the queries of workspaces, keys, projects, environments and secrets. Lists are by name. Page.After is
// the last name.
type TenantTx interface {
	InsertWorkspace(model.Workspace) error
	GetWorkspace(id string) (model.Workspace, error)
	GetWorkspaceByName(name string) (model.Workspace, error)
	// GetWorkspaces returns the workspaces with these ids that exist.
	GetWorkspaces(ids []string) ([]model.Workspace, error)
	ListWorkspaces(Page) ([]model.Workspace, error)
	// UpdateWorkspace fails with model.ErrConflict if the stored ResourceVersion differs, and
	// otherwise stores it plus one. Updates of other rows with a ResourceVersion do the same.
	UpdateWorkspace(model.Workspace) error
	DeleteWorkspace(id string) error

	InsertAPIKey(model.APIKey) error
	GetAPIKey(workspaceID, id string) (model.APIKey, error)
	GetAPIKeyByHash(hash []byte) (model.APIKey, error)
	ListAPIKeys(workspaceID string, p Page) ([]model.APIKey, error)
	RevokeAPIKey(workspaceID, id string, at int64) error

	InsertProject(model.Project) error
	GetProject(workspaceID, id string) (model.Project, error)
	// GetProjects returns the projects of the workspace with these ids.
	GetProjects(workspaceID string, ids []string) ([]model.Project, error)
	GetProjectByName(workspaceID, name string) (model.Project, error)
	ListProjects(workspaceID string, p Page) ([]model.Project, error)
	UpdateProject(model.Project) error
	DeleteProject(workspaceID, id string) error

	InsertEnvironment(model.Environment) error
	GetEnvironment(workspaceID, id string) (model.Environment, error)
	// GetEnvironments returns the environments of the workspace with these ids.
	GetEnvironments(workspaceID string, ids []string) ([]model.Environment, error)
	GetEnvironmentByName(workspaceID, projectID, name string) (model.Environment, error)
	// LockEnvironment is GetEnvironment with the row locked.
	LockEnvironment(workspaceID, id string) (model.Environment, error)
	ListEnvironments(workspaceID, projectID string, p Page) ([]model.Environment, error)
	UpdateEnvironment(model.Environment) error
	DeleteEnvironment(workspaceID, id string) error

	// InsertSecretVersion stores s. Its version must be the latest plus one. For a name that
	// does not exist, it must be the floor plus one.
	InsertSecretVersion(s model.Secret) error
	// SecretFloor returns the highest version that a deleted secret of the environment had, 0 for none. Because of it,
	// a name never has one version twice.
	SecretFloor(environmentID string) (int32, error)
	GetSecret(workspaceID, environmentID, name string) (model.Secret, error) // latest
	GetSecretVersion(workspaceID, environmentID, name string, version int32) (model.Secret, error)
	ListSecrets(workspaceID, environmentID string, p Page) ([]model.Secret, error) // latest, no ciphertext
	// SecretVersions returns the latest version of each name that exists.
	SecretVersions(environmentID string, names []string) (map[string]int32, error)
	DeleteSecret(workspaceID, environmentID, name string) error
}

// AppTx has the queries of apps, deployments, rollouts and wake-ups. Deleted apps are found by id only, and their
// names are free again.
type AppTx interface {
	InsertApp(model.App) error
	GetApp(workspaceID, id string) (model.App, error)
	GetAppByName(workspaceID, environmentID, name string) (model.App, error)
	// GetApps returns the apps with these ids that exist, including deleted ones, in no
	// order.
	GetApps(ids []string) ([]model.App, error)
	// LockApp is GetApp with the row locked. An empty workspace means any (for the
	// workflow).
	LockApp(workspaceID, id string) (model.App, error)
	// UpdateApp stores the row, ResourceVersion plus one. Call it on a locked row.
	UpdateApp(model.App) error
	// LockApps is LockApp for several apps of any workspace. It returns those that exist, by id.
	LockApps(ids []string) ([]model.App, error)
	// StepApps adds one to the step number of each app, and stores the whole app if it changed.
	// It fails with model.ErrConflict if the stored step number of any app differs, or the
	// ResourceVersion of an app that changed.
	StepApps(steps []model.AppStep) error
	// ListApps returns apps by (name, id). An empty environment means all.
	// Page.After is name + "\x00" + id.
	ListApps(workspaceID, environmentID string, p Page) ([]model.App, error)
	// CountApps counts the apps of a project or environment that are not deleted. With both
	// empty, it counts those of the workspace.
	CountApps(workspaceID, projectID, environmentID string) (int, error)

	InsertDeployment(model.Deployment) error
	GetDeployment(workspaceID, id string) (model.Deployment, error)
	GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error)
	// GetDeployments returns the deployments with these ids that exist, in no order.
	GetDeployments(ids []string) ([]model.Deployment, error)
	// GetNewestDeployments returns the deployment with the latest version of each app, in no order. It leaves
	// out apps without deployments.
	GetNewestDeployments(appIDs []string) ([]model.Deployment, error)
	// UpdateDeployment stores status, reason, message, resolved image, stable and the times,
	// because the rest is immutable. It fails with model.ErrNotFound unless all exist.
	UpdateDeployment(...model.Deployment) error
	// ListDeployments returns the newest first by id. An empty app means all.
	// Page.After is the last id.
	ListDeployments(workspaceID, appID string, p Page) ([]model.Deployment, error)

	InsertRollout(model.Rollout) error
	GetRollout(workspaceID, id string) (model.Rollout, error)
	// GetRollouts returns the rollouts with these ids that exist, in no order.
	GetRollouts(ids []string) ([]model.Rollout, error)
	// GetActiveRollouts returns rollouts with their deployment and their app's rollout state (nil for
	// none), in one query and in no order. It leaves out a rollout whose deployment does not exist.
	GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error)
	// UpdateRollout stores the fields that change in the course of a rollout. It fails with
	// model.ErrNotFound unless all exist.
	UpdateRollout(...model.Rollout) error
	// ListRollouts returns the newest first by id. Page.After is the last id.
	ListRollouts(workspaceID, appID string, p Page) ([]model.Rollout, error)

	// GetRolloutStates returns the rollout states of the apps that have one, in no order.
	GetRolloutStates(appIDs []string) ([]model.RolloutState, error)
	// PutRolloutState inserts or replaces the state of the app. Call it with the app's row locked.
	PutRolloutState(model.RolloutState) error

	// GetScalings returns the scalings of the apps that have one, in no order.
	GetScalings(appIDs []string) ([]model.Scaling, error)
	// PutScaling inserts or replaces the scaling of the app. Call it with the app's row locked.
	PutScaling(model.Scaling) error
	// ListScalingDecisions returns the newest decision in each region, by region.
	ListScalingDecisions(appID string) ([]model.ScalingDecision, error)
	// PutScalingDecision inserts or replaces the decision of the app and region.
	PutScalingDecision(model.ScalingDecision) error
	// ListScalingLoads returns the chunks that began at since or later, oldest first.
	ListScalingLoads(appID, regionID, role string, since int64) ([]model.LoadChunk, error)
	// PutScalingLoads inserts or replaces chunks, by app, region, role and begin.
	PutScalingLoads([]model.LoadChunk) error

	// ListPins returns the pins of the apps, by (app, version).
	ListPins(appIDs []string) ([]model.Pin, error)
	// PutPin inserts or replaces the pin of its app and deployment. Call it with the app's
	// row locked.
	PutPin(model.Pin) error
	// DeletePin deletes a pin, if it exists. Call it with the app's row locked.
	DeletePin(appID, deploymentID string) error

	// PutProtection inserts the protection. It replaces the one with the same workspace, scope and
	// ByOperator.
	PutProtection(model.Protection) error
	// ListProtections returns protections by scope, the workspace's own first. It returns at most
	// model.MaxProtections.
	ListProtections(workspaceID string) ([]model.Protection, error)
	DeleteProtection(workspaceID, scopeID string, byOperator bool) error
	// DeleteProtectionsOf deletes the protections of a project or an environment.
	DeleteProtectionsOf(workspaceID, scopeID string) error

	// PutFreeze inserts the freeze. It replaces the one with the same workspace and name.
	PutFreeze(model.Freeze) error
	// ListFreezes returns freezes by name. Page.After is the last name.
	ListFreezes(workspaceID string, p Page) ([]model.Freeze, error)
	// ListFreezesFor returns freezes by name: freezes that do not come from an app's file, freezes from the files of
	// these apps, and the freeze with that name, if name is not empty.
	ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error)
	DeleteFreeze(workspaceID, name string) error
	// DeleteFreezesOf deletes the freezes of the project and of the app. An empty id means none.
	DeleteFreezesOf(workspaceID, projectID, appID string) error
	// ListFrozenApps returns the apps whose rollout in flight a freeze holds, by id.
	ListFrozenApps(workspaceID string) ([]string, error)

	// Wake asks for a step of each app at due, or at once if due is not after now. Only the difference of the two
	// times counts, because rows are on the database's clock. A row keeps the earlier time. Apps whose row was unset
	// or later are in Commit.Woken if due is at most WakeWindow after now. If due is not after now, their rows count
	// as sent, because the listener of the commit sends the step. Rows with a later due do not count as sent: that
	// process may have died by then, and DueWakes finds the row.
	Wake(appIDs []string, due, now int64) error
	// WakeAt is Wake with a time for each app.
	WakeAt(due map[string]int64, now int64) error
	// ClearWakes deletes the rows. A step calls it before it reads, so that a later change
	// wakes the app again.
	ClearWakes(appIDs []string) error
	// DueWakes returns rows that are due, oldest first. A row that was sent with its commit is
	// left out for lostAfter ms after that, and a row that was sent later for againAfter ms.
	DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error)
	// MarkWakesSent stores that the wake-ups were sent now, for rows that were due at dueBy and are still due. It
	// leaves out rows that became due later, because an earlier wake-up may have been sent.
	MarkWakesSent(appIDs []string, dueBy int64) error
	// UnsendWakes makes every sent row count as never sent, and returns the number of these rows.
	UnsendWakes() (int64, error)
}

// TopologyTx has the queries of desired state.
type TopologyTx interface {
	// LockTopology returns the apps' rows by (deployment, region), locked.
	LockTopology(appIDs ...string) ([]model.Topology, error)
	// ListTopology is LockTopology without locks.
	ListTopology(appIDs []string) ([]model.Topology, error)
	// ListTopologyByEnvironment returns rows that are not stopped of all apps in
	// the environment, for secret rotation, sorted by (app, deployment, region).
	ListTopologyByEnvironment(environmentID string) ([]model.Topology, error)
	// CountTopologyByRegion counts rows of the region that are not stopped.
	CountTopologyByRegion(regionID string) (int, error)
	// CountTopology counts rows that are not stopped, by region and status, in no
	// order.
	CountTopology() ([]model.TopologyCount, error)
	// CountActiveRollouts counts rollouts in flight of all workspaces.
	CountActiveRollouts() (model.ActiveRolloutCount, error)
	// PutTopology inserts or replaces rows. A row with a generation lower than
	// the stored one loses: model.ErrConflict. Call Change for what agents must see.
	PutTopology([]model.Topology) error
	// DeleteTopology deletes rows that were stopped before that time, with their observed
	// state.
	DeleteTopology(stoppedBefore int64, limit int) (int, error)

	// ListRoutes returns the app's routes sorted by region.
	ListRoutes(appIDs []string) ([]model.Route, error)
	PutRoutes([]model.Route) error
	// CrossRegion returns the regions of apps whose routes hand requests over to other regions
	// (failover or spillover), by app and region. It returns every region that has such a route,
	// even while no deployment of the app has a weight there.
	CrossRegion() ([]model.AppRegion, error)
	// RegionsOf returns the regions that the workspaces own or were granted, sorted by
	// workspace and region.
	RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error)

	// Change adds a change of the key to the region's feed. Several changes of one key in a
	// transaction are one change, with the last generation.
	Change(regionID string, kind model.ChangeKind, key string, generation int64)
}

// ObservedTx has the queries of what regions report. Every Put ignores a row whose guard is not above the guard of the
// stored row.
type ObservedTx interface {
	// ListObserved returns what regions reported of the apps' deployments.
	ListObserved(appIDs []string) ([]model.Observed, error)
	// GetObserved returns the regions' reports of the given deployments, by (deployment, region). deployments has
	// the ids of deployments by region id.
	GetObserved(deployments map[string][]string) ([]model.Observed, error)
	PutObserved([]model.Observed) error
	ListRouteObserved(appIDs []string) ([]model.RouteObserved, error)
	PutRouteObserved([]model.RouteObserved) error

	// PutInstances upserts rows by id. It writes them in the order of ids.
	PutInstances([]model.Instance) error
	GetInstance(workspaceID, id string) (model.Instance, error)
	// MarkLost makes instances of the region terminated with reason Lost, if they are not terminated and their guard
	// is less than below. It returns the deployments that had such instances.
	MarkLost(regionID string, below model.Guard, now int64) (deploymentIDs []string, err error)
	// ResetObserved resets the region's observed rows with a guard less than below: zero
	// counts, phase pending, not deleted. It returns their apps.
	ResetObserved(regionID string, below model.Guard, now int64) (appIDs []string, err error)
	// CountInstancesByStatus counts rows of all workspaces, for metrics.
	CountInstancesByStatus() (map[windlassv1.InstanceStatus]int, error)
	// ListInstances returns instances by id. Empty fields of the filter mean any.
	ListInstances(InstanceFilter, Page) ([]model.Instance, error)
	// CountInstances counts instances that are not terminated, by region.
	CountInstances(regionIDs []string) (map[string]int, error)
	// DeleteInstances deletes terminated rows.
	DeleteInstances(terminatedBefore int64, limit int) (int, error)
	// GetAssignments returns which of the given deployments are assigned to their region, including stopped rows, by
	// (deployment, region). deployments has the ids of deployments by region id.
	GetAssignments(deployments map[string][]string) ([]model.Assignment, error)
}

// InstanceFilter selects instances.
type InstanceFilter = model.InstanceFilter

// RegionTx has the queries of regions, their sessions and the workspaces that may use them.
type RegionTx interface {
	// CountRegions counts regions of all workspaces by status.
	CountRegions() (map[windlassv1.RegionStatus]int, error)
	// InsertRegion also makes its head: epoch 1, revision 0, chain of 32 zeros.
	InsertRegion(model.Region) error
	GetRegion(id string) (model.Region, error)
	LockRegion(id string) (model.Region, error)
	GetRegions(ids []string) ([]model.Region, error)
	// GetRegionByName finds a region that the workspace owns or was granted. With an empty workspace, it finds a
	// region of the platform.
	GetRegionByName(workspaceID, name string) (model.Region, error)
	// GetRegionsByName is GetRegionByName for several names in one query. It returns the
	// regions that exist, by name.
	GetRegionsByName(workspaceID string, names []string) ([]model.Region, error)
	// ListRegions returns regions by name: owned and granted ones. With an empty workspace, it returns all regions of
	// the platform.
	ListRegions(workspaceID string, p Page) ([]model.Region, error)
	// ListGateways returns the regions of workspaces that have a gateway address, by id. waiting: only regions whose
	// address is not approved.
	ListGateways(waiting bool, p Page) ([]model.Region, error)
	// AllRegions returns regions by id, for loops of the control plane. Page.After is the id.
	AllRegions(p Page) ([]model.Region, error)
	UpdateRegion(model.Region) error // labels, credential_not_before, message
	DeleteRegion(id string) error
	GrantRegion(regionID, workspaceID string, at int64) error
	RevokeGrant(regionID, workspaceID string) error
	// RegionWorkspaces returns the ids of the workspaces that may use a platform region.
	RegionWorkspaces(regionID string) ([]string, error)

	// StartSession makes sessionID the region's current session, sets its lease, and sets the
	// status to connected. If the id is the current one, resumed is true and the fence stays.
	// Otherwise the fence grows by one and the sequence is 0. The epoch is the head's. r is the
	// row as stored.
	StartSession(regionID, sessionID string, leaseTTL int64, agent model.Region) (r model.Region, resumed bool, err error)
	// CheckSessions returns the regions' current sessions without a lock, in one query by primary key.
	CheckSessions(regionIDs []string) ([]model.Region, error)
	// NoteReports renews the leases of sessions whose (id, epoch, fence) is still current, on the
	// database's clock, and stores their last report time. Unless a newer report is stored, it also
	// stores sequence, received revision and capacity (nil: unchanged). It is one statement.
	NoteReports([]model.Region, int64) error
	// ExpireLeases turns connected regions whose lease is over, on the database's
	// clock, into unreachable and returns their ids.
	ExpireLeases(now int64, limit int) ([]string, error)
	// AppsInRegion returns the ids of apps with topology in the region that is not stopped.
	AppsInRegion(regionID string) ([]string, error)

	InsertJoinToken(model.JoinToken) error
	GetJoinTokenByHash(hash []byte) (model.JoinToken, error)
	// UseJoinToken marks the token as used by a join id. It fails with model.ErrConflict if another
	// join id has used it. The same join id may use it again.
	UseJoinToken(id, joinID string, at int64) error

	// SetQuarantine replaces the region's quarantine. Approvals of keys that stay in it are kept.
	SetQuarantine(regionID string, rows []model.Quarantined) error
	// CountQuarantine counts the keys in the quarantine, by region.
	CountQuarantine(regionIDs []string) (map[string]int, error)
	ListQuarantine(regionID string, p Page) ([]model.Quarantined, error) // by key
	// ApproveQuarantine approves the keys, and returns those that it found. The caller adds
	// the changes to the feed.
	ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error)
}

// FeedTx has the queries of the feed and of the state behind it.
type FeedTx interface {
	GetHead(regionID string) (model.Head, error)
	GetHeads(regionIDs []string) ([]model.Head, error)
	// SumHeads sums up the heads of all regions. The sum differs if any head has moved.
	SumHeads() (model.HeadSum, error)
	// ListRegionHeads returns the heads of regions with an id above after, by region id.
	ListRegionHeads(after string, limit int) ([]model.Head, error)
	// Changes returns, for every region of after, the changes with a revision above
	// the one given, by (region, revision), at most limit rows in all. The rows of a
	// region have no gap. Only the limit can cut them short.
	Changes(after map[string]int64, limit int) ([]model.Change, error)
	// ChainAt returns the chain value of a revision. It fails with model.ErrNotFound if the
	// revision was compacted or does not exist. The value of revision 0 is 32 zeros.
	ChainAt(regionID string, revision int64) ([]byte, error)
	// BumpEpoch starts a new epoch of the region's feed, in an Update, and
	// returns the head. The revision does not change. The chain restarts from a hash of
	// the new epoch and salt, so that no two histories agree by accident.
	BumpEpoch(regionID string, salt []byte) (model.Head, error)
	// DesiredItems reads the newest state of keys by region, ordered by (region, key).
	// It leaves out keys without a row. Rows in stopping or stopped are tombstones:
	// Delete is set, and stays set even after the region has confirmed the delete.
	// An approved key of the quarantine is a tombstone, too, with its generation plus one.
	DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error)
	// EachDesired calls page with everything that a region should hold, about size items at a
	// time: deployments by key, then approved keys of the quarantine, then routes by key. In a
	// Snapshot, all items are of one moment. It returns the first error of page.
	EachDesired(regionID string, size int, page func([]model.DesiredItem) error) error
	// CompactChanges deletes the region's changes at or below the revision.
	CompactChanges(regionID string, upto int64, limit int) (int, error)
}

// RecordTx has the queries of the records that are written with every decision.
type RecordTx interface {
	InsertHistory([]model.History) error
	// ListHistory returns entries newest first by id. Page.After is the last id.
	ListHistory(workspaceID, appID string, p Page) ([]model.History, error)
	// HistorySince returns entries with an id above after, oldest first.
	HistorySince(appID, after string, limit int) ([]model.History, error)
	InsertAudit(rows ...model.Audit) error
	// ListAudit returns entries newest first by id. Page.After is the last id.
	ListAudit(workspaceID string, p Page) ([]model.Audit, error)
	GetIdempotency(workspaceID, key string) (model.Idempotency, error)
	// InsertIdempotency fails with model.ErrExists if another request has taken the key.
	InsertIdempotency(model.Idempotency) error
	// DeleteIdempotencyKey deletes the record of the key, if there is one, so that the key is free again.
	DeleteIdempotencyKey(workspaceID, key string) error
	// DeleteIdempotency deletes records made before that time, at most limit.
	DeleteIdempotency(before int64, limit int) (int, error)
}

// RetentionTx deletes rows whose retention has passed. The interfaces above have further Delete methods with a limit,
// for the same purpose.
// A method with a limit deletes at most limit rows, or the rows of at most limit apps or secrets, and returns the
// number. Its caller repeats the call until it returns less than limit.
type RetentionTx interface {
	// DeleteApps deletes the rows of apps that were deleted before that time and have no topology
	// left, with all rows that belong to them.
	DeleteApps(deletedBefore int64, limit int) (int, error)
	// CrowdedApps returns ids of apps in ascending order, beginning after the id after. These apps have
	// more than versions deployments, or more than entries history entries.
	CrowdedApps(versions, entries int, after string, limit int) ([]string, error)
	// TrimVersions deletes ended deployments of the app, with their rollouts, except the newest keep
	// versions. It also keeps the live and the previous deployment, the one of the rollout in flight,
	// and deployments that have topology. Call it on a locked app.
	TrimVersions(app model.App, keep int32, limit int) (int, error)
	// TrimHistory deletes the app's history except for the newest keep entries.
	TrimHistory(appID string, keep, limit int) (int, error)
	// TrimSecrets deletes all versions except the newest keep of up to limit secrets, and returns the
	// number of secrets.
	TrimSecrets(keep int32, limit int) (int, error)
	// DeleteScalingLoads deletes chunks that began before that time.
	DeleteScalingLoads(before int64, limit int) (int, error)
	// DeleteAudit deletes entries that were made before that time, by the time in their ids.
	DeleteAudit(before int64, limit int) (int, error)
	// DeleteJoinTokens deletes tokens that expired before that time.
	DeleteJoinTokens(expiredBefore int64, limit int) (int, error)
	// DeleteAPIKeys deletes keys that were revoked or expired before that time.
	DeleteAPIKeys(endedBefore int64, limit int) (int, error)
}

// PeerTx has the queries of the processes of the control plane. The time at which a process was seen is on the
// database's clock. Durations are milliseconds.
type PeerTx interface {
	// PutPeer stores that the process was seen now. Its start time does not change.
	PutPeer(model.Peer) error
	// ListPeers returns the processes that were seen within the duration, by id.
	ListPeers(seenWithin int64) ([]model.Peer, error)
	// DeletePeer deletes a process, if it exists.
	DeletePeer(id string) error
	// DeletePeers deletes processes that were not seen for longer than unseenFor.
	DeletePeers(unseenFor int64) (int, error)
	// PutStream stores that the region's agent watches through the process.
	PutStream(regionID, peerID string) error
	// CountStreams counts the connected regions whose agent watches through any process.
	CountStreams() (int, error)
	// GetStream returns the process through which the region's agent watched last.
	GetStream(regionID string) (peerID string, err error)
}
