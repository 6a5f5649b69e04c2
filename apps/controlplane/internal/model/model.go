// Package model holds the control plane's domain types and state tables: plain data that all other packages
// use. It reads no clock and does no I/O. Times are unix milliseconds, UTC; 0 means not yet.
package model

import (
	"bytes"
	"cmp"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Workspace is a tenant.
type Workspace struct {
	ID, Name        string
	CreatedAt       int64
	UpdatedAt       int64
	ResourceVersion int64
}

// APIKey is a user's credential. Only the SHA-256 of its value is stored.
type APIKey struct {
	ID          string
	WorkspaceID string // empty for an operator's key
	Name        string
	Role        windlassv1.Role
	Prefix      string // first characters of the value, to tell keys apart
	Hash        []byte
	CreatedAt   int64
	ExpiresAt   int64
	RevokedAt   int64
	// MadeBy is the id of the key that made it. FamilyID is the id of its family's first key. Empty: not known.
	MadeBy, FamilyID string
}

// Family returns the id of the key's family. One person may hold all keys of a family.
func (k APIKey) Family() string { return cmp.Or(k.FamilyID, k.ID) }

// Member is a person or a service in a workspace, or on the platform. It signs in with a token of an issuer.
type Member struct {
	ID          string // "mem_..." for people, "svc_..." for services
	WorkspaceID string // empty for members of the platform
	Issuer      string
	Subject     string
	// Name is for people to read. It contains an @, so that it is never the name of an API key.
	Name  string
	Email string // empty: the issuer did not verify an address
	// Claims are the values of each claim of the last token.
	Claims map[string][]string
	// Hash is random. Sessions of the member name it, as sessions of a key name the key's hash.
	Hash       []byte
	CreatedAt  int64
	SignedInAt int64
	RemovedAt  int64
	RemovedBy  string
}

// Prefixes of ids of members.
const (
	PersonPrefix  = "mem"
	ServicePrefix = "svc"
)

// IsService reports whether the member is a service, such as a job of a CI.
func (m Member) IsService() bool { return strings.HasPrefix(m.ID, ServicePrefix+"_") }

// Identity returns the hash by which the member is unique in its workspace.
func (m Member) Identity() []byte { return HashToken(m.Issuer + "\x00" + m.Subject) }

// Clone returns a copy that shares nothing with m.
func (m Member) Clone() Member {
	m.Hash = bytes.Clone(m.Hash)
	claims := maps.Clone(m.Claims)
	for name, values := range claims {
		claims[name] = slices.Clone(values)
	}
	m.Claims = claims
	return m
}

// IsMember reports whether the key stands for a member.
func (k APIKey) IsMember() bool {
	return strings.HasPrefix(k.ID, PersonPrefix+"_") || k.IsService()
}

// IsService reports whether the key stands for a service.
func (k APIKey) IsService() bool { return strings.HasPrefix(k.ID, ServicePrefix+"_") }

// SignInRule gives a role to members whose claims meet all conditions.
type SignInRule struct {
	WorkspaceID string // empty for rules of the platform
	Name        string
	Issuer      string // empty: the issuer at which people sign in
	Role        windlassv1.Role
	Conditions  []ClaimCondition
	// FamilyID is the family of the caller that set the rule. Empty: an operator set it.
	FamilyID string
	SetBy    string
	SetAt    int64
}

// Clone returns a copy that shares nothing with r.
func (r SignInRule) Clone() SignInRule {
	r.Conditions = slices.Clone(r.Conditions)
	return r
}

// ClaimCondition is met by a claim that has the value. A * at the end of the value matches any rest.
type ClaimCondition struct {
	Claim string `json:"claim"`
	Value string `json:"value"`
}

// UsedSignIn is a value of a sign-in that worked once.
type UsedSignIn struct {
	Hash      []byte
	ExpiresAt int64
}

// Limits on members and rules of one workspace, or of the platform.
const (
	MaxMembers     = 10_000
	MaxSignInRules = 100
)

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
	PreviousDeploymentID                      string // the stable deployment that was live before
	RolloutID                                 string // the rollout in flight, empty if none
	LatestVersion                             int32
	// Replicas is what the next deployment gets if its spec does not set it.
	Replicas int32
	// Step counts the workflow's steps. Each begins with a compare-and-set on it, so that a late step of a
	// stalled process cannot write.
	Step               int64
	DeletingSince      int64
	AbandonUnreachable bool
	DeletedAt          int64
	// Domains counts its verified domains. Steps read it and never set it.
	Domains int32
	// AppKeys counts its keys. Steps read it and never set it.
	AppKeys         int32
	CreatedAt       int64
	UpdatedAt       int64
	ResourceVersion int64
}

