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
	if i == pooledApp {
		spec.Layout, spec.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
		spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_Order(w.fate.intn(len(windlassv1.PoolUpdate_Order_name)))}
		spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 1 + replicas}, {Name: "decode", Instances: replicas, Entry: true}}
		for _, r := range spec.Roles {
			r.Env = map[string]string{"ROLE": strconv.Itoa(w.fate.intn(3))}
		}
		if label == "good" && w.fate.intn(2) == 0 {
			spec.Env["VERSION"] = "0" // at most the roles' own variables differ
			spec.Roles[0].Together = w.fate.intn(4) == 0
			spec.Roles[1].Together = spec.Roles[0].Together
		}
	}
	if i%3 == 2 {
		hosts := int32(1 + w.fate.intn(2)) // another number is another version
		spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Entry: true, StartsAfter: []string{"prefill"}, Hosts: hosts}}
	}
	var policy *windlassv1.ScalingPolicy
	if i == scaledApp {
		policy, spec.Replicas = scalingPolicy(), nil
		spec.Resources = &windlassv1.Resources{CpuMillicores: cpuMillicores}
	}
	resp, err := w.apps.Deploy(ctx, &windlassv1.DeployRequest{App: appPath(i), Spec: spec, Scaling: policy})
	return fmt.Sprintf("deploy a version that is %s, %d each in %v", label, replicas, names), resp.GetDeploymentId(), err
}
