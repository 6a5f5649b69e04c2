package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Store runs transactions.
type Store interface {
	// Update runs fn in a read-write transaction. It runs fn again after a conflict, so fn must have no side effects
	// outside the transaction.
	Update(ctx context.Context, fn func(Tx) error) error
	// UpdateBatched is Update for requests that may share a transaction with other requests of the same key. key ""
	// means that the request shares with none. First, the fn of each request runs. If an fn returns a function (last),
	// this function runs after the fns of all requests. app is the id or name of the app that fn locks first, or "". It
	// is read together with the apps of the other requests.
	UpdateBatched(ctx context.Context, key, app string, fn func(Tx) (last func() error, err error)) error
	// View runs fn for reads that need no consistent snapshot.
	View(ctx context.Context, fn func(Tx) error) error
	// Snapshot runs fn on a consistent snapshot, so that an app's row and its rows in regions match.
	Snapshot(ctx context.Context, fn func(Tx) error) error
}

// Agents sends requests to agents of regions. The context of Ask must have a deadline. Ask fails with
// model.ErrAgentUnreachable if no agent is connected, and with model.ErrNoAnswer if no answer comes in time.
type Agents interface {
	Ask(ctx context.Context, regionID string, req *agentv1.Request) ([]byte, error)
}

// Tx is a transaction with the reads and writes of the API.
type Tx interface {
	tenantTx
	appTx
	topologyTx
	regionTx
	recordTx
	admissionTx
	featureTx
	presetTx
	browserTx
	memberTx
	notificationTx

	// Batched reports whether other requests share the transaction. A request that fails because its
	// idempotency key is taken runs again alone.
	Batched() bool
}

type notificationTx interface {
	InsertNotificationEndpoint(model.NotificationEndpoint) error
	UpdateNotificationEndpoint(model.NotificationEndpoint) error
	LockNotificationEndpoint(workspaceID, name string) (model.NotificationEndpoint, error)
	ListNotificationEndpoints(workspaceID string) ([]model.NotificationEndpoint, error)
	DeleteNotificationEndpoint(workspaceID, id string) error
	DeleteNotificationEndpointsOf(workspaceID, scopeID string) error
	InsertDeliveries([]model.Delivery) error
	ListDeliveries(endpointID string, state model.DeliveryState, p model.Page) ([]model.Delivery, error)
	CountDeliveries(workspaceID string) ([]model.DeliveryCount, error)
	ReplayDeliveries(endpointID, messageID string, at int64) (int, error)
}

type tenantTx interface {
	InsertWorkspace(model.Workspace) error
	GetWorkspace(id string) (model.Workspace, error)
	GetWorkspaces(ids []string) ([]model.Workspace, error)
	GetWorkspaceByName(name string) (model.Workspace, error)
	ListWorkspaces(model.Page) ([]model.Workspace, error)
	UpdateWorkspace(model.Workspace) error
	DeleteWorkspace(id string) error

	InsertAPIKey(model.APIKey) error
	GetAPIKey(workspaceID, id string) (model.APIKey, error)
	GetAPIKeyByHash(hash []byte) (model.APIKey, error)
	ListAPIKeys(workspaceID string, p model.Page) ([]model.APIKey, error)
	RevokeAPIKey(workspaceID, id string, at int64) error

	InsertProject(model.Project) error
	GetProject(workspaceID, id string) (model.Project, error)
	GetProjects(workspaceID string, ids []string) ([]model.Project, error)
	GetProjectByName(workspaceID, name string) (model.Project, error)
	ListProjects(workspaceID string, p model.Page) ([]model.Project, error)
	UpdateProject(model.Project) error
	DeleteProject(workspaceID, id string) error

	InsertEnvironment(model.Environment) error
	GetEnvironment(workspaceID, id string) (model.Environment, error)
	GetEnvironments(workspaceID string, ids []string) ([]model.Environment, error)
	GetEnvironmentByName(workspaceID, projectID, name string) (model.Environment, error)
	LockEnvironment(workspaceID, id string) (model.Environment, error)
	ListEnvironments(workspaceID, projectID string, p model.Page) ([]model.Environment, error)
	UpdateEnvironment(model.Environment) error
	DeleteEnvironment(workspaceID, id string) error

	InsertSecretVersion(s model.Secret) error
	SecretFloor(environmentID string) (int32, error)
	GetSecret(workspaceID, environmentID, name string) (model.Secret, error)
	ListSecrets(workspaceID, environmentID string, p model.Page) ([]model.Secret, error)
	SecretVersions(environmentID string, names []string) (map[string]int32, error)
	DeleteSecret(workspaceID, environmentID, name string) error
}

