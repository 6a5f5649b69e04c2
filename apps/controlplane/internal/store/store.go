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
// Update runs its function in one read-write transaction (READ COMMITTED) and
// commits it; the whole function runs again when the database asks for a retry
// (deadlock, lock timeout), so it must not have effects of its own. Row locks
// are taken in this order: the app, its topology sorted by (deployment, region),
// the workspace, region heads last, which Update itself does when the function
// returned:
//
//	fn ... tx.Change(region A) tx.Change(region B) ... return nil
//	    -> lock heads of A and B in key order
//	    -> revision = head+1, +2 ...; chain = hash(previous chain, change id)
//	    -> append the changes, move the heads, commit
//
// Because heads stay locked to the commit, revisions of a region are gap-free
// and in commit order, which an AUTO_INCREMENT is not: there a reader that
// remembers the highest id loses a transaction that took a lower one and
// committed later. At most MaxRegions regions change in one transaction.
//
// Every Get returns model.ErrNotFound when there is nothing; every Insert of a taken
// id or name returns model.ErrExists.
package store

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// MaxRegions bounds the head rows that one transaction holds.
const MaxRegions = 32

// WakeWindow is how far ahead a wake-up may be so that the listener of its commit still serves it.
const WakeWindow = 500 * time.Millisecond

// Commit is what an Update changed, once it is durable.
type Commit struct {
	// Heads that moved, by region id.
	Revisions map[string]int64
	// Apps whose wake row turned from unset or later to due now, or Soon, and in how long.
	Woken map[string]time.Duration
	// Apps whose row, rollout, deployments, topology or observed state changed.
	Apps []string
}

// Store is a database.
type Store interface {
	// Update runs fn in a read-write transaction, as the package comment says.
	Update(ctx context.Context, fn func(Tx) error) error
	// UpdateBatched is Update for requests that may share a transaction: those of one key that
	// arrive while a transaction of it runs may share the next one. Each runs fn, and then each
	// runs the function that fn returned (nil for none), in which locks that all of them need are
	// taken. Each is durable as a whole, or leaves nothing and gets its error. It sees what the
	// requests before it did, and what it did is gone when it fails, whatever becomes of the
	// others. Without a key it has a transaction of its own. app is the app that fn will lock, by
	// id or name, so that what the requests of a batch read of their apps may be read in one
	// query; empty for unknown.
	UpdateBatched(ctx context.Context, key, app string, fn func(Tx) (last func() error, err error)) error
	// View runs fn for reads that need no common moment. Writing fails.
	View(ctx context.Context, fn func(Tx) error) error
	// Snapshot runs fn so that all it reads is of one moment. Writing fails.
	Snapshot(ctx context.Context, fn func(Tx) error) error
	// OnCommit calls f after each commit that changed any of what Commit tells,
	// in the goroutine of the committer: f must not block.
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
	TopologyTx
	ObservedTx
	RegionTx
	FeedTx
	RecordTx
	RetentionTx
	PeerTx
	SealedTx
	AdmissionTx
	NotificationTx

	// Batched reports whether other requests share the transaction. A request that fails because its
	// idempotency key is taken runs again alone, so that none has to check first whether the key is free.
	Batched() bool
}

