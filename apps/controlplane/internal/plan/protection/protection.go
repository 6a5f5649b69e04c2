// Package protection makes a rollout's policy as strict as the protections of its app require. It is pure.
package protection

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// For returns the protections that apply to the app: those of its workspace, project and environment.
func For(all []model.Protection, app model.App) (out []model.Protection) {
	for _, p := range all {
		if p.WorkspaceID == app.WorkspaceID && slices.Contains([]string{"", app.ProjectID, app.EnvironmentID}, p.ScopeID) {
			out = append(out, p)
		}
	}
	return out
}

// Scope describes the scope of a protection that applies to the app.
func Scope(p model.Protection, app model.App) string {
	switch {
	case p.ByOperator:
		return "workspace, by an operator"
	case p.ScopeID == "":
		return "workspace"
	case p.ScopeID == app.ProjectID:
		return "project"
	}
	return "environment"
}

// Stricter returns an approval that is at least as strict as both, or nil if both are nil.
func Stricter(a, b *windlassv1.Approval) *windlassv1.Approval {
	if a == nil || b == nil {
		if a == nil {
			a = b
		}
		return proto.CloneOf(a)
	}
	return &windlassv1.Approval{
		Role: max(model.ApproverRole(a), model.ApproverRole(b)), Count: max(1, a.GetCount(), b.GetCount()), NotDeployer: a.GetNotDeployer() || b.GetNotDeployer(),
	}
}

// ApprovalOf returns the approval that the protection requires, nil for none.
func ApprovalOf(p model.Protection) *windlassv1.Approval {
	if p.Approvals == 0 {
		return nil
	}
	return &windlassv1.Approval{Role: p.ApprovalRole, Count: p.Approvals, NotDeployer: p.NotDeployer}
}

// Tighten returns a copy of the policy that is at least as strict as the protections of the app. why
// describes each change, with the protection that requires it and its reason.
func Tighten(policy *windlassv1.RolloutPolicy, of []model.Protection, app model.App) (out *windlassv1.RolloutPolicy, why []string) {
	out = proto.CloneOf(policy)
	if out == nil {
		out = &windlassv1.RolloutPolicy{}
	}
	for _, p := range of {
		var did []string
		if asked := ApprovalOf(p); asked != nil {
			if now := Stricter(out.StartApproval, asked); !proto.Equal(now, out.StartApproval) {
				out.StartApproval = now
				did = append(did, "it starts after "+Text(now))
			}
		}
		if p.AutoRollback && requireAutoRollback(out) {
			did = append(did, "it goes back by itself after every failure")
		}
		if p.BakeTime > 0 && requireBake(out, p.BakeTime) {
			did = append(did, fmt.Sprintf("each wave bakes for at least %s", time.Duration(p.BakeTime)*time.Millisecond))
		}
		for _, text := range did {
			why = append(why, fmt.Sprintf("%s, by the protection of the %s: %s", text, Scope(p, app), p.Reason))
		}
	}
	return out, why
}

// Text describes an approval for people.
func Text(a *windlassv1.Approval) string {
	text := model.ApprovalText(int(a.GetCount()), model.ApproverRole(a))
	if a.GetNotDeployer() {
		text += ", not by the deployer"
	}
	return text
}

// requireAutoRollback makes the rollout go back after every failure. It reports whether that changed p.
func requireAutoRollback(p *windlassv1.RolloutPolicy) (changed bool) {
	if a := p.GetAutoRollback(); a != nil && (a.Enabled != nil && !a.GetEnabled() || len(a.GetConditions()) > 0) {
		a.Enabled, a.Conditions, changed = nil, nil, true
	}
	for _, w := range p.GetWaves() {
		if w.GetOnFailure() == windlassv1.Wave_ON_FAILURE_PAUSE {
			w.OnFailure, changed = windlassv1.Wave_ON_FAILURE_ROLLBACK_ALL, true
		}
	}
	return changed
}

// requireBake makes each wave bake for at least least, in ms. It reports whether that changed p.
func requireBake(p *windlassv1.RolloutPolicy, least int64) (changed bool) {
	if len(p.GetWaves()) == 0 {
		wave := &windlassv1.Wave{MaxParallel: 1}
		if a := p.GetAutoRollback(); a != nil && a.Enabled != nil && !a.GetEnabled() {
			wave.OnFailure = windlassv1.Wave_ON_FAILURE_PAUSE
		}
		p.Waves = []*windlassv1.Wave{wave}
	}
	bake := durationpb.New(time.Duration(least) * time.Millisecond)
	for _, w := range p.GetWaves() {
		if w.GetBakeTime().AsDuration() < bake.AsDuration() {
			w.BakeTime, changed = bake, true
		}
	}
	return changed
}

// Bakes reports whether one of the protections requires a bake time.
func Bakes(of []model.Protection) bool {
	return slices.ContainsFunc(of, func(p model.Protection) bool { return p.BakeTime > 0 })
}

// Approves reports whether one of the protections requires an approval.
func Approves(of []model.Protection) bool {
	return slices.ContainsFunc(of, func(p model.Protection) bool { return p.Approvals > 0 })
}
