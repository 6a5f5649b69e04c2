package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// resources are all objects of the workspace that the API lists.
type resources struct {
	apps        []*windlassv1.App
	deployments []*windlassv1.Deployment
	instances   []*windlassv1.Instance
}

func (s *stack) resources(ctx context.Context) (w resources, err error) {
	page := &windlassv1.PageRequest{Size: 500}
	for {
		resp, err := s.owner.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: page})
		if err != nil {
			return w, fmt.Errorf("list apps: %w", err)
		}
		w.apps = append(w.apps, resp.Apps...)
		if page.Token = resp.Page.GetNext(); page.Token == "" {
			break
		}
	}
	for {
		resp, err := s.owner.deployments.ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{Page: page})
		if err != nil {
			return w, fmt.Errorf("list deployments: %w", err)
		}
		w.deployments = append(w.deployments, resp.Deployments...)
		if page.Token = resp.Page.GetNext(); page.Token == "" {
			break
		}
	}
	for {
		resp, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{Page: page})
		if err != nil {
			return w, fmt.Errorf("list instances: %w", err)
		}
		w.instances = append(w.instances, resp.Instances...)
		if page.Token = resp.Page.GetNext(); page.Token == "" {
			break
		}
	}
	return w, nil
}

// agree returns an error unless everything is settled and the API agrees with the running processes. No rollout is
// under way, live deployments are complete, and all other deployments are stopped. Each instance has one process, and
// each process belongs to an instance.
func (s *stack) agree(ctx context.Context) error {
	w, err := s.resources(ctx)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, app := range w.apps {
		live[app.LiveDeploymentId] = app.LiveDeploymentId != ""
		switch app.Status {
		case windlassv1.AppStatus_APP_STATUS_READY:
		case windlassv1.AppStatus_APP_STATUS_IDLE, windlassv1.AppStatus_APP_STATUS_FAILED:
			if app.LiveVersion != 0 {
				return fmt.Errorf("%s is %s and v%d is live: %s", app.Name, app.Status, app.LiveVersion, app.Message)
			}
		default:
			return fmt.Errorf("%s is %s: %s", app.Name, app.Status, app.Message)
		}
		resp, err := s.owner.rollouts.ListRollouts(ctx, &windlassv1.ListRolloutsRequest{App: app.Id})
		if err != nil {
			return fmt.Errorf("rollouts of %s: %w", app.Name, err)
		}
		for _, r := range resp.Rollouts {
			if r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
				return fmt.Errorf("rollout %s of %s v%d is under way", r.Id, app.Name, r.Version)
			}
		}
	}
	// want is the number of instances that should run, by deployment and region.
	want := map[string]int{}
	for _, d := range w.deployments {
		if d.Status < windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY {
			return fmt.Errorf("%s v%d is %s, and no rollout carries it", d.AppName, d.Version, d.Status)
		}
		for _, r := range d.Regions {
			switch {
			case (live[d.Id] || d.PinnedWeight > 0) && r.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
				want[d.Id+" in "+r.Region] = instancesWanted(r)
			case r.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
				return fmt.Errorf("%s v%d (live: %v) is %s in %s", d.AppName, d.Version, live[d.Id], r.Status, r.Region)
			}
		}
	}
	workloads, err := s.workloads(ctx)
	if err != nil {
		return err
	}
	return sameInstances(w, workloads, instancesOf(s.dir), want)
}

// instancesWanted returns how many instances should run in the region, of all roles if there are several.
func instancesWanted(r *windlassv1.RegionTopology) int {
	if len(r.Roles) == 0 {
		return int(r.Replicas)
	}
	n := 0
	for _, role := range r.Roles {
		n += int(role.Wanted)
	}
	return n
}

// workloads returns, for each deployment that took over instances, the deployment that the instances had at
// first.
func (s *stack) workloads(ctx context.Context) (map[string]string, error) {
	db, err := s.database.Open("windlass")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, "SELECT deployment_id, workload FROM deployment_topology WHERE workload <> ''")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	out := map[string]string{}
	for rows.Next() {
		var deployment, workload string
		if err := rows.Scan(&deployment, &workload); err != nil {
			return nil, err
		}
		out[deployment] = workload
	}
	return out, rows.Err()
}

func sameInstances(w resources, workloads map[string]string, runs []process, want map[string]int) error {
	found := map[string]int{}
	processes := byInstance(runs)
	args := map[string][]string{}
	for _, d := range w.deployments {
		args[d.Id] = d.Spec.GetArgs()
	}
	for _, i := range w.instances {
		if i.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			return fmt.Errorf("instance %s of %s v%d in %s is %s: %s", i.Id, i.AppName, i.Version, i.Region, i.Status, i.Reason)
		}
		found[i.DeploymentId+" in "+i.Region]++
		got := processes[i.Id]
		if len(got) != 1 {
			return fmt.Errorf("instance %s of %s v%d in %s has %d processes:\n%s", i.Id, i.AppName, i.Version, i.Region, len(got), describe(got))
		}
		p := got[0]
		// An instance that a version took over unchanged has the environment of its first version.
		was, is := p.deployment(), i.DeploymentId
		same := was == is || cmp.Or(workloads[was], was) == cmp.Or(workloads[is], is) && slices.Equal(args[was], args[is])
		if !same || p.region() != i.Region {
			return fmt.Errorf("instance %s should be of %s in %s, and is %s", i.Id, i.DeploymentId, i.Region, p)
		}
		delete(processes, i.Id)
	}
	for _, orphans := range processes {
		return fmt.Errorf("processes of no known instance:\n%s", describe(orphans))
	}
	for place, n := range want {
		if found[place] != n {
			return fmt.Errorf("%d instances of %s, should be %d", found[place], place, n)
		}
		delete(found, place)
	}
	for place, n := range found {
		return fmt.Errorf("%d instances of %s, should be none", n, place)
	}
	return nil
}