// AppStep is an app whose workflow takes a step. Changed is true if other fields of the app are stored, too.
type AppStep struct {
	App     App
	Changed bool
}

// Deployment is one immutable version of an app; only its status changes.
type Deployment struct {
	ID, WorkspaceID, AppID string
	Version                int32
	Spec                   *windlassv1.DeploymentSpec
	// SpecHash covers what runs. Replicas, label, message and commit are not in it.
	SpecHash []byte
	// MadeAs is the SpecHash with which its instances are made. It equals the previous version's if the two versions
	// differ only in fields that no instance sees. Empty: its own.
	MadeAs []byte
	// RolesMade has, for each of several roles, a hash of what the role's instances are made of; see RoleHashes.
	// Empty: the spec has one role, or the version was made by a release without such hashes.
	RolesMade     string
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

// Made returns the spec hash with which its instances are made.
func (d *Deployment) Made() []byte {
	if len(d.MadeAs) > 0 {
		return d.MadeAs
	}
	return d.SpecHash
}

// MadeAlike reports whether instances of d can serve as instances of o without a change.
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
	// Traceparent is the trace context of the call that began it. Every step continues that trace.
	Traceparent string
	// Attempts counts its steps that found nothing to do.
	Attempts   int32
	CreatedAt  int64
	Deadline   int64
	FinishedAt int64
	// FrozenSince is when a freeze began to keep it from starting, 0 while no freeze does. FrozenUntil is when to
	// check the freeze again, 0 if only lifting it ends it. FrozenBy is the freeze's name, FrozenScope its scope,
	// FrozenWhy its reason.
	FrozenSince, FrozenUntil         int64
	FrozenBy, FrozenScope, FrozenWhy string
	// OverrideBy is the name of the key that let it start in spite of freezes, and OverrideWhy is the reason.
	// Both are empty without an override.
	OverrideBy, OverrideWhy string
	// StartGate is the encoded gate before it starts, empty for none. See Gate.
	StartGate string
}

// Topology assigns a deployment to a region.
type Topology struct {
	WorkspaceID, AppID, DeploymentID string
	RegionID                         string
	Replicas                         int32
	Weight                           int32 // share of 100, relative to the app's other rows in the region; of a Pin, percent of all traffic
	Generation                       int64 // grows with every change that the agent must see
	Status                           windlassv1.TopologyStatus
	Reason                           string // why it is still stopping, or why no request may wake it
	// Traceparent is the trace context of the decision that made the newest generation. It is sent to the agent.
	Traceparent string
	// Workload identifies the row's workload in its region, by the deployment that started it. WorkloadVersion is that
	// deployment's version. Empty and 0: the row's own deployment started it.
	Workload        string
	WorkloadVersion int32
	// Transferred is true while another row of the region has the workload. This row has no replicas, and
	// nothing in the region, until it takes the workload back or stops.
	Transferred bool
	// MaxUnavailable is how many replicas may be out of service at a time while the region replaces instances. 0
	// means one. For a pool, 0 means that none is out of service, and that one more instance exists meanwhile.
	MaxUnavailable int32
	// Roles has the number of instances of each role in the region's whole pool, whatever the row's share of it. It is
	// empty unless the layout is pooled. See RoleCounts.
	Roles string
	// Moving has the names of the roles whose instances the region replaces since the row took a pool over. See
	// MovingRoles.
	Moving    string
	CreatedAt int64
	UpdatedAt int64
}

