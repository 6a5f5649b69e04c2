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

// health is a health check with its defaults, in Kubernetes' unit of whole seconds.
type health struct {
	path                        string
	port                        int32
	interval, timeout, budget   int32
	unhealthy, healthy          int32
	drain, grace, progressLimit int64
	// asked is the port of the container that makes the check with its method and codes. 0: the
	// kubelet itself makes the check.
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

	// longestStartup is the longest interval of startup probes, in seconds, even if the health
	// check has a longer interval. So an instance serves within seconds after it has loaded.
	longestStartup = 5
)

func (r *rendering) takeHealth() error {
	h, s := r.spec.GetHealthCheck(), r.spec
	r.health = health{
		path: h.GetPath(), port: r.ports[0].number,
		interval: atLeastOne(h.GetInterval(), defaultInterval), timeout: atLeastOne(h.GetTimeout(), healthcheck.DefaultTimeout),
		budget: atLeastOne(h.GetStartupBudget(), defaultBudget), unhealthy: h.GetUnhealthyThreshold(), healthy: h.GetHealthyThreshold(),
		drain: wholeSeconds(s.GetDrainDelay(), defaultDrain), grace: wholeSeconds(s.GetTerminationGrace(), defaultGrace),
		progressLimit: int64(atLeastOne(s.GetProgressDeadline(), defaultProgress)),
	}
	if r.health.path == "" {
		r.health.path = healthcheck.DefaultPath
	}
	if !strings.HasPrefix(r.health.path, "/") {
		return invalidError("healthCheck.path: %q does not begin with a slash", r.health.path)
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
			return invalidError("healthCheck.port: no port is named %q", name)
		}
		r.health.port = r.ports[i].number
	}
	return r.takeCheck(cmp.Or(h.GetMethod(), healthcheck.DefaultMethod), h.GetExpectedCodes())
}

// firstAsked is the first port to try for the container that makes the check. It is below the
// ephemeral ports of systems, and no known program listens on it. If the app declares this port,
// the next free port is used.
const firstAsked = 17720

// takeCheck decides who makes the check: the kubelet, which sends GET and accepts 200 to 399, or a
// second container.
func (r *rendering) takeCheck(method string, codes []string) error {
	field := "method"
	switch method {
	case "HEAD":
	case "GET":
		if len(codes) == 0 {
			return nil
		}
		field = "expectedCodes"
	default:
		return invalidError("healthCheck.method: %q is neither GET nor HEAD", method)
	}
	if _, err := healthcheck.ParseCodes(codes); err != nil {
		return invalidError("healthCheck.expectedCodes: %v", err)
	}
	if r.cfg.HealthImage == "" {
		return unsupportedError("healthCheck.%s: a kubelet sends GET and accepts 200 to 399: leave %[1]s out, or start the agent of region %[2]s with --health-image, so that a container makes the check", field, r.cfg.Region)
	}
	r.health.method, r.health.codes, r.health.asked = method, codes, firstAsked
	for slices.ContainsFunc(r.ports, func(p port) bool { return p.number == r.health.asked }) {
		r.health.asked++
	}
	return nil
}

// wholeSeconds returns the duration in whole seconds. It is rounded up, so that a program gets no less
// time than the spec says.
func wholeSeconds(d *durationpb.Duration, otherwise time.Duration) int64 {
	v := otherwise
	if d != nil {
		v = d.AsDuration()
	}
	return max(0, int64((v+time.Second-1)/time.Second))
}

// atLeastOne is like seconds, for values that must be positive in Kubernetes. Zero means the
// default.
func atLeastOne(d *durationpb.Duration, otherwise time.Duration) int32 {
	if d.AsDuration() <= 0 {
		d = nil
	}
	return int32(min(max(wholeSeconds(d, otherwise), 1), math.MaxInt32))
}

// allProbes returns the health check as Kubernetes' three probes.
//
// Until startup has passed once, or its budget is over, only startup runs, so the other probes do
// not fail while a model loads. Readiness is the check as in the spec. Liveness restarts an
// instance that keeps failing. It runs half as often as readiness, with twice the timeout and twice
// the failures. So a busy server has time to recover after readiness has stopped new requests to
// it.
func (h health) allProbes() (startup, readiness, liveness *coreac.ProbeApplyConfiguration) {
	every := min(h.interval, longestStartup, h.budget)
	startup = h.probeOf(every, h.timeout, (h.budget+every-1)/every, 1)
	readiness = h.probeOf(h.interval, h.timeout, h.unhealthy, h.healthy)
	liveness = h.probeOf(doubled(h.interval), doubled(h.timeout), doubled(h.unhealthy), 1)
	return startup, readiness, liveness
}

func (h health) probeOf(period, timeout, failures, passes int32) *coreac.ProbeApplyConfiguration {
	p := coreac.Probe().WithPeriodSeconds(period).WithFailureThreshold(failures).WithSuccessThreshold(passes)
	if h.asked > 0 {
		// The margin gives the container time to report a check that timed out.
		return p.WithGRPC(coreac.GRPCAction().WithPort(h.asked)).WithTimeoutSeconds(min(timeout, math.MaxInt32-healthMargin) + healthMargin)
	}
	return p.WithHTTPGet(coreac.HTTPGetAction().WithPath(h.path).WithPort(intstr.FromInt32(h.port))).WithTimeoutSeconds(timeout)
}

func doubled(n int32) int32 {
	if n > math.MaxInt32/2 {
		return math.MaxInt32
	}
	return 2 * n
}
