// Package model holds the control plane's domain types: plain data that every
// other package speaks in, with the state tables and nothing else. It reads no
// clock and does no I/O. Times are unix milliseconds, UTC; 0 means not yet.
package model

import (
	"bytes"
	"cmp"
	"hash/crc32"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Workspace is a tenant.
type Workspace struct {
	ID, Name        string
	CreatedAt       int64
	UpdatedAt       int64
	ResourceVersion int64
}

// APIKey is a user's credential. Only the SHA-256 of its value is kept.
type APIKey struct {
	ID          string
	WorkspaceID string // empty for an operator's
	Name        string
	Role        windlassv1.Role
	Prefix      string // first characters of the value, to tell keys apart
	Hash        []byte
	CreatedAt   int64
	ExpiresAt   int64
	RevokedAt   int64
	// MadeBy is the id of the key that made it, and FamilyID that of the first key of those that
	// made each other. Empty: not known.
	MadeBy, FamilyID string
}

// Family identifies the keys that one key made, directly or not, and that key. One person may hold
// all of them.
func (k APIKey) Family() string { return cmp.Or(k.FamilyID, k.ID) }

// Project groups apps and environments.
type Project struct {
	ID, WorkspaceID, Name string
	CreatedAt             int64
	UpdatedAt             int64
	ResourceVersion       int64
}

// Environment owns variables and secrets.
type Environment struct {
	ID, WorkspaceID, ProjectID, Name string
	Variables                        map[string]string
	CreatedAt                        int64
	UpdatedAt                        int64
	ResourceVersion                  int64
}

// Secret is one version of a secret; Ciphertext is bound to its identity.
type Secret struct {
	WorkspaceID, EnvironmentID, Name string
	Version                          int32
	Ciphertext                       []byte
	CreatedAt                        int64 // of the first version
	UpdatedAt                        int64 // of this one
}

// App is a long-lived, routed model service.
type App struct {
	ID, WorkspaceID, ProjectID, EnvironmentID string
	Name, Description                         string
	Status                                    windlassv1.AppStatus
	Message                                   string
	LiveDeploymentID                          string
	PreviousDeploymentID                      string // previous stable
	RolloutID                                 string // in flight, empty if none
	LatestVersion                             int32
	// Replicas that the next deployment gets when its spec does not say.
	Replicas int32
	// Step counts the workflow's steps: each begins with a compare-and-set on it,
	// so that a stalled replica's late step cannot write.
	Step               int64
	DeletingSince      int64
	AbandonUnreachable bool
	DeletedAt          int64
	// Domains of it that were verified, a count. Steps read it and never set it.
	Domains int32
	// AppKeys that it has, a count, as Domains is.
	AppKeys         int32
	CreatedAt       int64
	UpdatedAt       int64
	ResourceVersion int64
}

// AppStep is an app whose workflow takes a step. Changed: there is more to store of it
// than that.
type AppStep struct {
	App     App
	Changed bool
}

// Deployment is one immutable version of an app; only its status changes.
type Deployment struct {
	ID, WorkspaceID, AppID string
	Version                int32
	Spec                   *windlassv1.DeploymentSpec
	// SpecHash covers what runs: not replicas, label, message or commit.
	SpecHash []byte
	// MadeAs is the SpecHash by which its instances are made: that of the version before it,
	// where the two differ only in what no instance sees. Empty: its own.
	MadeAs        []byte
	ResolvedImage string
	Status        windlassv1.DeploymentStatus
	Reason        string
	Message       string
	Source        string // deploy, environment, secret, rollback
	FromVersion   int32
	CreatedBy     string
	Stable        bool
	CreatedAt     int64
	ReadyAt       int64
	EndedAt       int64
}

// Made is the spec hash by which its instances are made.
func (d *Deployment) Made() []byte {
	if len(d.MadeAs) > 0 {
		return d.MadeAs
	}
	return d.SpecHash
}

// MadeAlike reports whether instances of the one are instances of the other, as they are.
func (d *Deployment) MadeAlike(o *Deployment) bool {
	return len(d.Made()) > 0 && bytes.Equal(d.Made(), o.Made()) && d.ResolvedImage == o.ResolvedImage
}

// Rollout is the move of an app to a deployment.
type Rollout struct {
	ID, WorkspaceID, AppID string
	DeploymentID           string
	Version                int32
	FromDeploymentID       string
	FromVersion            int32
	Status                 windlassv1.RolloutStatus
	Reason                 string
	Message                string
	CreatedBy              string
	CancelRequested        bool
	CancelledBy            string
	CancelWhy              string
	// Traceparent of the call that began it; every step continues that trace.
	Traceparent string
	// Attempts counts how often its steps looked and found nothing to do.
	Attempts   int32
	CreatedAt  int64
	Deadline   int64
	FinishedAt int64
	// HeldSince is the time since which a freeze keeps it from starting, 0 for not, or no
	// longer. HeldUntil is when to look at the freeze again, 0 for when it is lifted. HeldBy is
	// the freeze's name, HeldScope its scope, HeldWhy its reason.
	HeldSince, HeldUntil       int64
	HeldBy, HeldScope, HeldWhy string
	// OverrideBy let it start in spite of freezes, OverrideWhy says why; both are empty without
	// an override.
	OverrideBy, OverrideWhy string
	// StartGate is the encoded gate before it starts, empty for none: see Gate.
	StartGate string
}

// Topology says that a deployment is to run in a region.
type Topology struct {
	WorkspaceID, AppID, DeploymentID string
	RegionID                         string
	Replicas                         int32
	Weight                           int32 // of 100, relative to the app's others there; of a Pin, percent of all
	Generation                       int64 // grows with every change that the agent must see
	Status                           windlassv1.TopologyStatus
	Reason                           string // why it is still stopping
	// Traceparent of the decision behind the newest generation; it travels to the
	// agent.
	Traceparent string
	// Workload that the row has in its region, by the id of the deployment that
	// started it, and that deployment's version. Empty and 0: its own.
	Workload        string
	WorkloadVersion int32
	// Transferred: another row of the region has the workload. The region has nothing of
	// this one, which has no replicas, until it takes the workload back or stops.
	Transferred bool
	// MaxUnavailable is how many replicas at a time may be out of service while the region
	// replaces instances; 0: one.
	MaxUnavailable int32
	CreatedAt      int64
	UpdatedAt      int64
}

// Assignment is a deployment in a region to which it is or was assigned.
type Assignment struct {
	Topology
	// UnderWay: its app has a rollout in flight, which waits for what regions say.
	UnderWay bool
}

// WakeTo is how many replicas the region starts by itself when a request comes; 0: none. spec is the
// deployment's in the region.
func (t Topology) WakeTo(spec *windlassv1.DeploymentSpec) int32 {
	if t.Replicas > 0 || spec.GetRouting().GetColdStart() == nil {
		return 0
	}
	return 1
}

// Assigned reports whether the row's region should run it, if with no replicas. Otherwise the region
// should have nothing of it.
func (t Topology) Assigned() bool {
	return !t.Transferred && (t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING ||
		t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED)
}

// Tombstone returns the item that tells the region to remove everything of the row.
func (t Topology) Tombstone() DesiredItem {
	return DesiredItem{
		RegionID: t.RegionID, Kind: KindDeployment, Key: t.DeploymentID, Generation: t.Generation, Delete: true,
		Deployment: Deployment{ID: t.DeploymentID, WorkspaceID: t.WorkspaceID, AppID: t.AppID},
		Topology:   Topology{Workload: t.Workload, WorkloadVersion: t.WorkloadVersion, Transferred: t.Transferred},
	}
}

// WorkloadKey names the workload that the row has in its region.
func (t Topology) WorkloadKey() string { return cmp.Or(t.Workload, t.DeploymentID) }

// TopologyCount is how many rows a region has in a status.
type TopologyCount struct {
	RegionID string
	Status   windlassv1.TopologyStatus
	Rows     int
}

// ActiveRolloutCount is how many rollouts are in flight, and when the oldest was created: 0 without one.
type ActiveRolloutCount struct {
	Rollouts int
	OldestAt int64
}

// Route is the app's entry in a region. Its targets are the weights of the
// topology rows; only the counter, the hosts and the policy are its own.
type Route struct {
	WorkspaceID, AppID, RegionID string
	Hosts                        []string
	Generation                   int64
	UpdatedAt                    int64
	// Policy is the RoutingPolicy of the version that was live at Generation; see
	// EncodeRouting.
	Policy []byte
	// Keys are the app's; see EncodeKeys.
	Keys []byte
}

// Guard orders reports of one region: fence<<40 | sequence. A session sends
// fewer than 2^40 reports and a region has fewer than 2^23 sessions.
type Guard int64

// NewGuard joins a session's fence and a report's sequence.
func NewGuard(fence, sequence int64) Guard { return Guard(fence<<40 | sequence) }

// Observed is what a region's agent last said of one deployment.
type Observed struct {
	WorkspaceID, AppID, DeploymentID, RegionID string
	Guard                                      Guard
	// Applied: what the agent made of the desired state.
	AppliedEpoch      int64
	AppliedGeneration int64
	Phase             int32 // agentv1.AppliedState_Phase
	Code              string
	Message           string
	Retryable         bool
	Deleted           bool
	// Counts, as of CountsGeneration.
	CountsGeneration                        int64
	Pending, Running, Ready, Draining, Fail int32
	ReadyReplicas                           int32
	Doomed                                  int32
	Reason                                  string // most telling among those not ready
	ReasonMessage                           string
	Restarts                                int32
	SlowestStartMS                          int64
	UpdatedAt                               int64
}

// Instances that exist, terminated ones aside.
func (o Observed) Instances() int32 {
	return o.Pending + o.Running + o.Ready + o.Draining + o.Fail
}

// RouteObserved is what a region's agent last said of an app's routes.
type RouteObserved struct {
	AppID, RegionID string
	Guard           Guard
	Epoch           int64
	Generation      int64
	Phase           int32 // agentv1.AppliedState_Phase
	Code            string
	Message         string
	UpdatedAt       int64
}

// Instance is a row for people; decisions read Observed.
type Instance struct {
	ID, WorkspaceID, AppID, DeploymentID, RegionID string
	Role                                           string
	Group, Slot                                    int32
	Status                                         windlassv1.InstanceStatus
	Reason, Message                                string
	Address                                        string
	RuntimeName                                    string
	Restarts                                       int32
	GPUs                                           []string
	Guard                                          Guard
	StartedAt, ReadyAt, UpdatedAt                  int64
}

// Region is a place that runs instances.
type Region struct {
	ID, WorkspaceID, Name string // no workspace: the platform's
	Labels                map[string]string
	Status                windlassv1.RegionStatus
	Message               string
	// The current session. A report of any other is refused.
	SessionID    string
	SessionEpoch int64
	SessionFence int64
	// SessionSequence of the newest report that said anything. A session that was
	// told of a later one was told so by a database that is lost.
	SessionSequence     int64
	LeaseExpiresAt      int64 // on the database's clock
	AgentVersion        string
	AgentRuntime        string
	AgentFeatures       []string
	GatewayURL          string // where its gateways are reached; empty: nowhere that is known
	ApprovedGatewayURL  string // the one that an operator approved; empty: none
	ReceivedRevision    int64
	LastReportAt        int64
	Capacity            []byte // agentv1.Capacity, serialised
	CredentialNotBefore int64  // credentials issued before it are revoked
	CreatedAt           int64
	UpdatedAt           int64
	ResourceVersion     int64
}

// DeletedRegion stands for the name of a region that was deleted.
const DeletedRegion = "a deleted region"

// ShownName is the region's name for people; that of the zero region is DeletedRegion.
func (r Region) ShownName() string { return cmp.Or(r.Name, DeletedRegion) }

// GatewayApproved reports whether gateways of the platform's regions may be told of the region's.
// The agent tells where those are, and of a workspace's region it is a tenant's.
func (r Region) GatewayApproved() bool {
	return r.GatewayURL != "" && (r.WorkspaceID == "" || r.ApprovedGatewayURL == r.GatewayURL)
}

// InSession reports whether what names its session as of does is of the region's current one.
func (r Region) InSession(of Region) bool {
	return r.SessionID == of.SessionID && r.SessionEpoch == of.SessionEpoch && r.SessionFence == of.SessionFence
}

// JoinToken lets one agent join once.
type JoinToken struct {
	ID, RegionID string
	Hash         []byte
	CreatedAt    int64
	ExpiresAt    int64
	UsedAt       int64
	UsedBy       string // join id of the agent that used it
}

// BrowserSession is a value that signs a browser in: that of a session's cookie, or of a link that
// begins a session once.
type BrowserSession struct {
	// Hash of the value.
	Hash []byte
	// SessionID is the same for all values that a session ever had.
	SessionID string
	// The API key that signed in, whose rights the session has.
	WorkspaceID, KeyID string
	KeyHash            []byte
	IsLink             bool
	SignedInAt         int64
	ExpiresAt          int64
}

// Quarantined is a workload that a region runs and the control plane does not know.
type Quarantined struct {
	RegionID, Key string
	Generation    int64
	Instances     int32
	Since         int64
	ApprovedAt    int64
}

// ChangeKind is the kind of a changed key, equal to agentv1.ItemKind.
type ChangeKind int32

// Kinds of change.
const (
	KindDeployment ChangeKind = 1
	KindRoutes     ChangeKind = 2
)

// Head is the newest revision of a region.
type Head struct {
	RegionID string
	Epoch    int64
	Revision int64
	Chain    []byte // 32 bytes
}

// HeadSum is all heads in one: how many there are, their epochs and revisions added up,
// and a checksum of their chains. Two that are equal say that no head moved in between.
type HeadSum struct {
	Regions, Epochs, Revisions, Chains int64
}

// With is the sum with one more head.
func (s HeadSum) With(h Head) HeadSum {
	return HeadSum{
		Regions: s.Regions + 1, Epochs: s.Epochs + h.Epoch, Revisions: s.Revisions + h.Revision,
		Chains: s.Chains ^ int64(crc32.ChecksumIEEE(h.Chain)), // as CRC32 of SQL
	}
}

// Without is the sum with one head less.
func (s HeadSum) Without(h Head) HeadSum {
	return HeadSum{
		Regions: s.Regions - 1, Epochs: s.Epochs - h.Epoch, Revisions: s.Revisions - h.Revision,
		Chains: s.Chains ^ int64(crc32.ChecksumIEEE(h.Chain)),
	}
}

// Change is one entry of a region's feed. It has no payload: the state of its
// key is read when it is sent.
type Change struct {
	RegionID   string
	Revision   int64
	Kind       ChangeKind
	Key        string
	Generation int64
	ID         string
	Chain      []byte
}

// DesiredItem is the newest desired state of one key in one region, as the
// store reads it for the agents.
type DesiredItem struct {
	RegionID   string
	Kind       ChangeKind
	Key        string
	Generation int64
	// Delete: a tombstone. Nothing below is set but Deployment's ids, and of Topology
	// the workload that the row had.
	Delete bool

	// For KindDeployment. Of the row and of the deployment what an agent is told is set: of
	// the latter its ids, version, spec with its hash, and resolved image.
	Topology   Topology
	Deployment Deployment
	App        AppNames
	// SecretVersions by name, of the secrets that the spec refers to in the region.
	SecretVersions map[string]int32
	// Scaling is the app's policy, nil for none.
	Scaling *windlassv1.ScalingPolicy

	// For KindRoutes. No hosts: the app has none in the region.
	Route   Route
	Targets []RouteTarget
}

// AppNames is what an agent is told of an app. ProjectName and EnvironmentName are empty
// when those rows are gone.
type AppNames struct {
	Name                         string
	ProjectID, EnvironmentID     string
	ProjectName, EnvironmentName string
}

// RouteTarget is one weighted deployment of a route.
type RouteTarget struct {
	DeploymentID string
	Weight       int32
	// Workload that serves, empty for the deployment's own.
	Workload string
	// Pinned: Weight is percent of all, and not of what pins leave; see Shares.
	Pinned bool
}

// History is one decision about an app.
type History struct {
	ID, WorkspaceID, AppID  string
	At                      int64
	What, Why, Who          string
	RolloutID, DeploymentID string
	Version                 int32
	RegionID                string
}

// Audit is one call that changed something.
type Audit struct {
	ID, WorkspaceID string
	At              int64
	Actor, ActorID  string
	Source          string
	Procedure       string
	ResourceKind    string
	ResourceID      string
	Before, After   string // JSON, secrets redacted
}

// Idempotency remembers the answer to a mutation.
type Idempotency struct {
	WorkspaceID, Key string
	RequestHash      []byte
	Procedure        string
	Response         []byte
	CreatedAt        int64
}

// Wake asks for a step of an app's workflow at Due.
type Wake struct {
	AppID  string
	Due    int64
	SentAt int64
}
