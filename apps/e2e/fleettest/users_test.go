package fleettest

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fixedApps have a fixed number of replicas and fixed regions, and are never deleted: once they serve, they
// must serve for ever. Users change the other apps in every way.
const (
	fixedApps     = 2
	fixedReplicas = 2
	// The pooled app has prefill and decode servers that are counted and scaled separately.
	pooledApp = 3
)

func appName(i int) string {
	switch {
	case i < fixedApps:
		return fmt.Sprintf("fixed-%d", i)
	case i == pooledApp:
		return "pool-0"
	case i == scaledApp:
		return scaledName
	}
	return fmt.Sprintf("loose-%d", i-fixedApps)
}

func appPath(i int) string { return "default/production/" + appName(i) }

// act makes one random change. An error is no violation, because the replica may be unavailable, or there may
// be nothing to change.
func (w *fleet) act(of size) {
	i := w.fate.intn(of.apps)
	what := w.fate.intn(12)
	if i < fixedApps {
		// These changes affect neither the number of replicas nor whether the app exists.
		what = []int{0, 1, 2, 5, 6, 7, 8}[w.fate.intn(7)]
	}
	if i == scaledApp && what == 11 {
		what = 0 // it is not deleted
	}
	w.actOn(of, i, what)
}

func (w *fleet) actOn(of size, i, what int) {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	app := appPath(i)
	var did, id string
	var err error
	switch what {
	case 0, 1, 2, 3, 4:
		did, id, err = w.deploy(ctx, of, i, "good")
	case 5:
		did, id, err = w.deploy(ctx, of, i, "crashes")
	case 6:
		n := w.fate.intn(1000)
		did = fmt.Sprintf("set N=%d", n)
		var resp *windlassv1.SetEnvironmentResponse
		resp, err = w.apps.SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: app, Set: map[string]string{"N": strconv.Itoa(n)}})
		id = resp.GetDeploymentId()
	case 7:
		did = "roll back"
		var resp *windlassv1.RollbackResponse
		resp, err = w.apps.Rollback(ctx, &windlassv1.RollbackRequest{App: app})
		id = resp.GetDeploymentId()
	case 8:
		did = "cancel"
		_, err = w.apps.Cancel(ctx, &windlassv1.CancelRequest{App: app})
	case 9, 10:
		req := &windlassv1.ScaleRequest{App: app, Replicas: int32(w.fate.intn(4))}
		switch {
		case i == pooledApp && w.fate.intn(3) == 0:
			req.Replicas = []int32{0, pool.Whole}[w.fate.intn(2)] // stop all roles, or start them
		case i == pooledApp:
			req.Role = []string{"prefill", "decode"}[w.fate.intn(2)]
			req.Replicas = max(req.Replicas, 1)
		}
		did = fmt.Sprintf("scale to %d %s", req.Replicas, cmp.Or(req.Role, "replicas"))
		_, err = w.apps.Scale(ctx, req)
		if err == nil && i == scaledApp {
			w.check.violatef("a scaled app was scaled by hand", place{}, "to %d replicas", req.Replicas)
		}
	case 11:
		did = "delete"
		_, err = w.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: app})
	}
	said := "done"
	if err != nil {
		said = err.Error()
	}
	w.trace.addf("user: %s: %s: %s", app, did, said)
	w.check.history.add(event{part: "user", app: appName(i), text: did + ": " + said})
	if err == nil && id != "" {
		w.check.acknowledge(id, appName(i))
	}
	if code := connect.CodeOf(err); err != nil && (code == connect.CodeInternal || code == connect.CodeInvalidArgument || code == connect.CodeUnauthenticated) {
		w.check.violatef("the API fails", place{}, "%s: %s: %v", app, did, err)
	}
}

func (w *fleet) deploy(ctx context.Context, of size, i int, label string) (did, id string, err error) {
	var names []string
	replicas := int32(fixedReplicas)
	if i < fixedApps || i == scaledApp {
		names = []string{regionName(i % of.regions), regionName((i + of.regions/2) % of.regions)}
	} else {
		for r := range of.regions {
			if w.fate.intn(of.regions) < 2 {
				names = append(names, regionName(r))
			}
		}
		if len(names) == 0 {
			names = []string{regionName(w.fate.intn(of.regions))}
		}
		replicas = int32(1 + w.fate.intn(3))
	}
	spec := &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Regions: names, VersionLabel: label, Replicas: &replicas,
		Env: map[string]string{"VERSION": strconv.Itoa(w.fate.intn(1_000_000)), "LABEL": label},
	}
	var rollout *windlassv1.RolloutPolicy
	if i == pooledApp {
		rollout = w.poolRoles(spec, replicas)
	}
	if i%3 == 2 {
		rollout = w.groupRoles(spec)
	}
	var policy *windlassv1.ScalingPolicy
	if i == scaledApp {
		policy, spec.Replicas = scalingPolicy(), nil
		spec.Resources = &windlassv1.Resources{CpuMillicores: cpuMillicores}
	}
	resp, err := w.apps.Deploy(ctx, &windlassv1.DeployRequest{App: appPath(i), Spec: spec, Scaling: policy, Rollout: rollout})
	return fmt.Sprintf("deploy a version that is %s, %d each in %v", label, replicas, names), resp.GetDeploymentId(), err
}

