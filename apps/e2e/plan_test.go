package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// planned has the fields of `windlass plan -o json` that these tests read.
type planned struct {
	WouldRun bool
	Outcome  string
	Version  int32
	Findings []struct{ Reason, Field string }
	Steps    []struct {
		Kind, Wave, Region string
		Versions           []struct{ Version, Replicas, Weight int32 }
	}
}

// replicasOf returns the numbers of replicas of v1 and v2 in each region after each move.
func (p planned) replicasOf() map[string][][2]int32 {
	out := map[string][][2]int32{}
	for _, s := range p.Steps {
		if s.Kind != "KIND_MOVE" {
			continue
		}
		var now [2]int32
		for _, v := range s.Versions {
			now[v.Version-1] = v.Replicas
		}
		if all := out[s.Region]; len(all) == 0 || all[len(all)-1] != now {
			out[s.Region] = append(all, now)
		}
	}
	return out
}

var moved = regexp.MustCompile(`v([12]) (\d+) -> (\d+)`)

// movedTo returns the same as replicasOf, from the app's history. It begins with replicas of v1.
func (s *stack) movedTo(t *testing.T, app, rollout string, replicas int32) map[string][][2]int32 {
	t.Helper()
	regions := map[string]string{}
	for _, r := range must(t, s.owner.regions.ListRegions, &windlassv1.ListRegionsRequest{}).Regions {
		regions[r.Id], regions[r.Name] = r.Name, r.Name
	}
	entries := must(t, s.owner.history.ListHistory, &windlassv1.ListHistoryRequest{App: named(app), Page: &windlassv1.PageRequest{Size: 500}}).Entries
	slices.Reverse(entries)
	out := map[string][][2]int32{}
	for _, h := range entries {
		if h.RolloutId != rollout || h.What != "ReplicasMoved" {
			continue
		}
		region := regions[h.Region]
		now := [2]int32{replicas, 0}
		if all := out[region]; len(all) > 0 {
			now = all[len(all)-1]
		}
		text, _, _ := strings.Cut(h.Why, ";")
		for _, m := range moved.FindAllStringSubmatch(text, -1) {
			to, err := strconv.ParseInt(m[3], 10, 32)
			require.NoError(t, err)
			now[m[1][0]-'1'] = int32(to)
		}
		out[region] = append(out[region], now)
	}
	return out
}

// testPlan asserts that a deploy makes the moves of its plan, in order, in each region.
func testPlan(t *testing.T, s *stack) {
	const app = "previewed"
	c := s.cli(t)
	file := func(label string) string {
		path := filepath.Join(t.TempDir(), "app.yaml")
		text := fmt.Sprintf(`app: %s
command: [modelserver, --model, echo, --time-to-first-token, 0s, --token-rate, "0", --drain-timeout, 2s]
env: {LABEL: %s}
resources: {cpuMillicores: 50, memoryMib: 64}
healthCheck: {interval: 250ms, timeout: 5s, unhealthyThreshold: 8, healthyThreshold: 1, startupBudget: 90s}
regions: [%s, %s]
replicas: 2
rollout:
  strategy: canary
  maxSurge: "1"
  steps: [{weight: 40, pause: manual}]
  waves: [{name: canary, regions: [%s]}, {name: rest}]
`, app, label, us, eu, eu)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	first := file("one-value")
	out := c.ok("plan", "-f", first)
	require.Contains(t, out, "the first version of a new app")
	require.NotContains(t, out, "one-value")
	r := c.run("", "status", app)
	require.NotZero(t, r.code, "a plan makes no app: %s", r.stdout)
	c.ok("deploy", "-f", first)
	v1 := s.waitLive(t, app, 1).LiveDeploymentId

	second := file("another-value")
	var p planned
	c.json(&p, "plan", "-f", second)
	require.True(t, p.WouldRun)
	require.Equal(t, "OUTCOME_ROLLOUT", p.Outcome)
	require.Equal(t, int32(2), p.Version)
	var gates []string
	for _, step := range p.Steps {
		if step.Kind == "KIND_GATE" {
			gates = append(gates, step.Wave+" "+step.Region)
		}
	}
	require.Equal(t, []string{"canary " + eu, "rest " + us}, gates)

	c.ok("deploy", "-f", second, "--wait=false")
	rollout := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(app)}).App.RolloutId
	for _, region := range []string{eu, us} {
		s.waitPromotion(t, rollout, region)
		c.ok("rollout", "promote", app)
	}
	s.waitLive(t, app, 2)
	s.waitGone(t, v1)
	done := s.movedTo(t, app, rollout, 2)
	for region, all := range done {
		// When the new version is live, the rest of the old version stops at once.
		if last := all[len(all)-1]; last[0] > 0 {
			done[region] = append(all, [2]int32{0, last[1]})
		}
	}
	require.Equal(t, p.replicasOf(), done, "the moves of the plan, and the moves that were made")

	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("app: "+app+"\ncommand: [modelserver]\nregions: [mars]\nsecrets: [{envName: A, secret: none}]\n"), 0o600))
	r = c.run("", "plan", "-f", bad, "-o", "json")
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stdout, "ERROR_REASON_UNKNOWN_REGION")
	require.Contains(t, r.stdout, "ERROR_REASON_UNKNOWN_SECRET")
	require.Equal(t, 1, c.run("", "plan", "-f", bad+".none").code)
}
