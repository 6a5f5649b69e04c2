package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Pairs sends streaming completions through pairs of prefill and decode servers while the servers, their agent and their
// gateway change or are killed. All are real processes. The load is open: requests come independently of how long
// answers take. An event is repeated until it had --requests requests.
//
// It fails if a request fails, except one that was in flight when a server was killed, or if the two servers of a request
// are of different versions. The servers refuse that.
//
// What limits it: servers, gateway and load share the processor.
type Pairs struct {
	Requests int      `help:"Requests during each event." default:"300"`
	Rate     float64  `help:"Requests per second." default:"100"`
	Engine   string   `help:"Engine of the servers: ${enum}." enum:"nixl,sglang" default:"nixl"`
	Refused  int      `help:"Requests of an event that the gateway may refuse because the machine has no processor time left."`
	Only     []string `help:"Events to run, of update-decode, update-prefill, update-both, scale-prefill, scale-decode, canary, kill-decode, kill-prefill, kill-agent and replace-gateway; empty: all."`
}

const (
	pairsApp = "pairs"
	// pairsInstances is how many servers of each role the pool has.
	pairsInstances = 2
	// pairsTimeout bounds each wait in an event.
	pairsTimeout = 2 * time.Minute
)

// pairsEventNames are the names of all events, in their order.
var pairsEventNames = []string{
	"update-decode", "update-prefill", "update-both", "scale-prefill", "scale-decode", "canary", "kill-decode", "kill-prefill", "kill-agent", "replace-gateway",
}

// cause causes an event, and waits until the pool serves as before.
func (r *pairsRun) cause(ctx context.Context, event string) error {
	switch event {
	case "update-decode", "update-prefill":
		role := strings.TrimPrefix(event, "update-")
		r.notes[role]++
		return r.update(ctx, role)
	case "update-both":
		r.label++
		return r.update(ctx, "prefill", "decode")
	case "scale-prefill", "scale-decode":
		return r.scale(ctx, strings.TrimPrefix(event, "scale-"))
	case "canary":
		return r.goBack(ctx)
	case "kill-decode", "kill-prefill":
		return r.kill(ctx, strings.TrimPrefix(event, "kill-"))
	case "kill-agent":
		return r.killAgent(ctx)
	case "replace-gateway":
		return r.replaceGateway(ctx)
	}
	return fmt.Errorf("there is no event %s", event)
}

// events returns the events to run.
func (s *Pairs) events() (out []string, err error) {
	for _, name := range s.Only {
		if !slices.Contains(pairsEventNames, name) {
			return nil, fmt.Errorf("--only=%s: has to be one of %s", name, strings.Join(pairsEventNames, ", "))
		}
	}
	for _, name := range pairsEventNames {
		if len(s.Only) == 0 || slices.Contains(s.Only, name) {
			out = append(out, name)
		}
	}
	return out, nil
}

// Deadline implements Scenario.
func (s *Pairs) Deadline() time.Duration {
	each := time.Duration(float64(s.Requests)/max(s.Rate, 1)*float64(time.Second)) + 3*time.Minute
	return 5*time.Minute + time.Duration(len(pairsEventNames))*each
}

// pairsRun is a run with one region and its gateway.
type pairsRun struct {
	*testbed.Testbed
	s      *Pairs
	region *regionParts
	load   *pairsLoad

	// version is the number of the newest version, and live that of the version that serves. label and notes are what
	// differs between versions: label in all servers, and a note in those of a role.
	version, live int32
	label         int
	notes         map[string]int
	// killed are the times at which servers were killed in this event.
	killed []time.Time
}

// pairsTotal sums up the events.
type pairsTotal struct{ requests, least, failed, refused, inFlight, killed, mixed, alone int }