// TenantTx is workspaces, keys, projects, environments, secrets. Lists are by
// name, ascending; Page.After is the last name.
type TenantTx interface {
	InsertWorkspace(model.Workspace) error
	GetWorkspace(id string) (model.Workspace, error)
	GetWorkspaceByName(name string) (model.Workspace, error)
	// GetWorkspaces returns those of the workspaces that exist.
	GetWorkspaces(ids []string) ([]model.Workspace, error)
	ListWorkspaces(Page) ([]model.Workspace, error)
	// UpdateWorkspace compares ResourceVersion and stores it plus one
	// (model.ErrConflict). So do the other updates that have one.
	UpdateWorkspace(model.Workspace) error
	DeleteWorkspace(id string) error

	InsertAPIKey(model.APIKey) error
	GetAPIKey(workspaceID, id string) (model.APIKey, error)
	GetAPIKeyByHash(hash []byte) (model.APIKey, error)
	ListAPIKeys(workspaceID string, p Page) ([]model.APIKey, error)
	RevokeAPIKey(workspaceID, id string, at int64) error

	InsertProject(model.Project) error
	GetProject(workspaceID, id string) (model.Project, error)
	// GetProjects returns those of the projects that the workspace has.
	GetProjects(workspaceID string, ids []string) ([]model.Project, error)
	GetProjectByName(workspaceID, name string) (model.Project, error)
	ListProjects(workspaceID string, p Page) ([]model.Project, error)
	UpdateProject(model.Project) error
	DeleteProject(workspaceID, id string) error

	InsertEnvironment(model.Environment) error
	GetEnvironment(workspaceID, id string) (model.Environment, error)
	// GetEnvironments returns those of the environments that the workspace has.
	GetEnvironments(workspaceID string, ids []string) ([]model.Environment, error)
	GetEnvironmentByName(workspaceID, projectID, name string) (model.Environment, error)
	// LockEnvironment is GetEnvironment with the row locked to the end.
	LockEnvironment(workspaceID, id string) (model.Environment, error)
	ListEnvironments(workspaceID, projectID string, p Page) ([]model.Environment, error)
	UpdateEnvironment(model.Environment) error
	DeleteEnvironment(workspaceID, id string) error

	// InsertSecretVersion stores s.Version, which must be the latest plus one; for
	// a name that does not exist, the floor plus one.
	InsertSecretVersion(s model.Secret) error
	// SecretFloor is the highest version that a deleted secret of the environment
	// had, so that no name ever has a version twice; 0 for none.
	SecretFloor(environmentID string) (int32, error)
	GetSecret(workspaceID, environmentID, name string) (model.Secret, error) // latest
	GetSecretVersion(workspaceID, environmentID, name string, version int32) (model.Secret, error)
	ListSecrets(workspaceID, environmentID string, p Page) ([]model.Secret, error) // latest, no ciphertext
	// SecretVersions returns the latest version of each name that exists.
	SecretVersions(environmentID string, names []string) (map[string]int32, error)
	DeleteSecret(workspaceID, environmentID, name string) error
}

