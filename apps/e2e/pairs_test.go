package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pairsSpec returns a pool whose requests the gateways send to pairs of an engine's servers. Each server has the
// version's label, and refuses a partner of another version.
func pairsSpec(kind string, change ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	sp := spec(regions(us))
	sp.Layout, sp.Replicas = windlassv1.Layout_LAYOUT_POOLED, nil
	prefill := &windlassv1.RoleSpec{Name: "prefill", Instances: 2}
	decode := &windlassv1.RoleSpec{Name: "decode", Instances: 2, Entry: true, StartsAfter: []string{"prefill"}}
	sp.Roles, sp.Args = []*windlassv1.RoleSpec{prefill, decode}, nil
	sp.Env = map[string]string{"MODELSERVER_TOKEN_RATE": "200", "MODELSERVER_DRAIN_TIMEOUT": "10s"}
	sp.HealthCheck.Path = "/health"
	switch kind {
	case "nixl":
		sp.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL}
		sp.Env["VLLM_NIXL_SIDE_CHANNEL_HOST"], sp.Env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "127.0.0.1", "0"
		command := func(role string) []string {
			return []string{"vllm", "serve", "echo", "--port", "$(PORT)", "--shutdown-timeout", "10", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"` + role + `"}`}
		}
		prefill.Args, decode.Args = command("kv_producer"), command("kv_consumer")
	case "sglang":
		sp.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_SGLANG}
		sp.Ports = append(sp.Ports, &windlassv1.Port{Name: "bootstrap"})
		command := func(role string) []string {
			return []string{"sglang", "--model-path", "echo", "--host", "127.0.0.1", "--port", "$(PORT)", "--disaggregation-mode", role}
		}
		prefill.Args, decode.Args = append(command("prefill"), "--disaggregation-bootstrap-port", "$(PORT_BOOTSTRAP)"), command("decode")
	}
	for _, f := range change {
		f(sp)
	}
	return sp
}

// ofVersion makes another version of all servers. Servers of different versions do not work with each other.
func ofVersion(v string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.VersionLabel, s.Env["MODELSERVER_VERSION_LABEL"] = v, v }
}

// pairsSeen counts the answers, by the versions of the pair: "v1+v1".
type pairsSeen struct {
	// alone means that servers may also answer alone.
	alone bool
	mu    sync.Mutex
	all   map[string]int
}

func (p *pairsSeen) of(pair string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[pair]
}

// completePair sends a completion, whose answer is a stream, and records the versions of the pair.
func (p *pairsSeen) completePair(ctx context.Context, client *http.Client, gateway, host string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body := `{"model": "echo", "stream": true, "prompt": "one two three four five"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	prefill, decode := resp.Header.Get("X-Prefill-Version"), resp.Header.Get("X-Model-Version")
	switch {
	case err != nil:
		return fmt.Errorf("after %d bytes: %w", len(answer), err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %.300s", resp.Status, answer)
	case strings.Count(string(answer), "data: ") < 5 || !strings.Contains(string(answer), "[DONE]"):
		return fmt.Errorf("the answer is %.300s", answer)
	case prefill != decode && (prefill != "" || !p.alone):
		return fmt.Errorf("mixed pair: %q prefilled, and %q decoded", prefill, decode)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[prefill+"+"+decode]++
	return nil
}

// testPairs tests that no request fails, and that none has a mixed pair, while roles are updated and scaled.
func testPairs(t *testing.T, s *stack, kind string) {
	app := "pairs-" + kind
	c := s.cli(t)
	s.deployReady(t, app, pairsSpec(kind, ofVersion("v1")))
	s.waitPool(t, app, 1, 2, 2)
	require.Contains(t, c.ok("export", app), "engine: "+kind)
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)
	seen := &pairsSeen{all: map[string]int{}}
	load := s.callersOf(func(ctx context.Context, client *http.Client, url string) error {
		return seen.completePair(ctx, client, url, host)
	})
	t.Cleanup(load.stop)
	answers := func(pair string) {
		t.Helper()
		s.eventually(t, "answers of "+pair, func(context.Context) error {
			if n := seen.of(pair); n < 20 {
				return fmt.Errorf("%d answers", n)
			}
			return nil
		})
	}
	answers("v1+v1")

	// Only decode servers change, in a way that prefill servers do not see.
	prefills := keysOf(s.role(app, "prefill"))
	s.deployReady(t, app, pairsSpec(kind, ofVersion("v1"), func(sp *windlassv1.DeploymentSpec) { sp.Roles[1].Env = map[string]string{"NOTE": "2"} }))
	s.waitPool(t, app, 2, 2, 2)
	require.ElementsMatch(t, prefills, keysOf(s.role(app, "prefill")), "prefill servers were replaced")
	load.requireNoneFailed(t, "an update of decode servers")

	s.deployReady(t, app, pairsSpec(kind, ofVersion("v2")))
	s.waitPool(t, app, 3, 2, 2)
	answers("v2+v2")
	load.requireNoneFailed(t, "an update of both roles")

	for role, n := range map[string]int32{"prefill": 1, "decode": 1} {
		must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Role: role, Replicas: n})
	}
	s.waitPool(t, app, 3, 1, 1)
	load.requireNoneFailed(t, "fewer servers of both roles")
	load.stop()
	load.requireNoneFailed(t, "the end")
	t.Logf("%d requests, pairs %v", load.count(), seen.all)
	c.ok("delete", app, "--yes")
}

// testPairingInPlace tests that no request fails while updates in place set pairing and change its engine. Until
// servers are replaced, they get requests in the form of their own version.
func testPairingInPlace(t *testing.T, s *stack) {
	const app = "pairs-later"
	of := func(kind, v string) *windlassv1.DeploymentSpec {
		return pairsSpec(kind, ofVersion(v), func(sp *windlassv1.DeploymentSpec) {
			sp.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_PARALLEL}
			sp.Env["MODELSERVER_LOAD_TIME"] = "2s"
		})
	}
	first := of("nixl", "v1")
	first.Pairing = nil
	s.deployReady(t, app, first)
	s.waitPool(t, app, 1, 2, 2)
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)
	seen := &pairsSeen{alone: true, all: map[string]int{}}
	load := s.callersOf(func(ctx context.Context, client *http.Client, url string) error {
		return seen.completePair(ctx, client, url, host)
	})
	t.Cleanup(load.stop)
	for n, kind := range []string{"nixl", "sglang"} {
		version := fmt.Sprint("v", n+2)
		s.deployReady(t, app, of(kind, version))
		s.waitPool(t, app, n+2, 2, 2)
		s.eventually(t, "answers of pairs of "+kind, func(context.Context) error {
			if got := seen.of(version + "+" + version); got < 20 {
				return fmt.Errorf("%d answers", got)
			}
			return nil
		})
		load.requireNoneFailed(t, "an update in place to "+kind)
	}
	load.stop()
	load.requireNoneFailed(t, "the end")
	t.Logf("%d requests, pairs %v", load.count(), seen.all)
	s.cli(t).ok("delete", app, "--yes")
}

