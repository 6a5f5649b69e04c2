package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// usersOfRegion returns the names of the apps that use the region: in the live version, in the version in flight, or
// because the region lags. Older versions do not count, because a rollback leaves out deleted regions. For a region of
// the platform, it returns names of workspaces, because operators must not see names of apps. The argument most is the
// maximum number of names. "others" stands for further names.
func (c regionMutation) usersOfRegion(r model.Region, most int) (users []string, err error) {
	workspaces, err := c.workspacesWith(r)
	if err != nil {
		return nil, err
	}
	for _, w := range workspaces {
		page, count := model.Page{Limit: 500}, 0
		for {
			apps, err := c.ListApps(w.ID, "", page)
			if err != nil {
				return nil, fmt.Errorf("list apps of workspace %s: %w", w.ID, err)
			}
			found, err := c.appsNaming(r, apps)
			if err != nil {
				return nil, err
			}
			if count += len(found); r.WorkspaceID != "" {
				users = append(users, found...)
			}
			if len(apps) < page.Limit {
				break
			}
			last := apps[len(apps)-1]
			page.After = last.Name + "\x00" + last.ID
		}
		if r.WorkspaceID == "" && count > 0 {
			users = append(users, fmt.Sprintf("%d of workspace %s", count, w.Name))
		}
		if len(users) > most {
			return append(users[:most], "others"), nil
		}
	}
	return users, nil
}

// workspacesWith returns the workspaces that may use the region.
func (c regionMutation) workspacesWith(r model.Region) (out []model.Workspace, err error) {
	if r.WorkspaceID != "" {
		return []model.Workspace{{ID: r.WorkspaceID}}, nil
	}
	page := model.Page{Limit: 500}
	for {
		rows, err := c.ListWorkspaces(page)
		if err != nil {
			return nil, fmt.Errorf("list workspaces: %w", err)
		}
		for _, w := range rows {
			page.After = w.ID
			own, err := c.GetRegionByName(w.ID, r.Name)
			if err != nil && !errors.Is(err, model.ErrNotFound) {
				return nil, fmt.Errorf("read region %s: %w", r.Name, err)
			}
			if err == nil && own.ID == r.ID {
				out = append(out, w)
			}
		}
		if len(rows) < page.Limit {
			return out, nil
		}
	}
}

// appsNaming returns the apps that should run in the region, with their versions. All apps are of one workspace.
func (c regionMutation) appsNaming(r model.Region, apps []model.App) (users []string, err error) {
	var ids []string
	for _, app := range apps {
		ids = append(ids, app.ID)
	}
	rolloutStates, err := c.GetRolloutStates(ids)
	if err != nil {
		return nil, fmt.Errorf("read rollout states: %w", err)
	}
	behind := map[string]bool{}
	for _, s := range rolloutStates {
		behind[s.AppID] = s.Progress != nil && s.Progress.LaggingIn(r.ID) != nil
	}
	for _, app := range apps {
		newest, err := c.secrets().wantedDeployment(app)
		if err != nil {
			return nil, err
		}
		live, err := c.versions().liveOf(app)
		if err != nil {
			return nil, err
		}
		for _, d := range []*model.Deployment{newest, live} {
			if d != nil && (slices.Contains(d.Spec.GetRegions(), r.Name) || d == live && behind[app.ID]) {
				users = append(users, fmt.Sprintf("%s (v%d)", app.Name, d.Version))
				break
			}
		}
	}
	return users, nil
}

// withoutGone removes the regions that the workspace may no longer use, and their overrides, from an earlier
// spec. It returns their names, and fails if no region is left.
func (c regionMutation) withoutGone(spec *windlassv1.DeploymentSpec, field string) (gone []string, err error) {
	left, gone, err := c.regionsLeft(spec)
	if err != nil {
		return nil, err
	}
	if len(gone) == 0 || len(left) == 0 {
		return nil, c.specs().checkRegions(spec, field)
	}
	spec.Regions = left
	isGone := func(name string) bool { return slices.Contains(gone, name) }
	spec.PinnedOverrides = slices.DeleteFunc(spec.GetPinnedOverrides(), func(p *windlassv1.PinnedOverride) bool { return isGone(p.GetRegion()) })
	var overrides []*windlassv1.Override
	for _, o := range spec.GetOverrides() {
		if len(o.GetRegions()) > 0 {
			o = proto.CloneOf(o)
			if o.Regions = slices.DeleteFunc(o.GetRegions(), isGone); len(o.GetRegions()) == 0 {
				continue
			}
		}
		overrides = append(overrides, o)
	}
	spec.Overrides = overrides
	return gone, nil
}

// regionsLeft splits the names of the spec's regions: left are regions that the workspace may use, gone are regions
// that it may no longer use.
func (c regionMutation) regionsLeft(spec *windlassv1.DeploymentSpec) (left, gone []string, err error) {
	known, err := c.specs().regionsNamed(spec.GetRegions())
	if err != nil {
		return nil, nil, err
	}
	for _, name := range spec.GetRegions() {
		if slices.ContainsFunc(known, func(r model.Region) bool { return r.Name == name }) {
			left = append(left, name)
		} else {
			gone = append(gone, name)
		}
	}
	return left, gone, nil
}

// servesIn returns the name of a region of gone in which the app still serves, or "". An app continues to serve in a
// region after a grant is revoked.
func (c regionMutation) servesIn(app model.App, gone []string) (string, error) {
	if len(gone) == 0 {
		return "", nil
	}
	rows, err := c.ListTopology([]string{app.ID})
	if err != nil {
		return "", fmt.Errorf("list topology of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		ids[t.RegionID] = ids[t.RegionID] || topology.Active(t)
	}
	regions, err := c.GetRegions(keysOf(ids))
	if err != nil {
		return "", fmt.Errorf("read regions of app %s: %w", app.ID, err)
	}
	for _, r := range regions {
		if ids[r.ID] && slices.Contains(gone, r.Name) {
			return r.Name, nil
		}
	}
	return "", nil
}

// leftOut returns a warning that the regions in gone are left out, nil for none.
func leftOut(gone []string) []string {
	switch len(gone) {
	case 0:
		return nil
	case 1:
		return []string{"region " + gone[0] + " is left out: the workspace may no longer use it"}
	}
	return []string{"regions " + strings.Join(gone, ", ") + " are left out: the workspace may no longer use them"}
}
