package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/placement"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// specsAtOnce is how many specs of deployments are read at the same time.
const specsAtOnce = 8

func (a *app) modelPlanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan FILE",
		Short: "Show which servers would load a model",
		Long: `Show where the replicas of the model in an app's file would be placed now: the servers that have it,
those that would load it, the models that would be evicted for it, and why other servers do not take
it. Nothing is changed. It is the decision that the agents of the regions make, with the instances
that they reported last.

Only agents know when a model was last used. So of the models that may be evicted, the plan names
those that were loaded first.

Exit code: 0 if each region has servers for at least minReady replicas, 2 if not, 1 after an error.`,
		Example: "  windlass model plan fraud.yaml\n  windlass model plan fraud.yaml -o json | jq '.regions[].evicts'",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			f, err := readAppFile(args[0], a.Stdin)
			if err != nil {
				return err
			}
			return a.planModel(ctx, f)
		}),
	}
}

// modelPlan is what would happen to a model, by region.
type modelPlan struct {
	App     string            `json:"app"`
	Regions []regionModelPlan `json:"regions"`
}

type regionModelPlan struct {
	Region   string `json:"region"`
	Replicas int    `json:"replicas"`
	// Has are the servers that have the model and keep it. Loads are those that would load it.
	Has   []string `json:"has,omitempty"`
	Loads []string `json:"loads,omitempty"`
	// Evicts are the models that would be unloaded first. LoadsAfter is how many replicas wait for that.
	Evicts     []evictedModel `json:"evicts,omitempty"`
	LoadsAfter int            `json:"loadsAfter,omitempty"`
	// Missing is how many replicas would have no server, and Why is the reason.
	Missing int    `json:"missing,omitempty"`
	Why     string `json:"why,omitempty"`
	// Runs is whether at least minReady replicas would have a server.
	Runs bool `json:"runs"`
}

type evictedModel struct {
	Model  string `json:"model"`
	Server string `json:"server"`
}

func (a *app) planModel(ctx context.Context, f *appFile) error {
	path := a.pathOf(f)
	switch {
	case f.Spec.GetModel() == nil:
		return errors.New("model: the file's app is not a model, so no server loads it: use windlass plan -f FILE, or add model")
	case len(f.Spec.GetRegions()) == 0:
		return errors.New("regions: the file names no region: add the regions whose servers should load the model")
	}
	live, err := a.liveDeployments(ctx, f.Project+"/"+f.Environment)
	if err != nil {
		return err
	}
	plan := modelPlan{App: path}
	runs := true
	for _, region := range f.Spec.GetRegions() {
		instances, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Instance, *windlassv1.PageResponse, error) {
			r, err := a.clients.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{Page: p, Region: region})
			return r.GetInstances(), r.GetPage(), err
		})
		if err != nil {
			return err
		}
		one := planModelIn(time.Now(), region, f.App, f.Spec, live, instances)
		plan.Regions = append(plan.Regions, one)
		runs = runs && one.Runs
	}
	if err := a.showModelPlan(plan); err != nil {
		return err
	}
	if !runs {
		return &ExitError{Code: codeWouldNotRun}
	}
	return nil
}

// liveDeployments returns the live deployments of an environment, by app id.
func (a *app) liveDeployments(ctx context.Context, environment string) (map[string]*windlassv1.Deployment, error) {
	apps, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.App, *windlassv1.PageResponse, error) {
		r, err := a.clients.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: p, Environment: environment})
		return r.GetApps(), r.GetPage(), err
	})
	if err != nil {
		return nil, err
	}
	found := make([]*windlassv1.Deployment, len(apps))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(specsAtOnce)
	for i, one := range apps {
		if one.LiveDeploymentId == "" {
			continue
		}
		group.Go(func() error {
			r, err := a.clients.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: one.LiveDeploymentId})
			found[i] = r.GetDeployment()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	live := map[string]*windlassv1.Deployment{}
	for i, one := range apps {
		if found[i] != nil {
			live[one.Id] = found[i]
		}
	}
	return live, nil
}

// planModelIn places the model in a region. It is pure.
func planModelIn(now time.Time, region, name string, spec *windlassv1.DeploymentSpec, live map[string]*windlassv1.Deployment, instances []*windlassv1.Instance) regionModelPlan {
	servers, names := modelServers(live, instances)
	models, planned := modelsOf(name, spec, live, instances, servers)
	list := make([]placement.Server, 0, len(servers))
	for _, s := range servers {
		list = append(list, *s)
	}
	plan := regionModelPlan{Region: region, Replicas: planned.Replicas}
	textOf := func(k placement.Key) string { return fmt.Sprintf("%s %d (%s)", k.App, k.Index, names[k]) }
	for _, d := range placement.Place(now, list, models) {
		for _, k := range d.Evict {
			plan.Evicts = append(plan.Evicts, evictedModel{d.Model, textOf(k)})
		}
		if d.Model != planned.ID {
			continue
		}
		for _, k := range d.Servers {
			if slices.Contains(d.Load, k) {
				plan.Loads = append(plan.Loads, textOf(k))
			} else {
				plan.Has = append(plan.Has, textOf(k))
			}
		}
		plan.LoadsAfter, plan.Missing = d.Promised, d.Short-d.Promised
		if plan.Missing > 0 {
			plan.Why = d.Refused.String()
		}
		plan.Runs = len(d.Servers)+d.Promised >= min(planned.MinReplicas, planned.Replicas)
	}
	return plan
}

