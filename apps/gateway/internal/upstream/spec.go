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
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// State is the state of an instance, by the region's agent.
type State int

const (
	// NotReady means that it starts, or fails its check.
	NotReady State = iota
	// Ready means that it gets requests.
	Ready
	// Draining means that it keeps the requests that it has, and gets no more.
	Draining
)

// Spec is all the routes of one app.
type Spec struct {
	AppID, AppName string
	// Epoch and Generation are those of the routes. Change counts all other changes of them in the region:
	// the instances and their states.
	Epoch, Generation, Change int64
	// Hosts are in lower case, without port and trailing dot.
	Hosts []string
	// Previews are hosts that lead to one deployment alone.
	Previews []Preview
	Targets  []TargetSpec
	Policy   Policy
	// Keys are the app's keys, by Hash; see NeedsKey.
	Keys map[Hash]Key
	// Elsewhere is whether only other regions have the app. The region's agent then knows nothing of it.
	Elsewhere bool
	// Hold is how requests for Hosts wait while the app is at zero in the region. Nil: it is not at zero.
	Hold *hold.Policy
	// ClosedPaths are paths that no client may call, in lower case, with all that begins with them.
	ClosedPaths []string
	// CountsLoad is whether the agent wants the load that the app's clients cause.
	CountsLoad bool
}

// Hash is the SHA-256 of a key.
type Hash [sha256.Size]byte

// Key is one of the app's keys.
type Key struct {
	Name string
	// Until is when it ends. Zero: never.
	Until time.Time
}

// Preview is a host that leads to one of the targets, whatever its weight. If Keyed, requests need a key,
// whatever the policy says.
type Preview struct {
	Host, DeploymentID string
	Keyed              bool
}

// NeedsKey reports whether requests for the host need a key.
func (s *Spec) NeedsKey(host string) bool {
	return s.Policy.RequireKey || slices.ContainsFunc(s.Previews, func(p Preview) bool { return p.Keyed && p.Host == host })
}

// IsPreview reports whether the host leads to one deployment alone.
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
	// Weight is relative to the other targets. 0: none of the traffic.
	Weight    int32
	Instances []InstanceSpec
}

// InstanceSpec is one instance.
type InstanceSpec struct {
	ID string
	// Address is "host:port".
	Address string
	State   State
	// WasReady is whether the process of an unready instance was ready before. Nil: if this gateway saw it.
	WasReady *bool
	// Check is the check that it must pass before it counts as reached. Nil: a connection is enough.
	Check *healthcheck.Check
	// OtherVersion is whether Check is another version's. The instance then keeps its own check, if any.
	OtherVersion bool
}

// Policy is the policy of a route.
type Policy struct {
	// Strategy is a name that package balance knows.
	Strategy string
	// AffinityHeader or AffinityCookie holds the key of the strategy affinity.
	AffinityHeader, AffinityCookie string
	// Connect limits the time to connect. Response limits the time from the request to the first byte of the
	// answer, Idle the time between bytes of it, and Total all of it. Total 0: no limit. The others always
	// have one.
	Connect, Response, Idle, Total time.Duration
	// QueueSize is how many requests wait when no instance can take one, and QueueWait for how long. 0: none
	// waits.
	QueueSize int
	QueueWait time.Duration
	// MaxInFlight is how many requests an instance has at a time. 0: any number.
	MaxInFlight int64
	// Retries is how often a request that may be repeated is sent to another instance. Attempts that reached
	// no instance do not count.
	Retries int
	// MaxBody limits the body of a request, in bytes.
	MaxBody int64
	// Panic is a percentage of a target's instances that are ready or were ready. When fewer of them are
	// ready and not ejected, all of them get requests.
	Panic int
	// Health is the policy of ejection.
	Health health.Policy
	// Cross is when requests are handed over to another region.
	Cross Cross
	// RequireKey is whether requests need one of the app's keys.
	RequireKey bool
	// CORS is what the gateway answers browsers. Nil: instances answer them.
	CORS *cors.Policy
	// Payload is what is logged of requests and answers. Nil: nothing.
	Payload *payload.Policy
}

// Cross is when a request for one of an app's hosts, but not of its previews, is handed over to another
// region.
type Cross int

const (
	// CrossOff means never.
	CrossOff Cross = iota
	// Failover means while no instance is ready here.
	Failover
	// Spillover means also while all ready instances have as many requests as they take.
	Spillover
)

// ElsewherePolicy returns the policy for an app that only other regions have. Its own policy is applied
// there. Nothing that it allows may be refused or cut short here.
func ElsewherePolicy() Policy {
	p := DefaultPolicy()
	p.Cross, p.QueueSize = Failover, 0 // no instance comes up here
	p.MaxBody = math.MaxInt64
	// The gateway there ends requests that hang, and the connection's own checks find what is lost on the
	// way. These limits are for a gateway that does neither. No policy has more than a day.
	p.Response, p.Idle = 25*time.Hour, 25*time.Hour
	return p
}

// DefaultPolicy returns the policy of a route that sets none.
func DefaultPolicy() Policy {
	return Policy{
		Strategy: balance.PowerOfTwo,
		Connect:  2 * time.Second,
		// The first token of a long prompt may take minutes behind others. A minute of silence between tokens
		// is a hang.
		Response: 5 * time.Minute, Idle: time.Minute,
		QueueSize: 256, QueueWait: 10 * time.Second,
		Retries: 2,
		// Images and audio travel in prompts.
		MaxBody: 64 << 20,
		// Half is Envoy's default. If one of two is lost, the other one can serve all. If nine of ten are
		// lost, the tenth must not get all requests and fail like them.
		Panic:  50,
		Health: health.Default(),
	}
}
