package upstream

import (
	"crypto/sha256"
	"math"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/cors"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// State is the state of an instance as the region's agent reports it.
type State int

const (
	// NotReady means that the instance starts, or fails its check.
	NotReady State = iota
	// Ready means that the instance gets requests.
	Ready
	// Draining means that the instance finishes its requests, and gets no more.
	Draining
)

// Spec describes all routes of one app.
type Spec struct {
	AppID, AppName string
	// Epoch and Generation identify the routes' configuration. Change counts all other changes of the routes in the
	// region, which are changes of instances and their states.
	Epoch, Generation, Change int64
	// Hosts are in lower case, without port and trailing dot.
	Hosts []string
	// Previews are hosts that each lead to only one deployment.
	Previews []Preview
	Targets  []TargetSpec
	Policy   Policy
	// Keys are the app's keys, by Hash; see NeedsKey.
	Keys map[Hash]Key
	// Elsewhere is whether only other regions have the app. Then the agent of this region does not know it.
	Elsewhere bool
	// Hold is how requests for Hosts wait while the app is at zero in the region. Nil: the app is not at zero.
	Hold *hold.Policy
	// ClosedPaths are paths, in lower case, that clients must not call. They close all paths that begin with them.
	// Only routes to servers of models have such paths.
	ClosedPaths []string
	// CountsLoad is whether the gateway reports the app's load to the agent.
	CountsLoad bool
}

// Hash is the SHA-256 of a key.
type Hash [sha256.Size]byte

// Key is one of the app's keys.
type Key struct {
	Name string
	// Until is when the key ends. Zero: never.
	Until time.Time
}

// Preview is a host that leads to one of the targets, even if its weight is 0. If Keyed is set, requests need a key,
// even if the policy does not require one.
type Preview struct {
	Host, DeploymentID string
	Keyed              bool
}

// NeedsKey reports whether requests for the host need a key.
func (s *Spec) NeedsKey(host string) bool {
	return s.Policy.RequireKey || slices.ContainsFunc(s.Previews, func(p Preview) bool { return p.Keyed && p.Host == host })
}

// IsPreview reports whether the host leads to only one deployment.
func (s *Spec) IsPreview(host string) bool {
	return slices.ContainsFunc(s.Previews, func(p Preview) bool { return p.Host == host })
}

// AllHosts returns the hosts and the previews' hosts.
func (s *Spec) AllHosts() []string {
	out := make([]string, 0, len(s.Hosts)+len(s.Previews))
	out = append(out, s.Hosts...)
	for _, p := range s.Previews {
		out = append(out, p.Host)
	}
	return out
}

// TargetSpec is a weighted deployment.
type TargetSpec struct {
	DeploymentID string
	Version      int32
	// Weight is relative to the other targets. 0: the target gets no traffic.
	Weight    int32
	Instances []InstanceSpec
	// Pairing is how requests go to pairs. A pair is an instance of Prefill, and an instance of Instances that has a key
	// in common with it. Nil: a request goes to one of Instances.
	Pairing *pairing.Policy
	Prefill []InstanceSpec
	// KeyPairings is how requests go to the pairs of a key, if not as Pairing says.
	KeyPairings map[string]*pairing.Policy
}

// HasPairs reports whether a target has pairs.
func (s *Spec) HasPairs() bool {
	return slices.ContainsFunc(s.Targets, func(t TargetSpec) bool { return t.Pairing != nil })
}

// InstanceSpec is one instance.
type InstanceSpec struct {
	ID string
	// Address is "host:port".
	Address string
	State   State
	// WasReady is whether the process of an unready instance was ready before. Nil: not known, so it counts as ready
	// before if this gateway saw it ready.
	WasReady *bool
	// Check is the check that the instance must pass before it counts as reached. Nil: a connection is enough.
	Check *healthcheck.Check
	// OtherVersion is whether Check belongs to another version. Then the instance keeps its own check, if it has one.
	OtherVersion bool
	// Keys are the pairing keys. Alone is whether the instance takes requests for completions as they come.
	Keys  []string
	Alone bool
	// BootstrapPort is the port at which SGLang's decode servers meet the instance. 0: not known.
	BootstrapPort int
}

// Policy is the policy of a route.
type Policy struct {
	// Strategy is the name of a strategy of package balance.
	Strategy string
	// AffinityHeader or AffinityCookie holds the key of the strategy affinity.
	AffinityHeader, AffinityCookie string
	// Connect limits the time to connect. Response limits the time from the request to the first byte of the
	// answer, and Idle the time between bytes of the answer. These three must be set. Total limits the whole
	// request. Total 0: no limit.
	Connect, Response, Idle, Total time.Duration
	// QueueSize is how many requests may wait while no instance is free. 0: no request waits. QueueWait is how
	// long a request waits at most.
	QueueSize int
	QueueWait time.Duration
	// MaxInFlight is how many requests an instance may have at a time. 0: any number.
	MaxInFlight int64
	// Retries is how often a request that may be repeated is sent to another instance. Attempts that reached
	// no instance do not count.
	Retries int
	// MaxBody limits the body of a request, in bytes.
	MaxBody int64
	// Panic is a percentage of a target's instances that are ready or were ready. If fewer of these instances are
	// ready and not ejected, all of them get requests.
	Panic int
	// Health is the policy of ejection.
	Health health.Policy
	// Cross says when requests are handed over to another region.
	Cross Cross
	// RequireKey is whether requests need one of the app's keys.
	RequireKey bool
	// CORS makes the CORS headers for browsers. Nil: the instances do.
	CORS *cors.Policy
	// Payload says which bodies of requests and answers are logged. Nil: no body is logged.
	Payload *payload.Policy
}

// Cross says when a request for one of an app's hosts is handed over to another region. A request for a preview is
// never handed over.
type Cross int

const (
	// CrossOff: requests are never handed over.
	CrossOff Cross = iota
	// Failover: requests are handed over while no instance is ready in this region.
	Failover
	// Spillover: requests are also handed over while all ready instances are at their limit of requests.
	Spillover
)

// ElsewherePolicy returns the policy for an app that only other regions have. Those regions apply the app's own
// policy. The gateway here must not refuse or cut off a request that the app's own policy allows.
func ElsewherePolicy() Policy {
	p := DefaultPolicy()
	p.Cross, p.QueueSize = Failover, 0 // no instance starts in this region
	p.MaxBody = math.MaxInt64
	// The gateway of the other region ends requests that hang, and HTTP/2 pings or TCP keep-alives find a lost
	// connection. These limits are for the case that neither happens. No policy allows more than a day.
	p.Response, p.Idle = 25*time.Hour, 25*time.Hour
	return p
}

// DefaultPolicy returns the policy of a route that sets none.
func DefaultPolicy() Policy {
	return Policy{
		Strategy: balance.PowerOfTwo,
		Connect:  2 * time.Second,
		// The first token of a long prompt may take minutes if other prompts come before. An instance that is
		// silent for a minute between two tokens hangs.
		Response: 5 * time.Minute, Idle: time.Minute,
		QueueSize: 256, QueueWait: 10 * time.Second,
		Retries: 2,
		// Prompts may contain images and audio.
		MaxBody: 64 << 20,
		// 50 is Envoy's default. If one of two instances is lost, the other instance can serve all requests. If nine
		// of ten are lost, the tenth must not get all requests, because it would fail, too.
		Panic:  50,
		Health: health.Default(),
	}
}