// modelServers returns the servers by instance id, and the instance ids by key.
func modelServers(live map[string]*windlassv1.Deployment, instances []*windlassv1.Instance) (map[string]*placement.Server, map[placement.Key]string) {
	servers, names := map[string]*placement.Server{}, map[placement.Key]string{}
	for _, in := range instances {
		of := live[in.AppId].GetSpec().GetModels()
		draining := in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
		if of == nil || !draining && in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			continue
		}
		s := &placement.Server{App: in.AppName, Index: int(in.Group), Capabilities: of.Capabilities, Memory: of.MemoryMib << 20, Slots: int(of.Slots), Draining: draining}
		for names[s.Key()] != "" {
			s.Index++ // two instances have the same group during a rollout
		}
		if e := of.Eviction; e != nil {
			// How long models have served does not matter, because requests wait until one may be evicted.
			s.Eviction = &placement.Eviction{PerMinute: int(cmp.Or(e.PerMinute, 10))}
		}
		servers[in.Id], names[s.Key()] = s, in.Id
	}
	return servers, names
}

// modelsOf returns the models of the region with the planned one, and adds the models that servers have to servers.
func modelsOf(name string, spec *windlassv1.DeploymentSpec, live map[string]*windlassv1.Deployment, instances []*windlassv1.Instance, servers map[string]*placement.Server) (models []placement.Model, planned placement.Model) {
	known := map[string]*placement.Model{}
	var order []*placement.Model
	changed := true
	for _, d := range live {
		if d.Spec.GetModel() == nil {
			continue
		}
		m := modelOf(d.AppName, d.Spec)
		m.Replicas = 0
		known[d.AppId] = &m
		order = append(order, &m)
		if d.AppName == name {
			changed = !proto.Equal(d.Spec.Model, spec.Model)
		}
	}
	for _, in := range instances {
		m := known[in.AppId]
		if m == nil || in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			continue
		}
		held := placement.Held{Model: m.ID, Name: m.Name, Memory: m.Memory, Since: time.UnixMilli(in.ReadyAt)}
		held.Leaving = in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
		held.Serving = in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && in.Address != ""
		if !held.Leaving {
			m.Replicas++
		}
		if s := servers[in.RuntimeName]; s != nil && in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED {
			s.Holds = append(s.Holds, held)
			if held.Serving && held.Since.After(m.LastUsed) {
				m.LastUsed = held.Since
			}
		}
	}
	planned = modelOf(name, spec)
	planned.New = planned.OnRequest
	for _, m := range order {
		if m.ID == name && !changed {
			planned.LastUsed = m.LastUsed
			continue
		}
		if m.ID == name {
			planned.ID = name + " (new version)"
			m.OnRequest = false // both versions stay during an update
		}
		models = append(models, *m)
	}
	return append(models, planned), planned
}

// modelOf returns the model of an app as the placement knows it.
func modelOf(name string, spec *windlassv1.DeploymentSpec) placement.Model {
	replicas := 2
	if spec.Replicas != nil {
		replicas = int(spec.GetReplicas())
	}
	return placement.Model{
		ID: name, Name: cmp.Or(spec.Model.Name, name), Requires: spec.Model.Requires, App: spec.Model.Server, Memory: spec.Model.MemoryMib << 20,
		Replicas: replicas, MinReplicas: cmp.Or(int(spec.GetMinReady()), min(1, replicas)), OnRequest: spec.GetRouting().GetColdStart() != nil,
	}
}

func (a *app) showModelPlan(plan modelPlan) error {
	if a.output != "table" {
		return a.showValue(plan)
	}
	return a.showMessage(nil, func(w *tabwriter.Writer) {
		writeRow(w, "App:", plan.App)
		for _, r := range plan.Regions {
			writeRow(w, "Region:", r.Region)
			for _, row := range []struct {
				label   string
				servers []string
			}{{"Has it:", r.Has}, {"Loads it:", r.Loads}} {
				if len(row.servers) > 0 {
					writeRow(w, row.label, strings.Join(row.servers, ", "))
				}
			}
			for _, e := range r.Evicts {
				writeRow(w, "Evicts:", e.Model+" from "+e.Server)
			}
			if r.LoadsAfter > 0 {
				writeRow(w, "Loads it later:", plural.Count(int64(r.LoadsAfter), "replica")+", once there is room")
			}
			if r.Missing > 0 {
				writeRow(w, "No server:", fmt.Sprintf("%d of %s: %s", r.Missing, plural.Count(int64(r.Replicas), "replica"), r.Why))
			}
		}
	})
}
