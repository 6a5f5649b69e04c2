package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file has the changes that deploys and people make to an app's scaling, and what people see of it.

// scalingOf reads the locked app's scaling.
func (c *mutation) scalingOf(app model.App) (model.Scaling, error) {
	none := model.Scaling{AppID: app.ID, WorkspaceID: app.WorkspaceID}
	// A policy comes with a version, and a hold needs a policy.
	if app.LatestVersion == 0 {
		return none, nil
	}
	rows, err := c.GetScalings([]string{app.ID})
	if err != nil {
		return model.Scaling{}, fmt.Errorf("read scaling of app %s: %w", app.ID, err)
	}
	if len(rows) == 0 {
		return none, nil
	}
	return rows[0], nil
}

func (c *mutation) putScaling(s model.Scaling) error {
	// The scaler compares UpdatedAt, so two changes in one millisecond must have different values.
	s.UpdatedAt = max(c.at, s.UpdatedAt+1)
	if err := c.PutScaling(s); err != nil {
		return fmt.Errorf("store scaling of app %s: %w", s.AppID, err)
	}
	return nil
}

// resolveScaling sets the ids of the regions that overrides of the policy name, and the initial replicas of an app's
// first version. startRoles sets the initial instances of roles.
func (d *deployment) resolveScaling() error {
	p := d.want.Scaling
	if p == nil {
		return nil
	}
	p = proto.CloneOf(p)
	var names []string
	for _, o := range scaling.Overrides(p) {
		names = append(names, o.GetRegions()...)
	}
	ids := map[string]string{}
	if len(names) > 0 {
		regions, err := d.GetRegionsByName(d.workspaceID, names)
		if err != nil {
			return fmt.Errorf("read regions of workspace %s: %w", d.workspaceID, err)
		}
		for _, r := range regions {
			ids[r.Name] = r.ID
		}
	}
	for _, o := range scaling.Overrides(p) {
		o.RegionIds = nil
		for _, name := range o.GetRegions() {
			if ids[name] != "" {
				o.RegionIds = append(o.RegionIds, ids[name])
			}
		}
		slices.Sort(o.RegionIds)
	}
	d.want.Scaling = p
	if len(p.GetRoles()) > 0 || d.app.LatestVersion > 0 || d.want.Spec.Replicas != nil {
		return nil
	}
	for _, region := range append([]string{""}, slices.Sorted(maps.Keys(ids))...) {
		policy, fault := scaling.New(p, region)
		switch {
		case fault != nil:
			return apierr.InvalidFix("scaling."+fault.Field, fault.Message, fault.Fix)
		case region == "":
			d.want.Spec.Replicas = new(int32(policy.Initial))
		default:
			override.SetReplicas(d.want.Spec, region, ids[region], int32(policy.Initial))
		}
	}
	return nil
}

// startRoles sets the initial instances of scaled roles that no running version of the app has. Other roles keep
// their instances. It runs after setPolicy.
func (d *deployment) startRoles() error {
	policies, fault := scaling.NewRoles(d.was.scaling.Policy, "")
	if fault != nil {
		return apierr.InvalidFix("scaling."+fault.Field, fault.Message, fault.Fix)
	}
	runs := map[string]bool{}
	for _, have := range []*model.Deployment{d.was.live, d.was.active.deployment} {
		if have == nil {
			continue
		}
		for _, r := range have.Spec.GetRoles() {
			runs[r.GetName()] = true
		}
	}
	for _, p := range policies {
		for _, r := range d.want.Spec.GetRoles() {
			if r.GetName() == p.Role && r.GetInstances() == 0 && !runs[p.Role] {
				r.Instances = int32(p.Initial)
			}
		}
	}
	return nil
}

