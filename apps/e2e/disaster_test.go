package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestLoseRestate removes Restate's data directory while a rollout is under way. The rollout completes,
// because the database has all state.
func TestLoseRestate(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	s.deployReady(t, "steady", spec(replicas(2)))
	s.deployReady(t, "moving", spec(label("v1")))
	steady := s.runningOf("steady")

	d := s.deploy(t, "moving", spec(label("v2"), args("--load-time", "3s")))
	s.kill9(partRestate)
	require.NoError(t, os.RemoveAll(s.restateConfig.Dir))
	s.start(partRestate)
	s.waitLive(t, "moving", d.Version)
	s.waitAgree(t)
	requireSame(t, steady, s.runningOf("steady"), "losing Restate touched a healthy instance")

	// Later rollouts work, too.
	s.deployReady(t, "moving", spec(label("v3")))
	s.deployReady(t, "fresh", spec())
	s.waitAgree(t)
}

// TestRestoreDatabase sets the database back to an earlier copy: once with a copy of its files while the control plane
// runs, and once with the commands for backups, while gateways serve.
func TestRestoreDatabase(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"files under a running control plane": true, "a backup by the command line": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRestore(t, running)
		})
	}
}

func testRestore(t *testing.T, running bool) {
	s := newStack(t, stackConfig{gateways: !running})
	s.deployReady(t, "steady", spec(replicas(2)))
	s.deployReady(t, "moved", spec(label("v1")))
	deleted := s.deployReady(t, "deleted", spec())
	steady := s.runningOf("steady")
	backup := filepath.Join(s.dir, "backup")
	var load *callers
	if running {
		s.backup(t, backup)
	} else {
		load = s.callers(s.host(t, "steady", windlassv1.Route_KIND_STABLE, 0))
		t.Cleanup(load.stop)
		s.controlPlaneCommand(t, "backup", "create", backup)
		require.Contains(t, s.controlPlaneCommand(t, "backup", "verify", backup), "whole: taken ")
	}
	epochs := s.epochs(t)

	// These changes are newer than the copy.
	v2 := s.deployReady(t, "moved", spec(label("v2")))
	s.waitAgree(t)
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named("deleted")})
	s.waitGoneApp(t, named("deleted"), "deleted")
	late := s.deployReady(t, "late", spec(regions(us)))
	s.waitAgree(t)
	unknown := s.instances(func(p process) bool { return p.deployment() == v2.DeploymentId || p.deployment() == late.DeploymentId })
	require.Len(t, unknown, 3)

	began := time.Now()
	if running {
		s.stop(partMariaDB)
		require.NoError(t, os.RemoveAll(s.mariadbConfig.Dir))
		require.NoError(t, os.CopyFS(s.mariadbConfig.Dir, os.DirFS(backup)))
		s.start(partMariaDB)
	} else {
		s.stop(partControlPlane)
		require.Contains(t, s.controlPlaneCommand(t, "backup", "restore", "--replace", backup), "restored: taken ")
		s.start(partControlPlane)
	}

	// The agents notice the restore, and all apps of the copy become live again.
	s.eventually(t, "the regions are in a new epoch", func(ctx context.Context) error {
		for region, epoch := range s.epochs(t) {
			if epoch <= epochs[region] {
				return fmt.Errorf("%s is in epoch %d, as before", region, epoch)
			}
		}
		return nil
	})
	s.waitLive(t, "steady", 1)
	s.waitLive(t, "moved", 1)
	s.waitLive(t, "deleted", 1)
	t.Logf("every app that the copy knows of is live %s after the restore began", time.Since(began).Round(10*time.Millisecond))
	require.Len(t, s.instances(func(p process) bool { return p.deployment() == deleted.DeploymentId }), 2)
	requireSame(t, steady, s.runningOf("steady"), "a healthy instance was stopped")

	// Workloads that the copy does not know keep running and are listed, until a person releases them.
	s.waitQuarantined(t, us, v2.DeploymentId, late.DeploymentId)
	s.waitQuarantined(t, eu, v2.DeploymentId)
	for _, p := range unknown {
		require.True(t, p.alive(), "it was stopped without a request: %s", p)
	}
	s.deployReady(t, "moved", spec(label("again")))
	require.True(t, slices.ContainsFunc(unknown, process.alive))

	approved := must(t, s.owner.regions.ApprovePrune, &windlassv1.ApprovePruneRequest{Mutation: mutation(), Region: us, Keys: []string{v2.DeploymentId}})
	require.Equal(t, int32(1), approved.Approved)
	s.waitQuarantined(t, us, late.DeploymentId)
	s.eventually(t, "exactly that one is gone", func(context.Context) error {
		for _, p := range unknown {
			if approved := p.deployment() == v2.DeploymentId && p.region() == us; p.alive() == approved {
				return fmt.Errorf("alive %v: %s", p.alive(), p)
			}
		}
		return nil
	})
	must(t, s.owner.regions.ApprovePrune, &windlassv1.ApprovePruneRequest{Mutation: mutation(), Region: us, Keys: []string{late.DeploymentId}})
	must(t, s.owner.regions.ApprovePrune, &windlassv1.ApprovePruneRequest{Mutation: mutation(), Region: eu, Keys: []string{v2.DeploymentId}})
	s.waitQuarantined(t, us)
	s.waitQuarantined(t, eu)
	s.waitAgree(t)
	requireSame(t, steady, s.runningOf("steady"), "a healthy instance was stopped")
	if load != nil {
		load.stop()
		load.requireNoneFailed(t, "a backup and its restore")
	}
}

// controlPlaneCommand runs a command of the control plane's program on the database, and returns what it printed.
func (s *stack) controlPlaneCommand(t *testing.T, args ...string) string {
	t.Helper()
	built, err := programs()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(built, "controlplane"), args...)
	cmd.Env = s.environ(append(s.caArgs("WINDLASS_MYSQL_CA"), s.dsn())...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "controlplane %v", args)
	return string(out)
}

// backup stops the database, copies its files, and starts it again.
func (s *stack) backup(t *testing.T, dir string) {
	t.Helper()
	s.stop(partMariaDB)
	require.NoError(t, os.CopyFS(dir, os.DirFS(s.mariadbConfig.Dir)))
	s.start(partMariaDB)
}

// epochs returns the epochs of the regions, by id.
func (s *stack) epochs(t *testing.T) map[string]int64 {
	t.Helper()
	db, err := s.database.Open("windlass")
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), "SELECT region, epoch FROM region_heads")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	out := map[string]int64{}
	for rows.Next() {
		var region string
		var epoch int64
		require.NoError(t, rows.Scan(&region, &epoch))
		out[region] = epoch
	}
	require.NoError(t, rows.Err())
	return out
}

// waitQuarantined waits until exactly these deployments are quarantined in the region.
func (s *stack) waitQuarantined(t *testing.T, region string, deployments ...string) {
	t.Helper()
	slices.Sort(deployments)
	s.eventually(t, fmt.Sprintf("%s quarantines %v", region, deployments), func(ctx context.Context) error {
		resp, err := s.owner.regions.ListQuarantine(ctx, &windlassv1.ListQuarantineRequest{Region: region})
		if err != nil {
			return err
		}
		var got []string
		for _, w := range resp.Workloads {
			got = append(got, w.Key)
		}
		slices.Sort(got)
		if !slices.Equal(got, deployments) {
			return fmt.Errorf("it does %v", got)
		}
		return nil
	})
}
