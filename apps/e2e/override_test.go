package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// testOverrides asserts that each region runs what its overrides say. A change for one region that needs no
// new version does not touch the other region.
func testOverrides(t *testing.T, s *stack) {
	const app = "echo-overrides"
	c := s.cli(t)
	file := example(t, "echo-overrides.yaml")
	plan := c.ok("plan", "-f", file)
	require.Regexp(t, `regions\["eu-west-1"\]\.extraArgs\[0\].*--token-rate`, plan)
	require.Contains(t, c.ok("deploy", "-f", file), "v1 is ready: 3 of 3 replicas")
	runs := func(what string, want map[string]int, check func(process) error) {
		t.Helper()
		s.eventually(t, what, func(context.Context) error {
			running := s.runningOf(app)
			for _, p := range running {
				if err := check(p); err != nil {
					return err
				}
			}
			return wantRunning(running, want)
		})
	}
	asWritten := func(p process) error {
		greeting, rate := map[string]string{us: "hello", eu: "bonjour"}[p.region()], slices.Index(p.argv, "--token-rate")
		switch {
		case p.env["GREETING"] != greeting || p.env["LANGUAGE"] != "en":
			return fmt.Errorf("%s says %s in %s", p, p.env["GREETING"], p.env["LANGUAGE"])
		case (rate >= 0) != (p.region() == eu):
			return fmt.Errorf("%s has other arguments", p)
		}
		return nil
	}
	runs("what each region's overrides say", map[string]int{us: 2, eu: 1}, asWritten)
	before := s.runningOf(app)

	require.Contains(t, c.run("", "deploy", "-f", file).stderr, "nothing changed")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	scaled := changed(t, text, "replicas: 1\n", "replicas: 2\n")
	require.Regexp(t, `regions\["eu-west-1"\]\.replicas.*1.*2`, c.ok("plan", "-f", scaled))
	require.Contains(t, c.run("", "deploy", "-f", scaled).stderr, "scaling v1")
	runs("one more in the region that was asked for", map[string]int{us: 2, eu: 2}, asWritten)
	require.Subset(t, keysOf(s.runningOf(app)), keysOf(before), "scaling one region touched running instances")

	// A number that a person sets also holds for the next version, if its file has no number.
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 3, Region: eu})
	must(t, s.owner.apps.SetEnvironment, &windlassv1.SetEnvironmentRequest{Mutation: mutation(), App: named(app), Set: map[string]string{"LANGUAGE": "fr", "GREETING": "salut"}})
	runs("variables of all regions, under those of one", map[string]int{us: 2, eu: 3}, func(p process) error {
		if want := map[string]string{us: "salut", eu: "bonjour"}[p.region()]; p.env["GREETING"] != want || p.env["LANGUAGE"] != "fr" {
			return fmt.Errorf("%s says %s in %s", p, p.env["GREETING"], p.env["LANGUAGE"])
		}
		return nil
	})
	s.waitLive(t, app, 2)

	c.fails(1, []string{"deploy", "-f", changed(t, text, "regions: [eu-west-1] #", "labels: {tier: none} #")},
		"overrides[0].labels", "none of the app's regions has these labels")
	c.ok("delete", app, "--yes")
}

// changed returns the path of a copy of the file in which now replaces old.
func changed(t *testing.T, text []byte, old, now string) string {
	t.Helper()
	require.Contains(t, string(text), old)
	path := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, now, 1)), 0o600))
	return path
}

// testRegionSecret asserts that only the region whose override names a secret gets the secret.
func testRegionSecret(t *testing.T, s *stack) {
	const app = "region-secret"
	set := func(value string) {
		must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{Mutation: mutation(), Environment: env, Name: app, Value: value})
	}
	set("one")
	s.deployReady(t, app, spec(func(sp *windlassv1.DeploymentSpec) {
		sp.Env = map[string]string{"TOKEN": "none"}
		sp.Overrides = []*windlassv1.Override{{Regions: []string{eu}, Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: app}}}}
	}))
	runs := func(value string) {
		t.Helper()
		s.eventually(t, "the region with the secret has "+value, func(context.Context) error {
			running := s.runningOf(app)
			for _, p := range running {
				if want := map[string]string{us: "none", eu: value}[p.region()]; p.env["TOKEN"] != want {
					return fmt.Errorf("%s has another value", p)
				}
			}
			return wantRunning(running, map[string]int{us: 1, eu: 1})
		})
	}
	runs("one")
	set("two")
	runs("two")
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named(app)})
}