// Run implements Scenario.
func (s *Pairs) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--requests", s.Requests, "--rate", s.Rate); err != nil {
		return err
	}
	events, err := s.events()
	if err != nil {
		return err
	}
	env.recordSizes("requests", s.Requests, "rate", s.Rate, "engine", s.Engine, "refused", s.Refused)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: 1, Idle: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	r := &pairsRun{Testbed: w, s: s, label: 1, notes: map[string]int{}}
	r.region, err = newRegionParts(w, env.Self, w.Regions[0])
	defer func() { err = errors.Join(err, r.region.stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	defer r.load.client.CloseIdleConnections()
	var total pairsTotal
	var wrong []error
	_, parts, err := measureWindow(ctx, w, func() error {
		for _, event := range events {
			if err := r.underLoad(ctx, env, event, &total); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", event, err))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return nil
	})
	env.Result.Parts = parts
	env.Result.Figure("events", float64(len(events)), "kinds of events")
	env.Result.Figure("requests", float64(total.requests), "requests")
	env.Result.Figure("least", float64(total.least), "requests with each kind of event, at least")
	env.Result.Figure("failed", float64(total.failed), "requests that failed")
	env.Result.Figure("refused", float64(total.refused), "requests for which the gateway had no processor time")
	env.Result.Figure("killed", float64(total.killed), "servers that were killed")
	env.Result.Figure("in_flight", float64(total.inFlight), "requests in flight on them that broke off")
	env.Result.Figure("mixed", float64(total.mixed), "requests with servers of two versions")
	env.Result.Figure("alone", float64(total.alone), "requests that a decode server answered alone")
	return oneLine(append(wrong, err))
}

// start starts the agent and the gateway, and deploys the app.
func (r *pairsRun) start(ctx context.Context) error {
	if err := r.region.startAgent(); err != nil {
		return err
	}
	if _, err := r.region.startGateway(); err != nil {
		return err
	}
	if err := r.update(ctx, "prefill", "decode"); err != nil {
		return err
	}
	host, err := hostOf(ctx, r.Testbed)
	if err != nil {
		return err
	}
	r.load = newPairsLoad(r.region.gateway, host, rand.New(rand.NewPCG(r.Rand.Uint64(), 1)))
	var last error
	return r.until(ctx, func() (bool, error) {
		_, last = r.load.ask(ctx)
		return last == nil, nil
	}, func() string { return fmt.Sprintf("the gateway does not serve the app: %v", last) })
}

// until waits until holds returns true.
func (r *pairsRun) until(ctx context.Context, holds func() (bool, error), what func() string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pairsTimeout, errors.New("it takes too long"))
	defer cancel()
	return testbed.Until(ctx, 50*time.Millisecond, holds, what)
}

// underLoad repeats an event until it had its requests.
func (r *pairsRun) underLoad(ctx context.Context, env Env, event string, total *pairsTotal) error {
	begun := time.Now()
	r.load.reset()
	r.killed = nil
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		r.load.run(ctx, r.s.Rate, end)
	}()
	times := 0
	var err error
	for times == 0 || err == nil && r.load.sentSoFar() < r.s.Requests {
		err = r.cause(ctx, event)
		times++
	}
	close(end)
	<-ended
	o := r.load.outcome()
	failed, inFlight := o.splitFailures(r.killed)
	all := len(failed)
	failed = slices.DeleteFunc(failed, pairsFailure.isRefused)
	refused := all - len(failed)
	total.refused += refused
	total.requests, total.failed, total.inFlight, total.killed = total.requests+o.sent, total.failed+len(failed), total.inFlight+inFlight, total.killed+len(r.killed)
	total.mixed, total.alone = total.mixed+o.mixed, total.alone+o.alone
	if total.least == 0 || o.sent < total.least {
		total.least = o.sent
	}
	env.Result.Rounds = append(env.Result.Rounds, map[string]any{
		"event": event, "times": times, "requests": o.sent, "failed": len(failed), "refused": refused, "killed": len(r.killed), "in_flight": inFlight,
		"mixed": o.mixed, "alone": o.alone, "pairs": len(o.pairs), "seconds": time.Since(begun).Seconds(),
		"first_p50_ms": measure.Millis(o.first.Quantile(0.5)), "first_p99_ms": measure.Millis(o.first.Quantile(0.99)),
	})
	r.Progressf("%s, %d times: %d requests, %d failed, %d refused, %d in flight on %d killed, %d mixed, %d alone", event, times, o.sent, len(failed), refused, inFlight, len(r.killed), o.mixed, o.alone)
	switch {
	case err != nil:
		return err
	case len(failed) > 0:
		return fmt.Errorf("%d of %d requests failed: %s", len(failed), o.sent, failed[0])
	case refused > r.s.Refused:
		return fmt.Errorf("the gateway had no processor time for %d of %d requests: measure on a machine with less other work", refused, o.sent)
	case o.mixed > 0:
		return fmt.Errorf("%d of %d requests had a mixed pair", o.mixed, o.sent)
	}
	return nil
}