// setScaling sets the app's scaling policy to the policy of the version, nil for none. Agents get the policy with
// each deployment, so each deployment gets a new generation.
func (d *deployment) setScaling() error {
	s := d.was.scaling.Clone()
	if proto.Equal(s.Policy, d.want.Scaling) {
		return nil
	}
	why := "its replicas follow the load by the policy of the deployed file"
	switch {
	case len(d.want.Scaling.GetRoles()) > 0 && d.want.Scaling.GetMode() != windlassv1.ScalingPolicy_MODE_ADVISE:
		why = "the instances of its roles follow the load by the policy of the deployed file"
		s.Holds = slices.DeleteFunc(s.Holds, func(h model.ScalingHold) bool {
			return !slices.ContainsFunc(d.want.Scaling.GetRoles(), func(r *windlassv1.RoleScaling) bool { return r.GetRole() == h.Role })
		})
	case d.want.Scaling == nil:
		why, s.Holds = "its replicas no longer follow the load, because the deployed file has no scaling", nil
	case d.want.Scaling.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE:
		why, s.Holds = "its policy only advises: decisions are shown, but change nothing", nil
	}
	s.Policy = d.want.Scaling
	d.log(d.app, model.History{What: "ScalingPolicyChanged", Why: why})
	if err := d.putScaling(s); err != nil {
		return err
	}
	d.was.scaling, d.scalingChanged = s, true
	changed := topology.Renew(d.was.rows, d.traceparent, d.at)
	if len(changed) == 0 {
		return nil
	}
	if err := topology.Write(d.mutation, topology.State{Rows: d.was.rows}, topology.State{Rows: changed}); err != nil {
		return fmt.Errorf("tell regions how app %s scales: %w", d.app.ID, err)
	}
	d.was.rows = withReplaced(d.was.rows, changed)
	return d.expect(d.app.ID)
}

// holdScaling sets or ends a hold for Scale. If replicas of an app or instances of a role follow the load, a person
// can only set them for a time. done means that there is nothing to scale. held means that a hold was set or ended.
func (c *mutation) holdScaling(app model.App, r running, regionID, where string, req *windlassv1.ScaleRequest) (held, done bool, err error) {
	s, hold, role := r.scaling.Clone(), req.GetHoldFor().AsDuration(), req.GetRole()
	active := s.Scales(role)
	subject, unit, flags := "the replicas of app "+app.Name, "replicas", fmt.Sprintf("--replicas %d", req.GetReplicas())
	if role != "" {
		subject, unit, flags = fmt.Sprintf("the instances of role %s of app %s", role, app.Name), "instances of role "+role, fmt.Sprintf("--role %s=%d", role, req.GetReplicas())
	}
	switch {
	case !active && (hold > 0 || req.GetEndHold()):
		field := "hold_for"
		if req.GetEndHold() {
			field = "end_hold"
		}
		return false, true, apierr.InvalidFix(field, subject+" do not follow the load, so a hold has no effect", "Leave it out.")
	case !active:
		return false, false, nil
	case hold > 0 && req.GetEndHold():
		return false, true, apierr.InvalidFix("end_hold", "hold_for and end_hold are both set", "Set one of the two.")
	case req.GetEndHold():
		// Ending the hold in one region has no effect while a hold in all regions exists.
		if all := s.HoldInAll(role, c.at); regionID != "" && all != nil {
			return false, true, apierr.InvalidFix("region", fmt.Sprintf("a hold of app %s applies to all regions: %d %s until %s, by %s",
				app.Name, all.Replicas, unit, time.UnixMilli(all.Until).UTC().Format(time.RFC3339), all.Who), "Leave region out to end the holds in all regions.")
		}
		if !s.EndHold(regionID, role, c.at) {
			return false, true, nil
		}
		c.log(app, model.History{What: "ScalingHoldEnded", Why: endedText(role) + where, RegionID: regionID})
		return true, true, c.putScaling(s)
	case hold == 0:
		return false, true, rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_SCALED, Field: "replicas",
			Fix: fmt.Sprintf("Hold the number for a time: `windlass scale %s %s --for 2h`. Or change min and max of its scaling, and deploy.", app.Name, flags),
		}, subject+" follow the load")
	}
	until := c.at + hold.Milliseconds()
	s.Hold(model.ScalingHold{RegionID: regionID, Role: role, Replicas: req.GetReplicas(), Until: until, Who: c.by.Name}, c.at)
	c.log(app, model.History{
		What: "ScalingHeld", RegionID: regionID,
		Why: fmt.Sprintf("%d %s in %s until %s", req.GetReplicas(), unit, where, time.UnixMilli(until).UTC().Format(time.RFC3339)),
	})
	return true, false, c.putScaling(s)
}

// endedText returns the text of the history for the end of a hold. The caller appends the region.
func endedText(role string) string {
	if role != "" {
		return "the instances of role " + role + " follow the load again in "
	}
	return "its replicas follow the load again in "
}