type appTx interface {
	InsertApp(model.App) error
	GetApp(workspaceID, id string) (model.App, error)
	GetAppByName(workspaceID, environmentID, name string) (model.App, error)
	GetApps(ids []string) ([]model.App, error)
	LockApp(workspaceID, id string) (model.App, error)
	UpdateApp(model.App) error
	ListApps(workspaceID, environmentID string, p model.Page) ([]model.App, error)
	CountApps(workspaceID, projectID, environmentID string) (int, error)

	InsertDeployment(model.Deployment) error
	GetDeployment(workspaceID, id string) (model.Deployment, error)
	GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error)
	GetDeployments(ids []string) ([]model.Deployment, error)
	GetNewestDeployments(appIDs []string) ([]model.Deployment, error)
	UpdateDeployment(...model.Deployment) error
	ListDeployments(workspaceID, appID string, p model.Page) ([]model.Deployment, error)

	InsertRollout(model.Rollout) error
	GetRollout(workspaceID, id string) (model.Rollout, error)
	GetRollouts(ids []string) ([]model.Rollout, error)
	GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error)
	UpdateRollout(...model.Rollout) error
	ListRollouts(workspaceID, appID string, p model.Page) ([]model.Rollout, error)
	GetRolloutStates(appIDs []string) ([]model.RolloutState, error)
	PutRolloutState(model.RolloutState) error

	GetScalings(appIDs []string) ([]model.Scaling, error)
	PutScaling(model.Scaling) error
	ListScalingDecisions(appID string) ([]model.ScalingDecision, error)
	PutScalingDecision(model.ScalingDecision) error
	ListScalingLoads(appID, regionID, role string, since int64) ([]model.LoadChunk, error)
	PutScalingLoads([]model.LoadChunk) error
	ListPins(appIDs []string) ([]model.Pin, error)
	PutPin(model.Pin) error

	InsertDomain(model.Domain) error
	VerifyDomain(appID, name string, at int64) error
	ReleaseDomain(appID, name string) error
	NoteDomainChecks(checks model.DomainChecks, at int64) error
	HolderOfDomain(name string) (model.Domain, error)
	DeleteDomain(appID, name string) error
	DeleteDomainsOf(appID string) error
	ListDomains(workspaceID, appID string, p model.Page) ([]model.Domain, error)
	DomainsOfApps(appIDs []string) ([]model.Domain, error)

	InsertAppKey(model.AppKey) error
	DeleteAppKey(appID, name string) error
	ListAppKeys(workspaceID, appID string, p model.Page) ([]model.AppKey, error)
	KeysOfApps(appIDs []string) ([]model.AppKey, error)

	PutProtection(model.Protection) error
	ListProtections(workspaceID string) ([]model.Protection, error)
	DeleteProtection(workspaceID, scopeID string, byOperator bool) error
	DeleteProtectionsOf(workspaceID, scopeID string) error
	PutFreeze(model.Freeze) error
	ListFreezes(workspaceID string, p model.Page) ([]model.Freeze, error)
	ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error)
	DeleteFreeze(workspaceID, name string) error
	DeleteFreezesOf(workspaceID, projectID, appID string) error
	ListFrozenApps(workspaceID string) ([]string, error)

	Wake(appIDs []string, due, now int64) error
}

type topologyTx interface {
	LockTopology(appIDs ...string) ([]model.Topology, error)
	ListTopology(appIDs []string) ([]model.Topology, error)
	ListTopologyByEnvironment(environmentID string) ([]model.Topology, error)
	CountTopologyByRegion(regionID string) (int, error)
	PutTopology([]model.Topology) error
	PutRoutes([]model.Route) error
	ListRoutes(appIDs []string) ([]model.Route, error)
	ListRouteObserved(appIDs []string) ([]model.RouteObserved, error)
	Change(regionID string, kind model.ChangeKind, key string, generation int64)

	ListObserved(appIDs []string) ([]model.Observed, error)
	GetInstance(workspaceID, id string) (model.Instance, error)
	ListInstances(model.InstanceFilter, model.Page) ([]model.Instance, error)
	CountInstances(regionIDs []string) (map[string]int, error)
}