// spec returns the spec of a version. env are additional variables of all servers.
func (r *pairsRun) spec(label string, env map[string]string) *windlassv1.DeploymentSpec {
	prefill := &windlassv1.RoleSpec{Name: "prefill", Instances: pairsInstances}
	decode := &windlassv1.RoleSpec{Name: "decode", Instances: pairsInstances, Entry: true, StartsAfter: []string{"prefill"}}
	sp := &windlassv1.DeploymentSpec{
		Layout: windlassv1.Layout_LAYOUT_POOLED, Roles: []*windlassv1.RoleSpec{prefill, decode}, Regions: r.Regions, VersionLabel: label,
		Command: []string{r.region.self}, Ports: []*windlassv1.Port{{Name: "http"}},
		Env: map[string]string{
			"MODELSERVER_VERSION_LABEL": label, "MODELSERVER_TIME_TO_FIRST_TOKEN": "5ms", "MODELSERVER_TOKEN_RATE": "200", "MODELSERVER_DRAIN_TIMEOUT": "10s",
		},
		Resources:        &windlassv1.Resources{CpuMillicores: 100, MemoryMib: 128},
		HealthCheck:      &windlassv1.HealthCheck{Path: "/health", Interval: durationpb.New(500 * time.Millisecond), HealthyThreshold: 1, StartupBudget: durationpb.New(time.Minute)},
		TerminationGrace: durationpb.New(15 * time.Second),
		ProgressDeadline: durationpb.New(2 * time.Minute),
	}
	command := func(args ...string) []string {
		return append([]string{FollowInstanceCommand}, args...)
	}
	switch r.s.Engine {
	case "nixl":
		sp.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL}
		sp.Env["VLLM_NIXL_SIDE_CHANNEL_HOST"], sp.Env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "127.0.0.1", "0"
		for role, kind := range map[*windlassv1.RoleSpec]string{prefill: "kv_producer", decode: "kv_consumer"} {
			role.Args = command("vllm", "serve", "echo", "--port", "$(PORT)", "--max-num-seqs", "4096", "--shutdown-timeout", "10",
				"--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"`+kind+`"}`)
		}
	case "sglang":
		sp.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_SGLANG}
		sp.Ports = append(sp.Ports, &windlassv1.Port{Name: "bootstrap"})
		for role, mode := range map[*windlassv1.RoleSpec]string{prefill: "prefill", decode: "decode"} {
			role.Args = command("sglang", "--model-path", "echo", "--host", "127.0.0.1", "--port", "$(PORT)", "--max-running-requests", "4096", "--disaggregation-mode", mode)
		}
		prefill.Args = append(prefill.Args, "--disaggregation-bootstrap-port", "$(PORT_BOOTSTRAP)")
	}
	for _, role := range sp.Roles {
		if n := r.notes[role.Name]; n > 0 {
			role.Env = map[string]string{"NOTE": strconv.Itoa(n)}
		}
	}
	maps.Copy(sp.Env, env)
	return sp
}

func (r *pairsRun) deploy(ctx context.Context, spec *windlassv1.DeploymentSpec, rollout *windlassv1.RolloutPolicy) error {
	res, err := testbed.Persist(ctx, r.API.Apps.Deploy, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path(pairsApp), Spec: spec, Rollout: rollout})
	if err != nil {
		return fmt.Errorf("deploy: %w", err)
	}
	r.version = res.GetVersion()
	return nil
}