// testPairsOnKubernetes tests that gateways pair pods, and that an update of both roles fails no request.
func testPairsOnKubernetes(t *testing.T, s *stack) {
	const app = "pairs"
	pods := func(v string) *windlassv1.DeploymentSpec {
		return pairsSpec("nixl", ofVersion(v), func(sp *windlassv1.DeploymentSpec) {
			sp.Command, sp.Image = nil, anyImage
			sp.HealthCheck.Interval = seconds(1)
			sp.DrainDelay, sp.TerminationGrace = seconds(1), seconds(5)
			sp.Env["MODELSERVER_DRAIN_TIMEOUT"] = "4s"
			sp.Kubernetes = &windlassv1.KubernetesOptions{RunAsUser: new(int64(1000))}
			for _, r := range sp.Roles {
				r.Instances = 1
			}
		})
	}
	s.deployReady(t, app, pods("v1"))
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)
	seen := &pairsSeen{all: map[string]int{}}
	load := s.callersOf(func(ctx context.Context, client *http.Client, _ string) error {
		return seen.completePair(ctx, client, s.gateways[us], host)
	})
	t.Cleanup(load.stop)
	answers := func(pair string) {
		t.Helper()
		s.eventually(t, "answers of "+pair, func(context.Context) error {
			if n := seen.of(pair); n < 20 {
				return fmt.Errorf("%d answers", n)
			}
			return nil
		})
	}
	answers("v1+v1")
	resp := s.deployReady(t, app, pods("v2"))
	s.waitLive(t, app, resp.Version)
	answers("v2+v2")
	load.stop()
	load.requireNoneFailed(t, "an update of both roles")
	t.Logf("%d requests, pairs %v", load.count(), seen.all)
}

// testCanaryOfPairs tests that a canary of both roles goes back by its latency, and that no request fails or has a
// mixed pair.
func testCanaryOfPairs(t *testing.T, s *stack) {
	const app = "pairs-canary"
	c := s.cli(t)
	first := s.deployReady(t, app, pairsSpec("nixl", ofVersion("v1")))
	s.waitPool(t, app, 1, 2, 2)
	host := s.host(t, app, windlassv1.Route_KIND_STABLE, 0)
	seen := &pairsSeen{all: map[string]int{}}
	load := s.callersOf(func(ctx context.Context, client *http.Client, url string) error {
		return seen.completePair(ctx, client, url, host)
	})
	t.Cleanup(load.stop)
	slow := pairsSpec("nixl", ofVersion("v2"), func(sp *windlassv1.DeploymentSpec) { sp.Env["MODELSERVER_TIME_TO_FIRST_TOKEN"] = "1500ms" })
	bad := s.deployBy(t, app, slow, &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "1m"}},
		Analysis: []*windlassv1.AnalysisCheck{{
			Template: windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95, Max: new(1.0), FailureLimit: 1, Interval: seconds(3), Window: seconds(20), MinSamples: 5,
		}},
	})
	d := s.waitFailed(t, app, bad)
	require.Equal(t, "AnalysisFailed", d.Reason, d.Message)
	require.Positive(t, seen.of("v2+v2"), "the canary got no request")
	s.waitGone(t, bad.DeploymentId)
	s.waitPool(t, app, int(first.Version), 2, 2)
	load.stop()
	load.requireNoneFailed(t, "a canary that went back")
	t.Logf("%d requests, pairs %v", load.count(), seen.all)
	c.ok("delete", app, "--yes")
}