// AppTx is apps, deployments, rollouts and wake-ups. Deleted apps are found by
// id only, and their names are free again.
type AppTx interface {
	InsertApp(model.App) error
	GetApp(workspaceID, id string) (model.App, error)
	GetAppByName(workspaceID, environmentID, name string) (model.App, error)
	// GetApps returns those of the ids that exist, deleted ones included, in no
	// order.
	GetApps(ids []string) ([]model.App, error)
	// LockApp is GetApp with the row locked to the end of the transaction; an
	// empty workspace means any (for the workflow).
	LockApp(workspaceID, id string) (model.App, error)
	// UpdateApp stores the row, ResourceVersion plus one. Call it on a locked row.
	UpdateApp(model.App) error
	// LockApps is LockApp of any workspace, for those of the ids that exist, by id.
	LockApps(ids []string) ([]model.App, error)
	// StepApps moves the step number of each app by one, from what the app says that it is;
	// of those that changed it is UpdateApp, too. model.ErrConflict unless that is so of all.
	StepApps(steps []model.AppStep) error
	// ListApps is by (name, id); an empty environment means all.
	// Page.After is name + "\x00" + id.
	ListApps(workspaceID, environmentID string, p Page) ([]model.App, error)
	// CountApps counts apps that are not deleted, of a project or environment or,
	// with both empty, of the workspace.
	CountApps(workspaceID, projectID, environmentID string) (int, error)

	InsertDeployment(model.Deployment) error
	GetDeployment(workspaceID, id string) (model.Deployment, error)
	GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error)
	// GetDeployments returns those of the ids that exist, in no order.
	GetDeployments(ids []string) ([]model.Deployment, error)
	// GetNewestDeployments returns the deployment of the latest version of each app that has one, in no order.
	GetNewestDeployments(appIDs []string) ([]model.Deployment, error)
	// UpdateDeployment stores status, reason, message, resolved image, stable and
	// the times; the rest is immutable. model.ErrNotFound unless all exist.
	UpdateDeployment(...model.Deployment) error
	// ListDeployments is newest first by id; an empty app means all.
	// Page.After is the last id.
	ListDeployments(workspaceID, appID string, p Page) ([]model.Deployment, error)

	InsertRollout(model.Rollout) error
	GetRollout(workspaceID, id string) (model.Rollout, error)
	// GetRollouts returns those of the ids that exist, in no order.
	GetRollouts(ids []string) ([]model.Rollout, error)
	// GetActiveRollouts returns rollouts with their deployment and their app's rollout state, nil for
	// none, in one read and in no order: those of which the first two are there.
	GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error)
	// UpdateRollout stores how they go: model.ErrNotFound unless all exist.
	UpdateRollout(...model.Rollout) error
	// ListRollouts is newest first by id. Page.After is the last id.
	ListRollouts(workspaceID, appID string, p Page) ([]model.Rollout, error)

	// GetRolloutStates returns those that the apps have, in no order.
	GetRolloutStates(appIDs []string) ([]model.RolloutState, error)
	// PutRolloutState inserts or replaces the app's. Call it with the app's row locked.
	PutRolloutState(model.RolloutState) error

	// GetScalings returns those that the apps have, in no order.
	GetScalings(appIDs []string) ([]model.Scaling, error)
	// PutScaling inserts or replaces the app's. Call it with the app's row locked.
	PutScaling(model.Scaling) error
	// ListScalingDecisions returns the newest decision in each region, by region.
	ListScalingDecisions(appID string) ([]model.ScalingDecision, error)
	// PutScalingDecision inserts or replaces that of the app and region.
	PutScalingDecision(model.ScalingDecision) error

	// ListPins returns the pins of the apps, by (app, version).
	ListPins(appIDs []string) ([]model.Pin, error)
	// PutPin inserts or replaces the pin of its app and deployment. Call it with the app's
	// row locked, and so DeletePin, which forgets one that may not be there.
	PutPin(model.Pin) error
	DeletePin(appID, deploymentID string) error

	// PutProtection inserts the protection, or replaces that of its workspace, scope and setter.
	PutProtection(model.Protection) error
	// ListProtections returns the first model.MaxProtections by scope, the workspace's own first.
	ListProtections(workspaceID string) ([]model.Protection, error)
	DeleteProtection(workspaceID, scopeID string, byOperator bool) error
	// DeleteProtectionsOf forgets those of a project or an environment.
	DeleteProtectionsOf(workspaceID, scopeID string) error

	// PutFreeze inserts the freeze, or replaces that of its workspace and name.
	PutFreeze(model.Freeze) error
	// ListFreezes is by name. Page.After is the last name.
	ListFreezes(workspaceID string, p Page) ([]model.Freeze, error)
	// ListFreezesFor is by name, too, of those that do not come from the files of other apps
	// than these, and of the one of that name, which may be empty.
	ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error)
	DeleteFreeze(workspaceID, name string) error
	// DeleteFreezesOf forgets those of the project and those of the app; empty: of none.
	DeleteFreezesOf(workspaceID, projectID, appID string) error
	// ListHeldApps returns the apps whose rollout in flight a freeze holds, by id.
	ListHeldApps(workspaceID string) ([]string, error)

	// Wake asks for a step of each app at due, or at once if that is not after now. What counts
	// is how far apart the two are: the row is on the database's clock, and keeps the earlier
	// time. Apps whose row was unset or later end in Commit.Woken if due is at most Soon after
	// now. If it is not after now, they count as sent: the listener of the commit does the
	// step. A process that should wait for a later due time may be gone by then, and others
	// find what is due.
	Wake(appIDs []string, due, now int64) error
	// WakeAt is Wake for apps of which each has a time of its own.
	WakeAt(due map[string]int64, now int64) error
	// ClearWakes takes the rows away, before the steps read anything that others tell
	// them of.
	ClearWakes(appIDs []string) error
	// DueWakes returns rows that are due, oldest first: those that were never sent; those that
	// were sent with their commit, so long ago that they count as lost; and those that were
	// sent since, so long ago that they must be sent again. In ms.
	DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error)
	// MarkWakesSent notes that steps were sent, for rows that were due by then,
	// and are. Of those that are due since nothing is known: the step may have been another one's.
	MarkWakesSent(appIDs []string, dueBy int64) error
	// UnsendWakes makes every row that was sent one that never was, and returns how many
	// there were.
	UnsendWakes() (int64, error)
}