type regionTx interface {
	InsertRegion(model.Region) error
	GetRegion(id string) (model.Region, error)
	LockRegion(id string) (model.Region, error)
	GetRegions(ids []string) ([]model.Region, error)
	GetRegionByName(workspaceID, name string) (model.Region, error)
	GetRegionsByName(workspaceID string, names []string) ([]model.Region, error)
	ListRegions(workspaceID string, p model.Page) ([]model.Region, error)
	ListGateways(waiting bool, p model.Page) ([]model.Region, error)
	UpdateRegion(model.Region) error
	DeleteRegion(id string) error
	GrantRegion(regionID, workspaceID string, at int64) error
	RevokeGrant(regionID, workspaceID string) error
	RegionWorkspaces(regionID string) ([]string, error)
	AppsInRegion(regionID string) ([]string, error)

	InsertJoinToken(model.JoinToken) error
	CountQuarantine(regionIDs []string) (map[string]int, error)
	ListQuarantine(regionID string, p model.Page) ([]model.Quarantined, error)
	ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error)

	GetHeads(regionIDs []string) ([]model.Head, error)
	BumpEpoch(regionID string, salt []byte) (model.Head, error)
}

type recordTx interface {
	InsertHistory([]model.History) error
	ListHistory(workspaceID, appID string, p model.Page) ([]model.History, error)
	InsertAudit(rows ...model.Audit) error
	ListAudit(workspaceID string, p model.Page) ([]model.Audit, error)
	GetIdempotency(workspaceID, key string) (model.Idempotency, error)
	InsertIdempotency(model.Idempotency) error
	DeleteIdempotencyKey(workspaceID, key string) error
}

type admissionTx interface {
	LockAdmission(workspaceID string) (model.Admission, error)
	GetAdmission(workspaceID string) (model.Admission, error)
	PutLimits(model.Admission) error
	PutStanding(model.Admission) error
	UsageOf(workspaceID, exceptAppID string) (u model.Usage, unsettled int, err error)
	UnsettledApps(workspaceID, exceptAppID, after string, limit int) ([]model.App, error)
	PutClaims([]model.Claim) error
}

type featureTx interface {
	GetFeatures(workspaceID string) (model.WorkspaceFeatures, error)
	PutFeatures(model.WorkspaceFeatures) error
	InsertTier(model.Tier) error
	LockTier(name string) (model.Tier, error)
	UpdateTier(model.Tier) error
	DeleteTier(name string) error
	ListTiers() ([]model.Tier, error)
	CountWorkspacesOfTier(name string) (int, error)
}

type presetTx interface {
	InsertPreset(model.Preset) error
	GetPreset(workspaceID, name string, version int32) (model.Preset, error)
	ListPresets(workspaceID string) ([]model.Preset, error)
	ListPresetVersions(workspaceID, name string) ([]model.Preset, error)
	ForgetPresetVersions(workspaceID, name string, newest int32) error
	DeletePreset(workspaceID, name string) error
	PresetFloor(workspaceID string) (int32, error)
}

type browserTx interface {
	InsertBrowserSession(model.BrowserSession) error
	GetBrowserSession(hash []byte) (model.BrowserSession, error)
	IsBrowserSession(sessionID string, at int64) (bool, error)
	CountBrowserSessionsOfKey(keyID string, at int64) (int, error)
	ShortenBrowserSession(hash []byte, expiresAt int64) error
	DeleteBrowserSession(hash []byte) error
	DeleteBrowserSessionByID(sessionID string) error
	DeleteBrowserSessionsOfKey(keyID string) error
}

type memberTx interface {
	InsertMember(model.Member) error
	UpdateMember(model.Member) error
	GetMember(workspaceID, id string) (model.Member, error)
	LockMember(workspaceID, id string) (model.Member, error)
	LockMemberByIdentity(workspaceID string, identity []byte) (model.Member, error)
	GetMemberByHash(hash []byte) (model.Member, error)
	ListMembers(workspaceID string, p model.Page) ([]model.Member, error)
	ListMembersNamed(workspaceID, name string, limit int) ([]model.Member, error)
	CountMembers(workspaceID string) (int, error)
	PutSignInRule(model.SignInRule) error
	ListSignInRules(workspaceID string) ([]model.SignInRule, error)
	ListSignInRulesOfIssuer(issuer string) ([]model.SignInRule, error)
	DeleteSignInRule(workspaceID, name string) error
	InsertUsedSignIn(model.UsedSignIn) error
}
