package api

import (
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// rolloutStateOf reads how the locked app's rollouts go.
func (c versionMutation) rolloutStateOf(app model.App) (model.RolloutState, error) {
	none := model.RolloutState{AppID: app.ID, WorkspaceID: app.WorkspaceID}
	if app.LatestVersion == 0 {
		return none, nil
	}
	rows, err := c.GetRolloutStates([]string{app.ID})
	if err != nil {
		return none, fmt.Errorf("read rollout state of app %s: %w", app.ID, err)
	}
	if len(rows) == 0 {
		return none, nil
	}
	return rows[0], nil
}

func (c versionMutation) putRolloutState(s model.RolloutState) error {
	s.UpdatedAt = c.at
	if err := c.PutRolloutState(s); err != nil {
		return fmt.Errorf("store rollout state of app %s: %w", s.AppID, err)
	}
	return nil
}

// setPolicy has the app's next rollouts go by another policy, nil for none. It stores
// the change, and tells it.
func (c versionMutation) setPolicy(app model.App, s *model.RolloutState, policy *windlassv1.RolloutPolicy) error {
	if proto.Equal(s.Policy, policy) {
		return nil
	}
	if err := c.hold(c.mayLoosen(s.Policy, policy)); err != nil {
		return err
	}
	why := "rollouts go by the policy that came with it from now on"
	if policy == nil {
		why = "rollouts go region by region, replica by replica from now on: no policy came with it"
	}
	if s.Progress.Active(app.RolloutID) {
		why += "; the one in flight keeps its own"
	}
	s.Policy = policy
	c.log(app, model.History{What: "RolloutPolicyChanged", Why: why})
	return c.putRolloutState(*s)
}

// mayLoosen fails for a caller who may not approve at a gate that the next policy does not keep.
// Otherwise a deployer who has to wait at a gate could deploy without it.
func (c versionMutation) mayLoosen(was, next *windlassv1.RolloutPolicy) error {
	for _, g := range plan.LoosenedGates(was, next) {
		if c.by.Role >= g.Role() {
			continue
		}
		kept := &windlassv1.Approval{Role: g.Role(), Count: max(1, g.Gate.GetCount()), NotDeployer: g.Gate.GetNotDeployer()}
		text := fmt.Sprintf("{role: %s, count: %d, notDeployer: %t}", model.RoleName(kept.GetRole()), kept.GetCount(), kept.GetNotDeployer())
		return rpc.ErrorWith(connect.CodePermissionDenied, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER, Field: "rollout." + g.Field,
			Fix: fmt.Sprintf("Keep approval %s there, before no more traffic and no other regions, or have a key of role %s deploy the change.", text, model.RoleName(g.Role())),
		}, fmt.Sprintf("the app's policy asks for approval %s, and this one loosens it: that takes role %s", text, model.RoleName(g.Role())))
	}
	return nil
}

// counted are the rows that the app is to count by in its workspace's quotas. A staged
// rollout's rows say what regions run for now: what counts is what they are to come to.
func counted(s model.RolloutState, app model.App, live, next *model.Deployment, rows []model.Topology) []model.Topology {
	if live == nil {
		return rows
	}
	if !s.Progress.Active(app.RolloutID) {
		return countedBehind(s, app, live, rows)
	}
	var out []model.Topology
	for _, t := range rows {
		if t.DeploymentID == live.ID {
			if n, ok := s.Progress.OldSizes[t.RegionID]; ok {
				t.Replicas = n
			}
			out = append(out, t)
		}
	}
	if next == nil || next.ID == live.ID {
		return out
	}
	for _, id := range keysOf(s.Progress.Sizes) {
		out = append(out, model.Topology{
			AppID: app.ID, DeploymentID: next.ID, RegionID: id, Replicas: s.Progress.Sizes[id],
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		})
	}
	return out
}

// countedBehind are the live deployment's rows, with those that regions that are behind are
// to come to.
func countedBehind(s model.RolloutState, app model.App, live *model.Deployment, rows []model.Topology) []model.Topology {
	if s.Progress == nil || len(s.Progress.Behind) == 0 {
		return rows
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(t model.Topology) bool { return s.Progress.BehindIn(t.RegionID) != nil })
	for _, b := range s.Progress.Behind {
		rows = append(rows, model.Topology{
			AppID: app.ID, DeploymentID: live.ID, RegionID: b.RegionID, Replicas: behindSize(b),
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		})
	}
	return rows
}

func keysOf[V any](m map[string]V) []string {
	set := map[string]bool{}
	for id := range m {
		set[id] = true
	}
	return keys(set)
}

// scaleBehind scales the regions that are behind, and tells how many that changed. The
// workflow takes them there.
func (c versionMutation) scaleBehind(r *running, asked plan.Asked) (int, error) {
	if r.rolloutState.Progress == nil {
		return 0, nil
	}
	before := r.rolloutState.Progress
	r.rolloutState = r.rolloutState.Clone()
	n := plan.ResizeBehind(r.rolloutState.Progress, asked)
	if n == 0 {
		return 0, nil
	}
	if err := c.mayGrow(grownSizes(before, r.rolloutState.Progress), asked); err != nil {
		return 0, err
	}
	return n, c.putRolloutState(r.rolloutState)
}

// resize scales an app in the middle of a staged rollout, and reports whether that
// changes anything. The workflow takes the regions there.
func (c versionMutation) resize(app *model.App, r running, asked plan.Asked) (int, error) {
	s := r.rolloutState.Clone()
	n := plan.Resize(s.Progress, asked)
	if err := c.mayGrow(grownSizes(r.rolloutState.Progress, s.Progress), asked); err != nil {
		return 0, err
	}
	if err := c.storeReplicas(app, asked, n > 0); err != nil {
		return 0, err
	}
	if s.Progress.Equal(r.rolloutState.Progress) {
		return 0, nil
	}
	if err := c.putRolloutState(s); err != nil || n == 0 {
		return 0, err
	}
	c.claims(*app, r.live, r.flight.deployment, counted(s, *app, r.live, r.flight.deployment, r.rows))
	return n, c.wake(app.ID)
}