// TopologyTx is desired state.
type TopologyTx interface {
	// LockTopology returns the apps' rows sorted by (deployment, region), locked.
	LockTopology(appIDs ...string) ([]model.Topology, error)
	// ListTopology is LockTopology without locks, for the apps given.
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
	// DeleteTopology forgets stopped rows whose retention passed, and what their
	// regions said of them.
	DeleteTopology(stoppedBefore int64, limit int) (int, error)

	// ListRoutes returns the app's routes sorted by region.
	ListRoutes(appIDs []string) ([]model.Route, error)
	PutRoutes([]model.Route) error
	// CrossRegion returns where the apps are whose route has requests handed to other
	// regions (failover or spillover), sorted by app and region: all regions that route the app's
	// hosts, also while none of its deployments has a weight there.
	CrossRegion() ([]model.AppRegion, error)
	// RegionsOf returns the regions that the workspaces own or were granted, sorted by
	// workspace and region.
	RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error)

	// Change notes that agents of the region must see the key's new state. Twice
	// the same key in one transaction is one change, with the later generation.
	Change(regionID string, kind model.ChangeKind, key string, generation int64)
}

// ObservedTx is what regions report. Every Put is guarded: a row with a guard
// not above the stored one loses, silently, as a whole.
type ObservedTx interface {
	// ListObserved returns what regions said of the apps' deployments.
	ListObserved(appIDs []string) ([]model.Observed, error)
	// GetObserved returns what regions said of the deployments given for each of them,
	// by (deployment, region).
	GetObserved(deployments map[string][]string) ([]model.Observed, error)
	PutObserved([]model.Observed) error
	ListRouteObserved(appIDs []string) ([]model.RouteObserved, error)
	PutRouteObserved([]model.RouteObserved) error

	// PutInstances upserts by id, in the order of ids, whatever that of the rows.
	PutInstances([]model.Instance) error
	GetInstance(workspaceID, id string) (model.Instance, error)
	// MarkLost turns instances of the region with a guard less than below, that are
	// not terminated, into terminated with reason Lost. It returns the deployments
	// that had any.
	MarkLost(regionID string, below model.Guard, now int64) (deploymentIDs []string, err error)
	// ResetObserved forgets the counts of the region's observed rows with a guard
	// less than below: zero counts, phase pending, not deleted. It returns their
	// apps.
	ResetObserved(regionID string, below model.Guard, now int64) (appIDs []string, err error)
	// CountInstancesByStatus counts rows of all workspaces, for metrics.
	CountInstancesByStatus() (map[windlassv1.InstanceStatus]int, error)
	// ListInstances is by id; empty fields of the filter mean any.
	ListInstances(InstanceFilter, Page) ([]model.Instance, error)
	// CountInstances counts those not terminated, by region.
	CountInstances(regionIDs []string) (map[string]int, error)
	// DeleteInstances forgets terminated rows.
	DeleteInstances(terminatedBefore int64, limit int) (int, error)
	// GetAssignments returns which of the deployments given for a region are assigned to it
	// (stopped rows included), by (deployment, region).
	GetAssignments(deployments map[string][]string) ([]model.Assignment, error)
}

// InstanceFilter selects instances.
type InstanceFilter = model.InstanceFilter

