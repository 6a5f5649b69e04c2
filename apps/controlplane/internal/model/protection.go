package model

import (
	"cmp"
	"encoding/json"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// MaxProtections that a workspace may have: each call that makes a rollout reads them.
const MaxProtections = 200

// Protection is what every rollout of its scope has at least.
type Protection struct {
	WorkspaceID string
	// ScopeID is the id of a project or of an environment; empty: the workspace.
	ScopeID string
	// ByOperator: an operator set it, for the workspace. It holds in addition to the workspace's own.
	ByOperator bool
	// Approvals before a rollout starts, 0 for none, by keys of that role at least.
	Approvals    int32
	ApprovalRole windlassv1.Role
	NotDeployer  bool
	// BakeTime of each wave, ms.
	BakeTime int64
	// AutoRollback is on, for every failure.
	AutoRollback bool
	Reason       string
	SetBy        string
	SetAt        int64
}

// StartGate is the gate before a rollout starts. The maker of the rollout deployed it. It is kept as
// JSON: fields are only ever added.
type StartGate struct {
	Role        windlassv1.Role
	Count       int32
	NotDeployer bool
	// DeployedByID is the id of the key that deployed it, DeployedByFamily its family.
	DeployedByID, DeployedByFamily string
	// WaitsSince is when a step first found it shut, 0 for not yet; OpenedAt when one found it open.
	WaitsSince, OpenedAt int64
	// Approvals are never changed in place.
	Approvals []Approval `json:",omitempty"`
}

// Deployer identifies the deployer: the family of the key.
func (g StartGate) Deployer() string { return cmp.Or(g.DeployedByFamily, g.DeployedByID) }

// Asked is the gate as a policy has it.
func (g StartGate) Asked() *windlassv1.Approval {
	return &windlassv1.Approval{Role: g.Role, Count: g.Count, NotDeployer: g.NotDeployer}
}

// Gate returns the gate before the rollout starts; ok is false for none. One that cannot be read
// needs an owner.
func (r Rollout) Gate() (g StartGate, ok bool) {
	if r.StartGate == "" {
		return g, false
	}
	if json.Unmarshal([]byte(r.StartGate), &g) != nil {
		return StartGate{Role: windlassv1.Role_ROLE_OWNER, Count: 1}, true
	}
	return g, true
}

// Encode returns the gate as Rollout.StartGate keeps it.
func (g StartGate) Encode() string {
	b, _ := json.Marshal(g) //nolint:errchkjson // it holds nothing that has no JSON
	return string(b)
}
