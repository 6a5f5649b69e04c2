package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// testServe deploys the examples that name an engine and a model. The commands that the presets generate run
// unchanged, with the model server in place of the engines.
func testServe(t *testing.T, s *stack) {
	c := s.cli(t)
	for _, engine := range []string{"vllm", "sglang"} {
		require.NoError(t, os.Symlink(example(t, filepath.Join("bin", engine)), filepath.Join(s.bin, engine)))
		file := example(t, "serve-"+engine+".yaml")
		app := "serve-" + engine
		require.Contains(t, c.ok("plan", "-f", file), "+ generatedBy: "+engine+"/1")
		out := c.ok("deploy", "-f", file)
		require.Contains(t, out, app+" v1 is ready: 2 of 2 replicas")
		spec := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: named(app), Version: 1}).Deployment.Spec
		require.Equal(t, engine+"/1", spec.GeneratedBy)
		urls := urlLine.FindAllString(out, -1)
		require.Len(t, urls, 2, out)
		for _, url := range urls {
			require.Equal(t, "four score", completion(t, url, "llama", "four score"))
			_, body, err := get(t.Context(), url+"/metrics")
			require.NoError(t, err)
			for _, m := range spec.GetGenerated().GetMetrics() {
				require.Contains(t, string(body), "\n"+m.Metric+"{", "the preset's name of %s", m.Signal)
			}
		}
		require.Regexp(t, `Changes:\s+none`, c.ok("preset", "diff", app))
		require.Contains(t, c.ok("preset", "show", engine, "--remote"), spec.GetGenerated().GetMetrics()[0].GetMetric())
		again := c.run("", "deploy", "-f", file)
		require.Zero(t, again.code, again.stderr)
		require.Contains(t, again.stderr, "nothing changed")
	}
	testCustomPreset(t, s, c)
	c.fails(1, []string{"preset", "render", "vllm", "--model", "hf://org/m", "--gpus", "8", "--tensor", "3"}, "tensor 3 x pipeline 1 x data 1 is 3")
}

// testServeOnHosts deploys the commands that presets make for several hosts. The ranks of the model server meet.
func testServeOnHosts(t *testing.T, s *stack) {
	for _, engine := range []string{"vllm", "sglang"} {
		app := engine + "-hosts"
		made := s.deployReady(t, app, podSpec(regions(us), pool("h100", 1), func(d *windlassv1.DeploymentSpec) {
			d.Args = nil
			d.Serve = &windlassv1.Serve{Engine: engine, Model: "file:///models/llama", Name: "llama"}
			d.Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: 2}}
		}))
		require.Len(t, s.podsOf(t, app), 2)
		require.Equal(t, "four score", completion(t, s.urls(t, app, 1)[0], "llama", "four score"))
		s.requireDeleted(t, made.AppId, app)
	}
}

// testCustomPreset deploys the example with a preset of the workspace, and edits the preset.
func testCustomPreset(t *testing.T, s *stack, c cli) {
	definition, file := example(t, filepath.Join("presets", "modelserver.yaml")), example(t, "serve-custom.yaml")
	c.fails(1, []string{"deploy", "-f", file}, "windlass preset set")
	require.Contains(t, c.run("", "preset", "set", "modelserver", "-f", definition).stderr, "preset custom:modelserver/1 is set")
	out := c.ok("deploy", "-f", file)
	require.Contains(t, out, "serve-custom v1 is ready: 2 of 2 replicas")
	url := urlLine.FindString(out)
	require.Equal(t, "four score", completion(t, url, "llama", "four score"))

	text := strings.Replace(c.ok("preset", "show", "custom:modelserver", "--definition"), "64 * gpus : 8", "64 * gpus : 16", 1)
	edited := filepath.Join(t.TempDir(), "modelserver.yaml")
	require.NoError(t, os.WriteFile(edited, []byte(text), 0o600))
	require.Contains(t, c.run("", "preset", "set", "modelserver", "-f", edited).stderr, "preset custom:modelserver/2 is set")
	for _, args := range [][]string{{"plan", "-f", file}, {"preset", "diff", "serve-custom"}} {
		plan := c.ok(args...)
		require.Contains(t, plan, "custom:modelserver/2")
		require.Contains(t, plan, "--concurrency")
	}
	require.Equal(t, "custom:modelserver/1", must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: named("serve-custom"), Version: 1}).Deployment.Spec.GeneratedBy)
}

// completion returns a model's answer to a prompt.
func completion(t *testing.T, url, model, prompt string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := plainHTTP.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var answer struct{ Choices []struct{ Text string } }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Len(t, answer.Choices, 1)
	return answer.Choices[0].Text
}