// RegionTx is regions, their sessions and who may use them.
type RegionTx interface {
	// CountRegions counts regions of all workspaces by status.
	CountRegions() (map[windlassv1.RegionStatus]int, error)
	// InsertRegion also makes its head: epoch 1, revision 0, chain of 32 zeros.
	InsertRegion(model.Region) error
	GetRegion(id string) (model.Region, error)
	LockRegion(id string) (model.Region, error)
	GetRegions(ids []string) ([]model.Region, error)
	// GetRegionByName finds a region that the workspace owns or was granted; with
	// an empty workspace, the platform's.
	GetRegionByName(workspaceID, name string) (model.Region, error)
	// GetRegionsByName is GetRegionByName for each of the names, in one read: those that
	// are found, by name.
	GetRegionsByName(workspaceID string, names []string) ([]model.Region, error)
	// ListRegions is by name: owned and granted; with an empty workspace, all of
	// the platform's.
	ListRegions(workspaceID string, p Page) ([]model.Region, error)
	// ListGateways is the workspaces' regions that have a gateway address, by id. waiting: only those
	// whose address is not the approved one.
	ListGateways(waiting bool, p Page) ([]model.Region, error)
	// AllRegions is by id, for loops of the control plane. Page.After is the id.
	AllRegions(p Page) ([]model.Region, error)
	UpdateRegion(model.Region) error // labels, credential_not_before, message
	DeleteRegion(id string) error
	GrantRegion(regionID, workspaceID string, at int64) error
	RevokeGrant(regionID, workspaceID string) error
	// RegionWorkspaces returns who may use a platform region.
	RegionWorkspaces(regionID string) ([]string, error)

	// StartSession makes sessionID the region's current session: same id, same
	// fence; another id, fence plus one and sequence 0. It returns the row as stored. The epoch
	// is the head's. It sets the lease and status connected.
	StartSession(regionID, sessionID string, leaseTTL int64, agent model.Region) (r model.Region, resumed bool, err error)
	// CheckSessions returns the regions' current sessions without a lock: it is one plain read
	// by primary key.
	CheckSessions(regionIDs []string) ([]model.Region, error)
	// NoteReports renews the leases of sessions whose (id, epoch, fence) is still current, on the
	// database's clock, and stores their last report time. Unless a newer report is stored, it also
	// stores sequence, received revision and capacity (nil: unchanged). It is one statement.
	NoteReports([]model.Region, int64) error
	// ExpireLeases turns connected regions whose lease is over, on the database's
	// clock, into unreachable and returns their ids.
	ExpireLeases(now int64, limit int) ([]string, error)
	// AppsInRegion returns apps with topology there that is not stopped.
	AppsInRegion(regionID string) ([]string, error)

	InsertJoinToken(model.JoinToken) error
	GetJoinTokenByHash(hash []byte) (model.JoinToken, error)
	// UseJoinToken marks it used by a join id, or model.ErrConflict if another one used
	// it. The same join id may use it again.
	UseJoinToken(id, joinID string, at int64) error

	// SetQuarantine replaces the region's set; approvals of kept keys stay.
	SetQuarantine(regionID string, rows []model.Quarantined) error
	// CountQuarantine counts the keys of regions that have any.
	CountQuarantine(regionIDs []string) (map[string]int, error)
	ListQuarantine(regionID string, p Page) ([]model.Quarantined, error) // by key
	// ApproveQuarantine marks the keys and returns how many it found; the caller
	// adds the changes.
	ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error)
}

// FeedTx reads the feed and the state behind it.
type FeedTx interface {
	GetHead(regionID string) (model.Head, error)
	GetHeads(regionIDs []string) ([]model.Head, error)
	// SumHeads sums up the heads of all regions: the cheap answer to whether any moved.
	SumHeads() (model.HeadSum, error)
	// ListRegionHeads is by region id, those after the one given.
	ListRegionHeads(after string, limit int) ([]model.Head, error)
	// Changes returns, for every region of after, changes with a revision above
	// the one given, by (region, revision), at most limit rows in all: a region's
	// rows have no gap, and end early only where the limit cuts them.
	Changes(after map[string]int64, limit int) ([]model.Change, error)
	// ChainAt returns the chain value of a revision, model.ErrNotFound when that was
	// compacted or never was. Revision 0 has 32 zeros.
	ChainAt(regionID string, revision int64) ([]byte, error)
	// BumpEpoch starts a new epoch of the region's feed, in an Update, and
	// returns the head. The revision goes on; the chain restarts from a hash of
	// the new epoch and salt, so that no two histories agree by accident.
	BumpEpoch(regionID string, salt []byte) (model.Head, error)
	// DesiredItems reads the newest state of keys by region, ordered by (region, key).
	// Keys with nothing behind them are left out. Rows in stopping or stopped are
	// tombstones: Delete is set, for it is the region's word on the delete that takes a
	// row from the one to the other. An approved quarantined key is one, too, with its
	// generation plus one.
	DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error)
	// EachDesired hands all that a region should hold to page, some size items at a time:
	// deployments by key, then approved keys of the quarantine, then routes by key. It is
	// of one moment in a Snapshot. The first error of page ends it, and is returned.
	EachDesired(regionID string, size int, page func([]model.DesiredItem) error) error
	// CompactChanges deletes the region's changes at or below the revision.
	CompactChanges(regionID string, upto int64, limit int) (int, error)
}