// Assignment is a deployment in a region to which it is or was assigned.
type Assignment struct {
	Topology
	// UnderWay is true if its app has a rollout in flight, which waits for reports of regions.
	UnderWay bool
}

// AtZero reports whether the row has no replicas, and requests for the app wait. spec is the deployment's spec in the
// region.
func (t Topology) AtZero(spec *windlassv1.DeploymentSpec) bool {
	return t.Replicas == 0 && spec.GetRouting().GetColdStart() != nil
}

// WakeTo returns how many replicas the region starts by itself when a request comes, 0 for none. For a pool, it
// returns the whole pool. spec is the deployment's spec in the region.
func (t Topology) WakeTo(spec *windlassv1.DeploymentSpec) int32 {
	switch {
	case !t.AtZero(spec) || t.Reason != "":
		return 0
	case IsPooled(spec):
		return pool.Whole
	}
	return 1
}

// Assigned reports whether the row's region should run the deployment, maybe with 0 replicas. Otherwise nothing of the
// row should exist in the region.
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

// WorkloadKey identifies the workload that the row has in its region.
func (t Topology) WorkloadKey() string { return cmp.Or(t.Workload, t.DeploymentID) }

// TopologyCount is how many rows a region has in a status.
type TopologyCount struct {
	RegionID string
	Status   windlassv1.TopologyStatus
	Rows     int
}

// ActiveRolloutCount is how many rollouts are in flight, and when the oldest was created, 0 without one.
type ActiveRolloutCount struct {
	Rollouts int
	OldestAt int64
}

// Route is the app's entry in a region. Its targets and their weights are in the topology rows.
type Route struct {
	WorkspaceID, AppID, RegionID string
	Hosts                        []string
	Generation                   int64
	UpdatedAt                    int64
	// Policy is the RoutingPolicy of the version that was live at Generation. See EncodeRouting.
	Policy []byte
	// Keys are the app's keys. See EncodeKeys.
	Keys []byte
}

// Guard orders reports of one region: fence<<40 | sequence. A session sends
// fewer than 2^40 reports and a region has fewer than 2^23 sessions.
type Guard int64

// NewGuard joins a session's fence and a report's sequence.
func NewGuard(fence, sequence int64) Guard { return Guard(fence<<40 | sequence) }

// Observed is the newest report of a region's agent about one deployment.
type Observed struct {
	WorkspaceID, AppID, DeploymentID, RegionID string
	Guard                                      Guard
	// These fields say how far the agent applied the desired state.
	AppliedEpoch      int64
	AppliedGeneration int64
	Phase             int32 // agentv1.AppliedState_Phase
	Code              string
	Message           string
	Retryable         bool
	Deleted           bool
	// These are counts, as of CountsGeneration.
	CountsGeneration                        int64
	Pending, Running, Ready, Draining, Fail int32
	ReadyReplicas                           int32
	Doomed                                  int32
	Reason                                  string // the most informative reason of the instances that are not ready
	ReasonMessage                           string
	Restarts                                int32
	SlowestStartMS                          int64
	RoleCounts                              string // for several roles; see Counts
	UpdatedAt                               int64
}

// Instances returns how many instances exist, without terminated ones.
func (o Observed) Instances() int32 {
	return o.Pending + o.Running + o.Ready + o.Draining + o.Fail
}

// RouteObserved is the newest report of a region's agent about an app's routes.
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

// Instance is a row for people to read. Decisions read Observed.
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
	ID, WorkspaceID, Name string // WorkspaceID is empty for a region of the platform
	Labels                map[string]string
	Status                windlassv1.RegionStatus
	Message               string
	// SessionID names the current session. A report of any other session is refused.
	SessionID    string
	SessionEpoch int64
	SessionFence int64
	// SessionSequence is the sequence of the newest report with content. If an agent knows of a later report, the
	// database lost it.
	SessionSequence     int64
	LeaseExpiresAt      int64 // on the database's clock
	AgentVersion        string
	AgentRuntime        string
	AgentFeatures       []string
	GatewayURL          string // where its gateways are reached, empty if unknown
	ApprovedGatewayURL  string // the URL that an operator approved, empty for none
	ReceivedRevision    int64
	LastReportAt        int64
	Capacity            []byte // agentv1.Capacity, serialised
	CredentialNotBefore int64  // credentials issued before it are revoked
	CreatedAt           int64
	UpdatedAt           int64
	ResourceVersion     int64
}

