package fleettest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	regions = 20
	apps    = 6
	// storm is how long things break; healing is how long everything may take to
	// converge afterwards: the longest backoffs, a deadline and some.
	storm   = 3 * time.Minute
	healing = 15 * time.Minute
)

// seeds is how many fleets run; WINDLASS_FLEET_SEED runs one.
func seeds(t *testing.T) (first, count uint64) {
	if s := os.Getenv("WINDLASS_FLEET_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return n, 1
	}
	switch {
	case testing.Short():
		return 1, 5
	case raced:
		return 1, 20
	}
	return 1, 200
}

func TestAFleetThatWasCutDelayedAndRestartedConverges(t *testing.T) {
	t.Parallel()
	first, count := seeds(t)
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := newWorld(ctx, t, dir, seed, regions)
				defer w.stop()
				w.storm()
				w.heal()
				w.converge()
			})
		})
	}
}

// scratch is a folder in memory where there is one: fleets write much and keep
// nothing.
func scratch(t *testing.T) string {
	if dir, err := os.MkdirTemp("/dev/shm", "windlass-fleet-"); err == nil { //nolint:usetesting // t.TempDir is on a disk
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

func appName(i int) string { return fmt.Sprintf("default/production/app-%d", i) }

// storm does what users do while things break.
func (w *world) storm() {
	backup := w.memory.Backup()
	restored := false
	deadline := time.Now().Add(storm)
	for time.Now().Before(deadline) {
		time.Sleep(w.between(50*time.Millisecond, 4*time.Second))
		m := w.agents[fmt.Sprintf("region-%02d", w.intn(regions))]
		switch w.intn(14) {
		case 0, 1, 2, 3, 4:
			w.act(w.intn(apps))
		case 5, 6:
			m.wire.cut(true)
			time.AfterFunc(w.between(0, 40*time.Second), func() { m.wire.cut(false) })
		case 7:
			m.wire.cut(false)
		case 8, 9:
			m.process.kill()
			time.Sleep(w.between(0, 5*time.Second))
			w.startAgent(m)
		case 10:
			w.killPlane()
			time.Sleep(w.between(0, 30*time.Second))
			w.startPlane()
		case 11:
			w.users.cut(false)
		case 12:
			// The database as it was some time ago, once, in every other fleet.
			if !restored && w.intn(2) == 0 {
				restored = true
				w.killPlane()
				w.memory.Restore(backup)
				w.startPlane()
			}
		case 13:
			if !restored {
				backup = w.memory.Backup()
			}
		}
	}
}

// act is one thing that a user does. Its error is the user's to see: the plane
// may be away, or there may be nothing to do.
func (w *world) act(i int) {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	app := appName(i)
	var err error
	switch w.intn(10) {
	case 0, 1, 2, 3:
		_, err = w.apps.Deploy(ctx, &windlassv1.DeployRequest{App: app, Spec: w.spec("good")})
	case 4:
		_, err = w.apps.Deploy(ctx, &windlassv1.DeployRequest{App: app, Spec: w.spec("crashes")})
	case 5:
		_, err = w.apps.Scale(ctx, &windlassv1.ScaleRequest{App: app, Replicas: int32(w.intn(4))})
	case 6:
		_, err = w.apps.SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: app, Set: map[string]string{"N": strconv.Itoa(w.intn(1000))}})
	case 7:
		_, err = w.apps.Rollback(ctx, &windlassv1.RollbackRequest{App: app})
	case 8:
		_, err = w.apps.Cancel(ctx, &windlassv1.CancelRequest{App: app})
	case 9:
		_, err = w.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: app})
	}
	if code := connect.CodeOf(err); err != nil && (code == connect.CodeInternal || code == connect.CodeInvalidArgument) {
		w.t.Errorf("%s: %v", app, err)
	}
}

func (w *world) spec(label string) *windlassv1.DeploymentSpec {
	var names []string
	for i := range regions {
		if w.intn(regions) < 4 {
			names = append(names, fmt.Sprintf("region-%02d", i))
		}
	}
	if len(names) == 0 {
		names = []string{"region-00"}
	}
	return &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Regions: names, VersionLabel: label,
		Env: map[string]string{"VERSION": strconv.Itoa(w.intn(1_000_000)), "LABEL": label},
	}
}

// heal undoes whatever is broken; agents and the plane run already.
func (w *world) heal() {
	time.Sleep(41 * time.Second) // the last cut's end
	for _, m := range w.agents {
		m.wire.cut(false)
	}
}

// converge waits until nothing moves any more, and then compares what the
// control plane says with what runs.
func (w *world) converge() {
	deadline := time.Now().Add(healing)
	var why string
	for time.Now().Before(deadline) {
		time.Sleep(5 * time.Second)
		if why = w.unsettled(); why == "" {
			return
		}
	}
	w.t.Fatalf("not converged after %v: %s", healing, why)
}

// unsettled says what is not yet as it should be, or nothing.
func (w *world) unsettled() string {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	list, err := w.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: &windlassv1.PageRequest{Size: 500}})
	if err != nil {
		return err.Error()
	}
	want := map[string]map[string]int{} // region, deployment: instances
	for _, app := range list.Apps {
		switch app.Status {
		case windlassv1.AppStatus_APP_STATUS_READY, windlassv1.AppStatus_APP_STATUS_IDLE, windlassv1.AppStatus_APP_STATUS_FAILED:
		default:
			return fmt.Sprintf("app %s is %v: %s", app.Name, app.Status, app.Message)
		}
		if app.RolloutId != "" {
			return fmt.Sprintf("app %s has rollout %s in flight", app.Name, app.RolloutId)
		}
		if app.LiveDeploymentId == "" {
			continue
		}
		d, err := w.deployments.GetDeployment(ctx, &windlassv1.GetDeploymentRequest{Deployment: app.LiveDeploymentId})
		if err != nil {
			return err.Error()
		}
		for _, r := range d.Deployment.Regions {
			if want[r.Region] == nil {
				want[r.Region] = map[string]int{}
			}
			want[r.Region][d.Deployment.Id] = int(r.Replicas)
			if r.Ready != r.Replicas {
				return fmt.Sprintf("app %s in %s: %d of %d ready", app.Name, r.Region, r.Ready, r.Replicas)
			}
		}
	}
	for name, m := range w.agents {
		region, err := w.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: name})
		if err != nil {
			return err.Error()
		}
		if region.Region.Status != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
			return fmt.Sprintf("region %s is %v", name, region.Region.Status)
		}
		quarantine, err := w.regions.ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: name, Page: &windlassv1.PageRequest{Size: 500}})
		if err != nil {
			return err.Error()
		}
		kept := map[string]bool{}
		for _, q := range quarantine.Workloads {
			kept[q.Key] = true
		}
		running := m.runtime.Running()
		for id, n := range running {
			if kept[id] {
				continue // runs on purpose: nobody said to stop it
			}
			if n != want[name][id] {
				return fmt.Sprintf("region %s runs %d of %s, want %d", name, n, id, want[name][id])
			}
		}
		for id, n := range want[name] {
			if running[id] != n {
				return fmt.Sprintf("region %s runs %d of %s, want %d", name, running[id], id, n)
			}
		}
	}
	return ""
}
