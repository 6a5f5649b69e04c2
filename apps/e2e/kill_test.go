package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestKills_OfEachPartAlone kills every part during a rollout of an app. The rollout completes, and the
// instances of other apps keep running in the same processes.
func TestKills_OfEachPartAlone(t *testing.T) { //nolint:tparallel // its subtests share one stack
	t.Parallel()
	s := newStack(t, stackConfig{})
	s.deployReady(t, "steady", spec(replicas(2)))
	s.deployReady(t, "moving", spec(label("v1")))
	steady := s.runningOf("steady")
	require.Len(t, steady, 4)

	version := int32(1)
	for _, kill := range [][]string{
		{partControlPlane},
		{partRestate},
		{partMariaDB},
		{partAgent(us)},
		{partMariaDB, partRestate, partControlPlane, partAgent(us), partAgent(eu)},
	} {
		require.True(t, t.Run(strings.Join(kill, " and "), func(t *testing.T) {
			version++
			// The version loads long enough to be under way when the part is killed.
			d := s.deploy(t, "moving", spec(label(fmt.Sprint("v", version)), args("--load-time", "1s")))
			require.Equal(t, version, d.Version)
			s.eventually(t, "the first instance of the version runs", func(context.Context) error {
				if len(s.instances(func(p process) bool { return p.deployment() == d.DeploymentId })) == 0 {
					return fmt.Errorf("none does")
				}
				return nil
			})
			s.kill9(kill...)
			for _, p := range steady {
				require.True(t, p.alive(), "it died with %v: %s", kill, p)
			}
			for _, name := range kill {
				s.start(name)
			}
			s.waitLive(t, "moving", version)
			s.waitAgree(t)
			requireSame(t, steady, s.runningOf("steady"), "a healthy instance was restarted")
		}))
	}
	// Each subtest needs the stack in the state in which the subtest before leaves it.
	require.True(t, t.Run("the database or Restate is away", func(t *testing.T) { testAway(t, s) }))
	require.True(t, t.Run("a restarted part resumes where it was", func(t *testing.T) { testResume(t, s) }))
	require.True(t, t.Run("a region is out of reach", func(t *testing.T) { testUnreachable(t, s) }))
	require.True(t, t.Run("a region that is skipped catches up when it returns", func(t *testing.T) { testSkipped(t, s) }))
	require.True(t, t.Run("a version that is pinned arrives and leaves", func(t *testing.T) { testPinKilled(t, s) }))
	require.True(t, t.Run("instances and their shims", func(t *testing.T) { testKillInstances(t, s) }))
}

// testAway asserts that the health is correct and that calls return the right errors while the database or
// Restate is away.
func testAway(t *testing.T, s *stack) {
	steady := s.runningOf("steady")
	s.kill9(partMariaDB)
	s.eventually(t, "the control plane is alive and not ready", func(ctx context.Context) error {
		if status, body, err := get(ctx, s.metrics[partControlPlane]+"/healthz"); err != nil || status != 200 {
			return fatal{errors.Join(fmt.Errorf("/healthz: %d %s", status, body), err)}
		}
		if status, body, err := get(ctx, s.metrics[partControlPlane]+"/readyz"); err != nil || status != 503 || !strings.Contains(string(body), "database") {
			return errors.Join(fmt.Errorf("/readyz: %d %s", status, body), err)
		}
		return nil
	})
	_, err := s.owner.apps.ListApps(t.Context(), &windlassv1.ListAppsRequest{})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, reasonOf(err), "%v", err)
	s.start(partMariaDB)
	s.eventually(t, "the control plane is ready", func(ctx context.Context) error {
		status, body, err := get(ctx, s.metrics[partControlPlane]+"/readyz")
		if err != nil || status != 200 {
			return errors.Join(fmt.Errorf("/readyz: %d %s", status, body), err)
		}
		return nil
	})

	// Without Restate a change is accepted and done later.
	s.kill9(partRestate)
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named("moving"), Replicas: 2})
	s.start(partRestate)
	s.urls(t, "moving", 4)
	s.waitAgree(t)
	requireSame(t, steady, s.runningOf("steady"), "a healthy instance was restarted")
}