type scalingService struct{ *server }

// ScalingDecisions returns the newest scaling decisions of all processes.
type ScalingDecisions interface {
	// Scaling returns the decision for an app in a region, from the process that has the region's stream. It returns
	// nil if the region has not reported its load recently. It fails with model.ErrAgentUnreachable if no process has
	// the stream, or if that process does not answer.
	Scaling(ctx context.Context, regionID, appID string) (*windlassv1.RegionScaling, error)
	// ScalingNow returns the decisions for an app, by region id. Decisions of processes that do not answer are
	// missing.
	ScalingNow(ctx context.Context, appID string) map[string]*windlassv1.RegionScaling
}

// GetScaling returns an app's scaling policy and holds, and the newest decision in each region, from the process with
// the region's stream. If that process does not answer, it returns the stored decision.
func (a scalingService) GetScaling(ctx context.Context, req *windlassv1.GetScalingRequest) (*windlassv1.GetScalingResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var r storedScaling
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		r, err = readScaling(tx, app)
		return err
	})
	if err != nil || r.Policy == nil {
		return &windlassv1.GetScalingResponse{}, err
	}
	if a.cfg.Scaling != nil {
		maps.Copy(r.decisions, a.cfg.Scaling.ScalingNow(ctx, r.AppID))
	}
	return r.responseAt(nowMillis()), nil
}

// storedScaling is an app's scaling in the database.
type storedScaling struct {
	model.Scaling

	// decisions and names are by region id.
	decisions map[string]*windlassv1.RegionScaling
	names     map[string]string
	// runsIn has the ids of the regions in which the app runs.
	runsIn map[string]bool
}

func readScaling(tx Tx, app model.App) (r storedScaling, err error) {
	found, err := tx.GetScalings([]string{app.ID})
	if err != nil {
		return r, fmt.Errorf("read scaling of app %s: %w", app.ID, err)
	}
	if len(found) == 0 || found[0].Policy == nil {
		return r, nil
	}
	r = storedScaling{Scaling: found[0], decisions: map[string]*windlassv1.RegionScaling{}, names: map[string]string{}, runsIn: map[string]bool{}}
	stored, err := tx.ListScalingDecisions(app.ID)
	if err != nil {
		return r, fmt.Errorf("list scaling decisions of app %s: %w", app.ID, err)
	}
	for _, d := range stored {
		if d.DecidedAt != 0 {
			r.decisions[d.RegionID] = d.Decision
		}
	}
	rows, err := tx.ListTopology([]string{app.ID})
	if err != nil {
		return r, fmt.Errorf("list topology of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		if topology.Active(t) {
			r.runsIn[t.RegionID], ids[t.RegionID] = true, true
		}
	}
	for _, h := range r.Holds {
		ids[h.RegionID] = true
	}
	delete(ids, "")
	regions, err := tx.GetRegions(keysOf(ids))
	if err != nil {
		return r, fmt.Errorf("read regions of app %s: %w", app.ID, err)
	}
	for _, region := range regions {
		r.names[region.ID] = region.ShownName()
	}
	return r, nil
}

// responseAt returns the answer, without decisions for regions that the app has left.
func (r *storedScaling) responseAt(at int64) *windlassv1.GetScalingResponse {
	res := &windlassv1.GetScalingResponse{Policy: r.Policy}
	for id, d := range r.decisions {
		if r.runsIn[id] && r.names[id] != "" {
			d = proto.CloneOf(d)
			shown := d.GetRoles()
			if d.Roles = nil; len(shown) == 0 {
				shown = []*windlassv1.RegionScaling{d}
			}
			for _, one := range shown {
				one.Region = r.names[id]
			}
			res.Regions = append(res.Regions, shown...)
		}
	}
	slices.SortStableFunc(res.Regions, func(a, b *windlassv1.RegionScaling) int { return cmp.Compare(a.GetRegion(), b.GetRegion()) })
	for _, h := range r.Holds {
		if h.Until > at {
			res.Holds = append(res.Holds, &windlassv1.ScalingHold{Region: r.names[h.RegionID], Role: h.Role, Replicas: h.Replicas, Until: h.Until, Who: h.Who})
		}
	}
	return res
}
