package render

import (
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
	if m := h.GetMethod(); m != "" && m != "GET" {
		return unsupported("spec.health_check.method: Kubernetes asks by GET and nothing else: leave %s out, or run it in regions of processes", m)
	}
	if len(h.GetExpectedCodes()) > 0 {
		return unsupported("spec.health_check.expected_codes: Kubernetes takes 200 to 399 for a pass and cannot be told others: leave them out, or run it in regions of processes")
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
// spec has it. Liveness restarts what stays sick, and only then: it asks half as
// often, waits twice as long for an answer and takes twice as many failures as
// readiness does, so that a server which is merely busy, and has been taken out of
// rotation for that, has the time to recover.
func (h health) probes() (startup, readiness, liveness *coreac.ProbeApplyConfiguration) {
	every := min(h.interval, longestStartup, h.budget)
	startup = h.probe(every, h.timeout, (h.budget+every-1)/every, 1)
	readiness = h.probe(h.interval, h.timeout, h.unhealthy, h.healthy)
	liveness = h.probe(twice(h.interval), twice(h.timeout), twice(h.unhealthy), 1)
	return startup, readiness, liveness
}

func (h health) probe(period, timeout, failures, passes int32) *coreac.ProbeApplyConfiguration {
	return coreac.Probe().
		WithHTTPGet(coreac.HTTPGetAction().WithPath(h.path).WithPort(intstr.FromInt32(h.port))).
		WithPeriodSeconds(period).WithTimeoutSeconds(timeout).WithFailureThreshold(failures).WithSuccessThreshold(passes)
}

func twice(n int32) int32 {
	if n > math.MaxInt32/2 {
		return math.MaxInt32
	}
	return 2 * n
}