// testResume asserts that a restart of the control plane or of an agent needs no snapshot, and that a
// restarted agent adopts the running instances.
func testResume(t *testing.T, s *stack) {
	steady := s.runningOf("steady")
	s.restart(partControlPlane)
	s.waitStreams(t, 2)
	n, err := s.metric(t.Context(), partControlPlane, "windlass_feed_snapshots_total", "")
	require.NoError(t, err)
	require.Zero(t, n, "agents were sent snapshots after a restart of the control plane")

	s.kill9(partAgent(us))
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named("moving"), Replicas: 1})
	s.start(partAgent(us))
	s.waitConnected(us)
	s.urls(t, "moving", 2)
	s.waitAgree(t)
	n, err = s.metric(t.Context(), partControlPlane, "windlass_feed_snapshots_total", "")
	require.NoError(t, err)
	require.Zero(t, n, "an agent with its inbox was sent a snapshot")
	requireSame(t, steady, s.runningOf("steady"), "an agent did not adopt the running instances")
	starts, err := s.metric(t.Context(), partAgent(us), "deployment_instance_starts_total", "")
	require.NoError(t, err)
	require.Zero(t, starts, "the restarted agent started something")

	// An agent that lost its inbox receives a snapshot, and finds all instances running.
	s.kill9(partAgent(us))
	require.NoError(t, os.Remove(filepath.Join(s.agentDir(us), "data", "inbox.db")))
	s.start(partAgent(us))
	s.eventually(t, "a snapshot is sent", func(ctx context.Context) error {
		n, err := s.metric(ctx, partControlPlane, "windlass_feed_snapshots_total", "")
		if err == nil && n == 0 {
			err = errors.New("none is")
		}
		return err
	})
	s.waitAgree(t)
	requireSame(t, steady, s.runningOf("steady"), "an agent without its inbox touched running instances")
}

func (s *stack) waitStreams(t *testing.T, n float64) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%v agents have streams", n), func(ctx context.Context) error {
		got, err := s.metric(ctx, partControlPlane, "windlass_watch_streams", "")
		if err == nil && got != n {
			err = fmt.Errorf("%v have", got)
		}
		return err
	})
}

func testKillInstances(t *testing.T, s *stack) {
	victimIn := func(region string) process {
		for _, p := range s.runningOf("steady") {
			if p.region() == region {
				return p
			}
		}
		t.Fatalf("no instance of steady in %s", region)
		return process{}
	}
	for name, fault := range map[string]func(victim process){
		"the instance": func(victim process) { require.NoError(t, victim.kill9()) },
		"its shim": func(victim process) {
			shim, ok := shimOf(s.dir, victim.instance())
			require.True(t, ok, "no shim of %s", victim)
			require.NoError(t, shim.kill9())
		},
		"the agent and the instance": func(victim process) {
			s.kill9(partAgent(us))
			require.NoError(t, victim.kill9())
			s.start(partAgent(us))
		},
		"the agent, the shim and the instance": func(victim process) {
			shim, ok := shimOf(s.dir, victim.instance())
			require.True(t, ok, "no shim of %s", victim)
			s.kill9(partAgent(us))
			require.NoError(t, shim.kill9())
			_ = victim.kill9() // the instance may have ended with its shim
			s.start(partAgent(us))
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := s.runningOf("steady")
			victim := victimIn(us)
			fault(victim)
			s.eventually(t, "it is another process", func(context.Context) error {
				now := s.runningOf("steady")
				if victim.alive() || len(now) != len(before) {
					return fmt.Errorf("%d run, should be %d:\n%s", len(now), len(before), describe(now))
				}
				return nil
			})
			s.waitAgree(t)
			var kept []process
			for _, p := range before {
				if p.key() != victim.key() {
					kept = append(kept, p)
				}
			}
			now := s.runningOf("steady")
			require.Len(t, now, len(before))
			require.Subset(t, keysOf(now), keysOf(kept), "only the killed instance may be restarted")
		})
	}
}

// testUnreachable asserts that a region without its agent keeps serving, and that deletions wait for it.
func testUnreachable(t *testing.T, s *stack) {
	steady := s.runningOf("steady")
	s.deployReady(t, "leaving", spec(regions(eu)))
	s.deployReady(t, "abandoned", spec(regions(us, eu)))
	s.kill9(partAgent(eu))
	s.eventually(t, eu+" unreachable", func(ctx context.Context) error {
		resp, err := s.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: eu})
		if err != nil {
			return err
		}
		if resp.Region.Status != windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE {
			return fmt.Errorf("it is %s, last report %s ago", resp.Region.Status, time.Since(time.UnixMilli(resp.Region.LastReportAt)))
		}
		return nil
	})
	s.eventually(t, "the app says so", func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named("steady")})
		if err == nil && resp.App.Status != windlassv1.AppStatus_APP_STATUS_DEGRADED {
			err = fmt.Errorf("it is %s: %s", resp.App.Status, resp.App.Message)
		}
		return err
	})
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named("leaving")})
	requireSame(t, steady, s.runningOf("steady"), "a region that is out of reach was touched")
	require.Len(t, s.runningOf("leaving"), 1, "no agent was there to stop it")
	got := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named("leaving")}).App
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_DELETING, got.Status)

	// With AbandonUnreachable, a deletion does not wait for the region. The region removes the instances when
	// it returns, although the app does not exist any more.
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named("abandoned"), AbandonUnreachable: true})
	s.eventually(t, "the app does not exist any more", func(ctx context.Context) error {
		_, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named("abandoned")})
		if reasonOf(err) != windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	require.Len(t, s.runningOf("abandoned"), 1, "no agent was there to stop it")

	s.start(partAgent(eu))
	s.waitGoneApp(t, named("leaving"), "leaving")
	s.waitGoneApp(t, named("abandoned"), "abandoned")
	s.waitAgree(t)
	requireSame(t, steady, s.runningOf("steady"), "a healthy instance was restarted")
}
