package model

import (
	"cmp"
	"encoding/json"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// MaxProtections is how many protections a workspace may have. Each call that makes a rollout reads them.
const MaxProtections = 200

// Protection is the least that every rollout of its scope has.
type Protection struct {
	WorkspaceID string
	// ScopeID is the id of a project or of an environment; empty: the workspace.
	ScopeID string
	// ByOperator is true if an operator set it, for the workspace. It adds to the workspace's own.
	ByOperator bool
	// Approvals is how many approvals a rollout needs before it starts, each by a key of at least ApprovalRole.
	Approvals    int32
	ApprovalRole windlassv1.Role
	NotDeployer  bool
	// BakeTime is the least bake time of each wave, in ms.
	BakeTime int64
	// AutoRollback makes a rollout go back after every failure.
	AutoRollback bool
	Reason       string
	SetBy        string
	SetAt        int64
}

// StartGate is the gate before a rollout starts. The key that made the rollout counts as its deployer. The
// gate is stored as JSON: fields are only ever added.
type StartGate struct {
	Role        windlassv1.Role
	Count       int32
	NotDeployer bool
	// DeployedByID is the id of the key that deployed it, DeployedByFamily its family.
	DeployedByID, DeployedByFamily string
	// WaitsSince is when a step first found it shut, and OpenedAt when a step found it open. 0: not yet.
	WaitsSince, OpenedAt int64
	// Approvals are never changed in place.
	Approvals []Approval `json:",omitempty"`
}

// Deployer returns the family of the key that deployed it.
func (g StartGate) Deployer() string { return cmp.Or(g.DeployedByFamily, g.DeployedByID) }

// Asked returns the gate in the form of a policy's gates.
func (g StartGate) Asked() *windlassv1.Approval {
	return &windlassv1.Approval{Role: g.Role, Count: g.Count, NotDeployer: g.NotDeployer}
}

// Gate returns the gate before the rollout starts. ok is false for none. A gate that cannot be decoded needs
// the approval of an owner.
func (r Rollout) Gate() (g StartGate, ok bool) {
	if r.StartGate == "" {
		return g, false
	}
	if json.Unmarshal([]byte(r.StartGate), &g) != nil {
		return StartGate{Role: windlassv1.Role_ROLE_OWNER, Count: 1}, true
	}
	return g, true
}

// Encode returns the gate in the form of Rollout.StartGate.
func (g StartGate) Encode() string {
	b, _ := json.Marshal(g) //nolint:errchkjson // it holds nothing that has no JSON
	return string(b)
}