// DeletedRegion replaces the name of a region that was deleted.
const DeletedRegion = "a deleted region"

// ShownName returns the region's name for people. The zero region is shown as DeletedRegion.
func (r Region) ShownName() string { return cmp.Or(r.Name, DeletedRegion) }

// GatewayApproved reports whether gateways of the platform's regions may learn the region's GatewayURL. The
// agent reports the URL, and a tenant runs the agent of a workspace's region.
func (r Region) GatewayApproved() bool {
	return r.GatewayURL != "" && (r.WorkspaceID == "" || r.ApprovedGatewayURL == r.GatewayURL)
}

// InSession reports whether r and other have the same session.
func (r Region) InSession(other Region) bool {
	return r.SessionID == other.SessionID && r.SessionEpoch == other.SessionEpoch && r.SessionFence == other.SessionFence
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

// BrowserSession is a value that signs a browser in. It is the value of a session's cookie, or of a link that
// begins one session.
type BrowserSession struct {
	// Hash is the hash of the value.
	Hash []byte
	// SessionID is the same for all values of a session.
	SessionID string
	// KeyID is the API key that signed in. The session has its rights.
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

// HeadSum is a sum over all heads: their number, their epochs, their revisions and a checksum of their
// chains. Two equal sums mean that no head moved in between.
type HeadSum struct {
	Regions, Epochs, Revisions, Chains int64
}

// With returns the sum with one more head.
func (s HeadSum) With(h Head) HeadSum {
	return HeadSum{
		Regions: s.Regions + 1, Epochs: s.Epochs + h.Epoch, Revisions: s.Revisions + h.Revision,
		Chains: s.Chains ^ int64(crc32.ChecksumIEEE(h.Chain)), // as CRC32 of SQL
	}
}

// Without returns the sum with one head less.
func (s HeadSum) Without(h Head) HeadSum {
	return HeadSum{
		Regions: s.Regions - 1, Epochs: s.Epochs - h.Epoch, Revisions: s.Revisions - h.Revision,
		Chains: s.Chains ^ int64(crc32.ChecksumIEEE(h.Chain)),
	}
}

// Change is one entry of a region's feed. It has no payload, because the state of its key is read when it is
// sent.
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
	// Delete is true for a tombstone. It has the deployment's ids, and in Topology the row's workload. The other
	// fields below are empty.
	Delete bool

	// These are for KindDeployment. They have only the fields that are sent to agents. Deployment has its ids,
	// version, spec, spec hash, and resolved image.
	Topology   Topology
	Deployment Deployment
	App        AppNames
	// SecretVersions has, by name, the versions of the secrets that the spec refers to in the region.
	SecretVersions map[string]int32
	// Scaling is the app's policy, nil for none. Alone is empty without one.
	Scaling *windlassv1.ScalingPolicy
	Alone   AloneFacts

	// These are for KindRoutes. Without hosts, the app has none in the region.
	Route   Route
	Targets []RouteTarget
}

// AppNames are the fields of an app that are sent to agents. ProjectName and EnvironmentName are empty when those rows
// are deleted.
type AppNames struct {
	Name                         string
	ProjectID, EnvironmentID     string
	ProjectName, EnvironmentName string
}

// RouteTarget is one weighted deployment of a route.
type RouteTarget struct {
	DeploymentID string
	Weight       int32
	// Workload is the workload that serves, empty for the deployment's own.
	Workload string
	// Pinned means that Weight is percent of all traffic, not of the rest that pins leave. See Shares.
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

// Audit is a record of a call that changed something, was refused, or read secrets or logs.
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

// Idempotency is the stored answer to a mutation.
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