// hasStableSlots reports whether the roles of the fleet's apps have stable slots. A version cannot give up the slots of
// some roles only, so all versions of a fleet are alike in this.
func (w *fleet) hasStableSlots() bool { return w.seed%3 == 0 }

// poolRoles makes the spec a pool, and returns the policy of its rollout.
func (w *fleet) poolRoles(spec *windlassv1.DeploymentSpec, replicas int32) *windlassv1.RolloutPolicy {
	spec.Layout, spec.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	prefill, decode := &windlassv1.RoleSpec{Name: "prefill", Instances: 1 + replicas}, &windlassv1.RoleSpec{Name: "decode", Instances: replicas, Entry: true}
	spec.Roles = []*windlassv1.RoleSpec{prefill, decode}
	for _, r := range spec.Roles {
		r.Env = map[string]string{"ROLE": strconv.Itoa(w.fate.intn(3))}
	}
	if spec.VersionLabel == "good" && w.fate.intn(2) == 0 {
		spec.Env["VERSION"] = "0" // at most the roles' own variables differ
		prefill.Together = w.fate.intn(4) == 0
		decode.Together = prefill.Together
	}
	w.pairRoles(spec)
	if w.hasStableSlots() {
		decode.Slots = windlassv1.RoleSpec_SLOTS_STABLE
		others := []windlassv1.PoolUpdate_Order{windlassv1.PoolUpdate_ORDER_SEQUENTIAL, windlassv1.PoolUpdate_ORDER_PARALLEL, windlassv1.PoolUpdate_ORDER_INTERLEAVED}
		spec.Update = &windlassv1.PoolUpdate{Order: others[w.fate.intn(len(others))]}
		return &windlassv1.RolloutPolicy{MaxUnavailable: []string{"1%", "50%"}[w.fate.intn(2)]}
	}
	decode.Hosts = int32(1 + w.fate.intn(8)/7) // rarely two, because another number moves by shares whatever the order is
	spec.Update = &windlassv1.PoolUpdate{
		Order:    windlassv1.PoolUpdate_Order(w.fate.intn(len(windlassv1.PoolUpdate_Order_name))),
		WhenFull: windlassv1.PoolUpdate_WhenFull(w.fate.intn(len(windlassv1.PoolUpdate_WhenFull_name))),
	}
	return nil
}

// groupRoles makes each replica of the spec a group, and returns the policy of its rollout.
func (w *fleet) groupRoles(spec *windlassv1.DeploymentSpec) *windlassv1.RolloutPolicy {
	prefill, decode := &windlassv1.RoleSpec{Name: "prefill", Instances: 2}, &windlassv1.RoleSpec{Name: "decode", Entry: true}
	spec.Roles = []*windlassv1.RoleSpec{prefill, decode}
	w.pairRoles(spec)
	if w.hasStableSlots() {
		decode.StartsAfter, decode.Slots = []string{"prefill"}, windlassv1.RoleSpec_SLOTS_STABLE
		return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
	}
	decode.Hosts = int32(1 + w.fate.intn(2)) // another number is another version
	switch of := windlassv1.Gang_Of(w.fate.intn(len(windlassv1.Gang_Of_name))); {
	case of == windlassv1.Gang_OF_UNIT && decode.Hosts == 1, of == windlassv1.Gang_OF_UNSPECIFIED:
		decode.StartsAfter = []string{"prefill"}
	default:
		spec.Gang = &windlassv1.Gang{Of: of}
	}
	return nil
}

// pairRoles draws how gateways pair the roles.
func (w *fleet) pairRoles(spec *windlassv1.DeploymentSpec) {
	switch w.fate.intn(3) {
	case 1:
		spec.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL, MinPromptBytes: int64(100 * w.fate.intn(2))}
	case 2:
		spec.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_SGLANG}
		spec.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "bootstrap"}}
	}
}
