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

// State of an instance, as the region's agent has it.
type State int

const (
	// NotReady: it starts, or fails its check.
	NotReady State = iota
	// Ready: it gets requests.
	Ready
	// Draining: it keeps those that it has, and gets no more.
	Draining
)

// Spec is the routes of one app, whole.
type Spec struct {
	AppID, AppName string
	// Epoch and Generation of the routes; Change counts what else changed of them in
	// the region: instances, and how they are.
	Epoch, Generation, Change int64
	// Hosts are lower case, without port and trailing dot.
	Hosts []string
	// Previews are hosts of one deployment alone.
	Previews []Preview
	Targets  []TargetSpec
	Policy   Policy
	// Keys that requests may come with, by Hash; see NeedsKey.
	Keys map[Hash]Key
	// Elsewhere: the app is in other regions alone. The region's agent knows nothing of it.
	Elsewhere bool
	// Hold is how requests for Hosts wait while the app is at zero in the region; nil: it is not.
	Hold *hold.Policy
	// CountsLoad: the agent wants to know what the app's clients ask of it.
	CountsLoad bool
}

// Hash is SHA-256 of a key.
type Hash [sha256.Size]byte

// Key is one of the app's.
type Key struct {
	Name string
	// Until is when it ends; zero: never.
	Until time.Time
}

// Preview is a host that leads to one of the targets, whatever its weight. Keyed: it needs a
// key, whatever the policy says.
type Preview struct {
	Host, DeploymentID string
	Keyed              bool
}

// NeedsKey reports whether requests for the host need a key.
func (s *Spec) NeedsKey(host string) bool {
	return s.Policy.RequireKey || slices.ContainsFunc(s.Previews, func(p Preview) bool { return p.Keyed && p.Host == host })
}

// IsPreview reports whether the host is one deployment's alone.
func (s *Spec) IsPreview(host string) bool {
	return slices.ContainsFunc(s.Previews, func(p Preview) bool { return p.Host == host })
}

// AllHosts are hosts and previews.
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
	// Weight relative to the other targets; 0: none of the traffic.
	Weight    int32
	Instances []InstanceSpec
}

// InstanceSpec is one instance.
type InstanceSpec struct {
	ID string
	// Address is "host:port".
	Address string
	State   State
	// WasReady, of one that is not: its process was before. nil: if this gateway has seen that.
	WasReady *bool
	// Check that it passes before it counts as reached; nil: a connection is enough.
	Check *healthcheck.Check
	// OtherVersion: Check is not its own, and it keeps the one that it had, if any.
	OtherVersion bool
}

// Policy of a route.
type Policy struct {
	// Strategy is a name that package balance knows.
	Strategy string
	// AffinityHeader or AffinityCookie holds the key of strategy affinity.
	AffinityHeader, AffinityCookie string
	// Connect bounds having a connection, Response the time from the request to the
	// first byte of the answer, Idle the time between bytes of it, Total all of it.
	// 0: no bound, of Total; of the others there is always one.
	Connect, Response, Idle, Total time.Duration
	// QueueSize is how many requests wait when no instance can take one, and QueueWait
	// for how long. 0: none does.
	QueueSize int
	QueueWait time.Duration
	// MaxInFlight is how many requests an instance has at a time; 0: any number.
	MaxInFlight int64
	// Retries on another instance, of what may be repeated. Attempts that reached no
	// instance do not count.
	Retries int
	// MaxBody of a request in bytes.
	MaxBody int64
	// Panic is a percentage of a target's instances that are ready or were. When fewer of them
	// are well, which is ready and not ejected, all of them get requests.
	Panic int
	// Health is the policy of ejection.
	Health health.Policy
	// Cross is when requests are handed over to another region.
	Cross Cross
	// RequireKey: requests need one of the app's keys.
	RequireKey bool
	// CORS is what the gateway answers browsers; nil: instances do.
	CORS *cors.Policy
	// Payload is what of it is logged; nil: nothing.
	Payload *payload.Policy
}

// Cross is when a request for one of an app's hosts, previews aside, is handed over to another
// region.
type Cross int

const (
	// CrossOff: never.
	CrossOff Cross = iota
	// Failover: while no instance is ready here.
	Failover
	// Spillover: also while all have as many requests as they take.
	Spillover
)

// ElsewherePolicy is what the routes of an app get that is in other regions alone. Its own
// policy is applied there; here nothing may be refused or cut short that it would let pass.
func ElsewherePolicy() Policy {
	p := DefaultPolicy()
	p.Cross, p.QueueSize = Failover, 0 // no instance comes up here
	p.MaxBody = math.MaxInt64
	// What hangs the gateway there ends, and what is lost on the way the connection's own checks
	// find. This is for a gateway that does neither; no policy has more than a day.
	p.Response, p.Idle = 25*time.Hour, 25*time.Hour
	return p
}

// DefaultPolicy is what a route gets that says nothing.
func DefaultPolicy() Policy {
	return Policy{
		Strategy: balance.PowerOfTwo,
		Connect:  2 * time.Second,
		// The first token of a long prompt behind others takes minutes; between tokens
		// a minute is a hang.
		Response: 5 * time.Minute, Idle: time.Minute,
		QueueSize: 256, QueueWait: 10 * time.Second,
		Retries: 2,
		// Images and audio travel in prompts.
		MaxBody: 64 << 20,
		// Half, as Envoy has it: with one of two lost the other one serves, which it can, and
		// with nine of ten lost the tenth is not made to fall like them.
		Panic:  50,
		Health: health.Default(),
	}
}