// update deploys a version, and waits until it serves. It fails if servers of a role that the version changes stay, or if
// servers of another role are replaced.
func (r *pairsRun) update(ctx context.Context, changes ...string) error {
	before := map[string][]int{"prefill": r.region.serversOf("prefill"), "decode": r.region.serversOf("decode")}
	if err := r.deploy(ctx, r.spec("v"+strconv.Itoa(r.label), nil), &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING}); err != nil {
		return err
	}
	r.live = r.version
	if err := r.waitPool(ctx, pairsInstances, pairsInstances); err != nil {
		return err
	}
	for role, pids := range before {
		now := r.region.serversOf(role)
		kept := slices.ContainsFunc(pids, func(pid int) bool { return slices.Contains(now, pid) })
		if changed := slices.Contains(changes, role); len(pids) > 0 && kept == changed {
			return fmt.Errorf("v%d changes %v, and the %s servers went from %v to %v", r.version, changes, role, pids, now)
		}
	}
	return nil
}

// waitPool waits until the live version serves with these servers, and no others run.
func (r *pairsRun) waitPool(ctx context.Context, prefill, decode int) error {
	var now string
	var ready, existing int
	return r.until(ctx, func() (bool, error) {
		err := r.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(ready), 0), COALESCE(SUM(pending+running+ready+draining), 0) FROM deployment_observed`).Scan(&ready, &existing)
		if err != nil {
			return false, err
		}
		res, err := testbed.Persist(ctx, r.API.Apps.GetApp, &windlassv1.GetAppRequest{App: testbed.Path(pairsApp)})
		if err != nil {
			return false, err
		}
		p, d := r.region.serversOf("prefill"), r.region.serversOf("decode")
		app := res.GetApp()
		now = fmt.Sprintf("v%d is %s with %d percent ready: %s; %d prefill and %d decode servers run, %d are ready of %d", app.GetLiveVersion(), app.GetStatus(), app.GetReadyReplicas(), app.GetMessage(), len(p), len(d), ready, existing)
		return app.GetStatus() == windlassv1.AppStatus_APP_STATUS_READY && app.GetRolloutId() == "" && app.GetLiveVersion() == r.live && app.GetReadyReplicas() == 100 &&
			len(p) == prefill && len(d) == decode && ready == prefill+decode && existing == ready, nil
	}, func() string {
		return fmt.Sprintf("%d prefill and %d decode servers of v%d do not serve: %s", prefill, decode, r.live, now)
	})
}

// scale adds a server of the role, and removes it again.
func (r *pairsRun) scale(ctx context.Context, role string) error {
	for _, n := range []int{pairsInstances + 1, pairsInstances} {
		_, err := testbed.Persist(ctx, r.API.Apps.Scale, &windlassv1.ScaleRequest{Mutation: testbed.Mutation(), App: testbed.Path(pairsApp), Role: role, Replicas: int32(n)})
		if err != nil {
			return fmt.Errorf("scale: %w", err)
		}
		counts := map[string]int{"prefill": pairsInstances, "decode": pairsInstances}
		counts[role] = n
		if err := r.waitPool(ctx, counts["prefill"], counts["decode"]); err != nil {
			return err
		}
	}
	return nil
}

// goBack makes a canary of both roles whose answers are slow, and waits until it has gone back.
func (r *pairsRun) goBack(ctx context.Context) error {
	slow := fmt.Sprintf("slow-%d", r.version)
	err := r.deploy(ctx, r.spec(slow, map[string]string{"MODELSERVER_TIME_TO_FIRST_TOKEN": "1500ms"}), &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "1m"}},
		Analysis: []*windlassv1.AnalysisCheck{{
			Template: windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95, Max: new(1.0), FailureLimit: 1,
			Interval: durationpb.New(3 * time.Second), Window: durationpb.New(20 * time.Second), MinSamples: 5,
		}},
	})
	if err != nil {
		return err
	}
	var canary *windlassv1.Deployment
	err = r.until(ctx, func() (bool, error) {
		res, err := testbed.Persist(ctx, r.API.Deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: testbed.Path(pairsApp), Version: r.version})
		canary = res.GetDeployment()
		return canary.GetStatus() == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED, err
	}, func() string { return fmt.Sprintf("the canary is %s: %s", canary.GetStatus(), canary.GetMessage()) })
	if err != nil {
		return err
	}
	if canary.GetReason() != "AnalysisFailed" {
		return fmt.Errorf("the canary failed with %s: %s", canary.GetReason(), canary.GetMessage())
	}
	if !r.load.hasAnswerOf(slow) {
		return errors.New("the canary got no request")
	}
	return r.waitPool(ctx, pairsInstances, pairsInstances)
}

// kill kills a server of the role, and waits until another one serves in its place.
func (r *pairsRun) kill(ctx context.Context, role string) error {
	servers := r.region.serversOf(role)
	if len(servers) == 0 {
		return fmt.Errorf("no %s server runs", role)
	}
	victim := servers[r.Rand.IntN(len(servers))]
	r.killed = append(r.killed, time.Now())
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill a %s server: %w", role, err)
	}
	err := r.until(ctx, func() (bool, error) {
		now := r.region.serversOf(role)
		return len(now) == pairsInstances && !slices.Contains(now, victim), nil
	}, func() string { return "the killed server is not started again" })
	if err != nil {
		return err
	}
	if err := waitFor(ctx, 2*time.Second); err != nil { // the agent reports the loss meanwhile
		return err
	}
	return r.waitPool(ctx, pairsInstances, pairsInstances)
}

// killAgent kills the agent, starts it again after a second, and updates decode servers.
func (r *pairsRun) killAgent(ctx context.Context) error {
	if err := r.region.agent.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-r.region.agent.Done()
	if err := waitFor(ctx, time.Second); err != nil {
		return err
	}
	if err := r.region.startAgent(); err != nil {
		return err
	}
	r.notes["decode"]++
	return r.update(ctx, "decode")
}

// replaceGateway starts another gateway at the same address, and stops the one before.
func (r *pairsRun) replaceGateway(ctx context.Context) error {
	old := r.region.gateways[len(r.region.gateways)-1]
	next, err := r.region.startGateway()
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	err = r.until(ctx, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, next.admin+"/readyz", http.NoBody)
		if err != nil {
			return false, err
		}
		res, err := client.Do(req)
		if err == nil {
			return res.StatusCode == http.StatusOK, res.Body.Close()
		}
		return false, nil // it does not listen yet
	}, func() string { return "the next gateway is not ready" })
	if err != nil {
		return err
	}
	stopping, cancel := context.WithTimeout(ctx, pairsTimeout)
	defer cancel()
	if err := old.Stop(stopping, 30*time.Second); err != nil {
		return fmt.Errorf("stop the gateway before: %w", err)
	}
	return waitFor(ctx, time.Second)
}

// pairsFailure is a request that failed.
type pairsFailure struct {
	begun, ended time.Time
	text         string
}

func (f pairsFailure) String() string {
	return fmt.Sprintf("after %s: %s", f.ended.Sub(f.begun).Round(time.Millisecond), f.text)
}

// isRefused reports whether the gateway had no processor time, descriptor or port for the request.
func (f pairsFailure) isRefused() bool { return strings.Contains(f.text, "gateway_exhausted") }

// pairsOutcome is what became of the requests.
type pairsOutcome struct {
	sent, mixed, alone int
	failures           []pairsFailure
	first              measure.Durations
	// pairs counts the answers, by the versions of the servers.
	pairs map[string]int
}

// splitFailures returns the failures that may not be, and how many requests were in flight when a server was killed.
func (o *pairsOutcome) splitFailures(killed []time.Time) (failed []pairsFailure, inFlight int) {
	for _, f := range o.failures {
		if slices.ContainsFunc(killed, func(at time.Time) bool { return !f.begun.After(at) && f.ended.After(at) }) {
			inFlight++
		} else {
			failed = append(failed, f)
		}
	}
	return failed, inFlight
}

// versionsOf returns the versions of the pair in an answer's header.
func versionsOf(h http.Header) (prefill, decode string) {
	return h.Get("X-Prefill-Version"), h.Get("X-Model-Version")
}