// waitAgree waits until everything is settled.
func (s *stack) waitAgree(t *testing.T) {
	t.Helper()
	s.eventually(t, "API and processes agree", s.agree)
}

// picture returns everything that helps to explain a failure, without objects that have ended.
func (s *stack) picture() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	w, err := s.resources(ctx)
	if err != nil {
		fmt.Fprintf(&b, "the API says: %v\n", err)
	}
	for _, a := range w.apps {
		fmt.Fprintf(&b, "app %s %s live v%d latest v%d %s: %s\n", a.Name, a.Id, a.LiveVersion, a.LatestVersion, a.Status, a.Message)
		for _, d := range w.deployments {
			if d.AppId != a.Id {
				continue
			}
			over := func(r *windlassv1.RegionTopology) bool {
				return r.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED && r.Instances == 0
			}
			regions := slices.DeleteFunc(slices.Clone(d.Regions), over)
			if len(regions) == 0 && d.Id != a.LiveDeploymentId && d.Version != a.LatestVersion {
				continue
			}
			fmt.Fprintf(&b, "  v%d %s %s %s: %s\n", d.Version, d.Id, d.Status, d.Reason, d.Message)
			for _, r := range regions {
				fmt.Fprintf(&b, "    %s %s replicas %d generation %d applied %d: %d instances, %d ready, %d running, %d failed; %s %s unreachable %v\n",
					r.Region, r.Status, r.Replicas, r.Generation, r.AppliedGeneration, r.Instances, r.Ready, r.Running, r.Failed, r.Reason, r.Message, r.RegionUnreachable)
			}
		}
	}
	fmt.Fprintf(&b, "instances run:\n%s\n", describe(instancesOf(s.dir)))
	if err := s.unsettled(ctx, &b); err != nil {
		fmt.Fprintf(&b, "the database says: %v\n", err)
	}
	return b.String()
}

// unsettled writes the history of every app that has an unfinished deployment, including deleted apps.
func (s *stack) unsettled(ctx context.Context, b *strings.Builder) error {
	db, err := s.database.Open("windlass")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, "SELECT h.app_id, FROM_UNIXTIME(h.at / 1000), h.version, h.what, h.who, h.why, COALESCE(d.status, 0) "+
		"FROM history h LEFT JOIN deployments d ON d.id = h.deployment_id "+
		"WHERE h.app_id IN (SELECT app_id FROM deployments WHERE status BETWEEN 1 AND 4) ORDER BY h.app_id, h.id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var app, at, what, who, why string
		var version, status int
		if err := rows.Scan(&app, &at, &version, &what, &who, &why, &status); err != nil {
			return err
		}
		fmt.Fprintf(b, "%s %s v%d (%s) %s by %s: %s\n", app, at, version, windlassv1.DeploymentStatus(status), what, who, why)
	}
	return rows.Err()
}

// deleteAllApps deletes all apps, and asserts that nothing of them is left.
func (s *stack) deleteAllApps() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	left := errors.New("not tried")
	for left != nil && ctx.Err() == nil {
		left = func() error {
			w, err := s.resources(ctx)
			if err != nil {
				return err
			}
			for _, app := range w.apps {
				if app.Status == windlassv1.AppStatus_APP_STATUS_DELETING {
					continue
				}
				_, err := s.owner.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: app.Id})
				if err != nil {
					return fmt.Errorf("delete %s: %w", app.Name, err)
				}
			}
			if runs := instancesOf(s.dir); len(runs) > 0 || len(w.apps) > 0 {
				return fmt.Errorf("%d apps are left, and run:\n%s", len(w.apps), describe(runs))
			}
			return s.nothingClaimsToRun(ctx, "")
		}()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	if left != nil {
		s.t.Errorf("deleting every app: %v\n%s", left, s.picture())
	}
}

// nothingClaimsToRun returns an error if a row of the database says that something of the app runs or should
// run. An empty appID means all apps.
func (s *stack) nothingClaimsToRun(ctx context.Context, appID string) error {
	for what, query := range map[string]string{
		"topology that is not stopped":      "SELECT COUNT(*) FROM deployment_topology WHERE status <> 4 AND (? = '' OR app_id = ?)",
		"instances that are not terminated": "SELECT COUNT(*) FROM instances WHERE status <> 7 AND (? = '' OR app_id = ?)",
		"deployments on their way":          "SELECT COUNT(*) FROM deployments WHERE status BETWEEN 1 AND 4 AND (? = '' OR app_id = ?)",
		"rollouts under way":                "SELECT COUNT(*) FROM rollouts WHERE status = 1 AND (? = '' OR app_id = ?)",
	} {
		n, err := s.count(ctx, query, appID, appID)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if n > 0 {
			return fmt.Errorf("%d %s", n, what)
		}
	}
	return nil
}

// count returns the result of a query for one number.
func (s *stack) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	db, err := s.database.Open("windlass")
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	return n, db.QueryRowContext(ctx, query, args...).Scan(&n)
}

// requireSame asserts that exactly these processes still run.
func requireSame(t *testing.T, before []process, now []process, why string) {
	t.Helper()
	require.Equal(t, keysOf(before), keysOf(now), "%s\nbefore:\n%s\nnow:\n%s", why, describe(before), describe(now))
}
