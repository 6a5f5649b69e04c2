package render

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/util/intstr"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// health is a health check in Kubernetes' whole seconds, with its defaults.
type health struct {
	path                        string
	port                        int32
	interval, timeout, budget   int32
	unhealthy, healthy          int32
	drain, grace, progressLimit int64
	// asked is the port of the container that makes the check, by method and codes; 0:
	// the kubelet makes it itself.
	asked  int32
	method string
	codes  []string
}

const (
	defaultInterval  = 10 * time.Second
	defaultUnhealthy = 3
	defaultHealthy   = 2
	defaultBudget    = 30 * time.Minute
	defaultDrain     = 5 * time.Second
	defaultGrace     = 30 * time.Second
	defaultProgress  = 10 * time.Minute

	// longestStartup between two looks at what starts, however seldom it is looked
	// at later: what loads for minutes shall serve within seconds.
	longestStartup = 5
)

func (r *rendering) takeHealth() error {
	h, s := r.spec.GetHealthCheck(), r.spec
	r.health = health{
		path: h.GetPath(), port: r.ports[0].number,
		interval: atLeastOne(h.GetInterval(), defaultInterval), timeout: atLeastOne(h.GetTimeout(), healthcheck.DefaultTimeout),
		budget: atLeastOne(h.GetStartupBudget(), defaultBudget), unhealthy: h.GetUnhealthyThreshold(), healthy: h.GetHealthyThreshold(),
		drain: seconds(s.GetDrainDelay(), defaultDrain), grace: seconds(s.GetTerminationGrace(), defaultGrace),
		progressLimit: int64(atLeastOne(s.GetProgressDeadline(), defaultProgress)),
	}
	if r.health.path == "" {
		r.health.path = healthcheck.DefaultPath
	}
	if !strings.HasPrefix(r.health.path, "/") {
		return invalid("spec.health_check.path: %q does not begin with a slash", r.health.path)
	}
	if r.health.unhealthy < 1 {
		r.health.unhealthy = defaultUnhealthy
	}
	if r.health.healthy < 1 {
		r.health.healthy = defaultHealthy
	}
	if name := h.GetPort(); name != "" {
		i := slices.IndexFunc(r.ports, func(p port) bool { return p.name == name })
		if i < 0 {
			return invalid("spec.health_check.port: no port is named %q", name)
		}
		r.health.port = r.ports[i].number
	}
	return r.takeCheck(cmp.Or(h.GetMethod(), healthcheck.DefaultMethod), h.GetExpectedCodes())
}

// firstAsked is below the ports that systems give to connections, and we know no program that
// listens on it. Where the app has declared it all the same, the next port is taken.
const firstAsked = 17720

// takeCheck finds out who makes the check: the kubelet, which asks by GET and takes 200 to
// 399, or a container beside the app's.
func (r *rendering) takeCheck(method string, codes []string) error {
	field := "method"
	switch method {
	case "HEAD":
	case "GET":
		if len(codes) == 0 {
			return nil
		}
		field = "expected_codes"
	default:
		return invalid("spec.health_check.method: %q is neither GET nor HEAD", method)
	}
	if _, err := healthcheck.ParseCodes(codes); err != nil {
		return invalid("spec.health_check.expected_codes: %v", err)
	}
	if r.cfg.HealthImage == "" {
		return unsupported("spec.health_check.%s: a kubelet asks by GET and takes 200 to 399 for a pass: leave %[1]s out, or start the agent of region %[2]s with --health-image, whose container makes the check then", field, r.cfg.Region)
	}
	r.health.method, r.health.codes, r.health.asked = method, codes, firstAsked
	for slices.ContainsFunc(r.ports, func(p port) bool { return p.number == r.health.asked }) {
		r.health.asked++
	}
	return nil
}

// seconds rounds up: a program that was promised half a second gets one.
func seconds(d *durationpb.Duration, otherwise time.Duration) int64 {
	v := otherwise
	if d != nil {
		v = d.AsDuration()
	}
	return max(0, int64((v+time.Second-1)/time.Second))
}

// atLeastOne is seconds for what Kubernetes wants to be positive; zero is left out.
func atLeastOne(d *durationpb.Duration, otherwise time.Duration) int32 {
	if d.AsDuration() <= 0 {
		d = nil
	}
	return int32(min(max(seconds(d, otherwise), 1), math.MaxInt32))
}

// probes are the health check as Kubernetes makes it.
//
// Startup alone runs until it has passed once, for as long as the budget is, so
// that nothing below judges a model that loads. Readiness is the check as the
// spec has it. Liveness restarts only what stays sick. It asks half as often as
// readiness, waits twice as long for an answer and takes twice as many failures.
// So a server that is merely busy has time to recover after readiness took it out
// of rotation.
func (h health) probes() (startup, readiness, liveness *coreac.ProbeApplyConfiguration) {
	every := min(h.interval, longestStartup, h.budget)
	startup = h.probe(every, h.timeout, (h.budget+every-1)/every, 1)
	readiness = h.probe(h.interval, h.timeout, h.unhealthy, h.healthy)
	liveness = h.probe(twice(h.interval), twice(h.timeout), twice(h.unhealthy), 1)
	return startup, readiness, liveness
}

func (h health) probe(period, timeout, failures, passes int32) *coreac.ProbeApplyConfiguration {
	p := coreac.Probe().WithPeriodSeconds(period).WithFailureThreshold(failures).WithSuccessThreshold(passes)
	if h.asked > 0 {
		// The kubelet must also hear of a check that took too long.
		return p.WithGRPC(coreac.GRPCAction().WithPort(h.asked)).WithTimeoutSeconds(min(timeout, math.MaxInt32-healthMargin) + healthMargin)
	}
	return p.WithHTTPGet(coreac.HTTPGetAction().WithPath(h.path).WithPort(intstr.FromInt32(h.port))).WithTimeoutSeconds(timeout)
}

func twice(n int32) int32 {
	if n > math.MaxInt32/2 {
		return math.MaxInt32
	}
	return 2 * n
}