// RecordTx is what is written with every decision.
type RecordTx interface {
	InsertHistory([]model.History) error
	// ListHistory is newest first by id. Page.After is the last id.
	ListHistory(workspaceID, appID string, p Page) ([]model.History, error)
	// HistorySince is oldest first, entries with an id above after.
	HistorySince(appID, after string, limit int) ([]model.History, error)
	InsertAudit(rows ...model.Audit) error
	// ListAudit is newest first by id. Page.After is the last id.
	ListAudit(workspaceID string, p Page) ([]model.Audit, error)
	GetIdempotency(workspaceID, key string) (model.Idempotency, error)
	// InsertIdempotency: model.ErrExists when another request took the key meanwhile.
	InsertIdempotency(model.Idempotency) error
	// DeleteIdempotency forgets records made before, at most limit.
	DeleteIdempotency(before int64, limit int) (int, error)
}

// RetentionTx forgets what is over, and what there is too much of. (So do the
// Delete methods with a limit of the interfaces above.) What has a limit forgets at
// most as much and returns how much, so that a caller repeats it until it is less.
type RetentionTx interface {
	// DeleteApps forgets apps that were deleted before and have no topology left,
	// with all that is theirs.
	DeleteApps(deletedBefore int64, limit int) (int, error)
	// CrowdedApps returns apps with more deployments or more history entries than
	// given, by id, those after the one given.
	CrowdedApps(versions, entries int, after string, limit int) ([]string, error)
	// TrimVersions forgets ended deployments of the app, and their rollouts, that
	// are not among its newest. It spares the live and the previous one, that of the
	// rollout in flight, and those that have topology. Call it on a locked app.
	TrimVersions(app model.App, keep int32, limit int) (int, error)
	// TrimHistory forgets the app's history but for its newest entries.
	TrimHistory(appID string, keep, limit int) (int, error)
	// TrimSecrets deletes all but the newest versions of up to limit secrets, and returns of
	// how many.
	TrimSecrets(keep int32, limit int) (int, error)
	// DeleteAudit forgets entries that were made before, by the time in their ids.
	DeleteAudit(before int64, limit int) (int, error)
	// DeleteJoinTokens forgets tokens that expired before.
	DeleteJoinTokens(expiredBefore int64, limit int) (int, error)
	// DeleteAPIKeys forgets keys that were revoked or expired before.
	DeleteAPIKeys(endedBefore int64, limit int) (int, error)
}

// PeerTx is the control plane's processes, as they know each other. What is seen
// is so on the database's clock; durations are milliseconds.
type PeerTx interface {
	// PutPeer says that the process was seen now. When it started stays what it
	// was.
	PutPeer(model.Peer) error
	// ListPeers returns those seen within the duration, by id.
	ListPeers(seenWithin int64) ([]model.Peer, error)
	// DeletePeer forgets one, if there is one.
	DeletePeer(id string) error
	// DeletePeers forgets those that were not seen for longer.
	DeletePeers(unseenFor int64) (int, error)
	// PutStream notes that the region's agent watches through the process.
	PutStream(regionID, peerID string) error
	// CountStreams counts the connected regions whose agent watches through any process.
	CountStreams() (int, error)
	// GetStream returns the process that the region's agent watched last.
	GetStream(regionID string) (peerID string, err error)
}
