package access

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// FieldManager is the field manager that owns the fields that the agent sets.
const FieldManager = "windlass-agent"

// A region must match its assignments within 10 s after an outage of any length, so the longest
// pauses together must be shorter. A change waits for the breaker (Outage) and for its turn in the
// reconciler, 4 s at most. A missed event is seen when a list succeeds (Outage) and a watch opens
// (Reopen). During an outage, eleven watches and lists call the API server every 2 s on average,
// and all changes together make one call at a time. Regions do not share API servers, so other
// agents add no calls.
var (
	Outage = backoff.Policy{Min: 500 * time.Millisecond, Max: 3 * time.Second}
	Reopen = backoff.Policy{Min: 500 * time.Millisecond, Max: 4 * time.Second}
)

// Config configures an API. Every field is required.
type Config struct {
	// Client says how to reach the API server. The API sets its own rate limits.
	Client *rest.Config
	// Region is the region's name. Objects with this name as a label are ours.
	Region string
	// AgentVersion is part of the user agent of requests.
	AgentVersion string
	// CallTimeout is the time limit of one call that is not a watch.
	CallTimeout time.Duration
	// Outage is the delay between calls while the API server cannot answer. Reopen is the delay
	// between openings of a watch that keeps ending soon.
	Outage, Reopen backoff.Policy
	Log            *slog.Logger
	Registerer     prometheus.Registerer
	// Random returns a random number from [0, 1).
	Random func() float64
}

// API makes the agent's calls to the API server, and holds the caches that its watches fill.
type API struct {
	clients

	Caches *Caches

	cfg       Config
	Resources map[render.Kind]Resource
	breaker   *breaker
	rights    *rights
	again     patience
}

// New returns an API that has not called the server yet.
func New(cfg Config) (*API, error) {
	g := &breaker{policy: cfg.Outage, random: cfg.Random}
	client, err := newClient(cfg, newCalls(cfg.Registerer), g)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	again := patience{cfg.Outage, cfg.Random, new(atomic.Pointer[error])}
	return &API{
		clients: client, Caches: newCaches(client, again, cfg.Region), cfg: cfg,
		Resources: resourcesOf(client), breaker: g, rights: newRights(), again: again,
	}, nil
}

// Refused returns the error of the last list or watch for which the agent lacked a permission, or
// nil if there is none.
func (a *API) Refused() error {
	if refused := a.again.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// ReadWarnings reads the Warning events of pods until ctx ends.
func (a *API) ReadWarnings(ctx context.Context, into *Warnings) {
	cache.NewReflectorWithOptions(listWatch(a.CoreV1().Events(metav1.NamespaceAll), a.again, func(o *metav1.ListOptions) {
		o.FieldSelector = "involvedObject.kind=Pod,type=Warning"
	}), &corev1.Event{}, into, cache.ReflectorOptions{Name: "warnings"}).RunWithContext(ctx)
}

// ReadNeighbours reads the running pods that are not ours until ctx ends.
func (a *API) ReadNeighbours(ctx context.Context, into *Neighbours) {
	cache.NewReflectorWithOptions(listWatch(a.CoreV1().Pods(metav1.NamespaceAll), a.again, func(o *metav1.ListOptions) {
		o.LabelSelector = render.LabelRegion + "!=" + a.cfg.Region
		o.FieldSelector = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
	}), &corev1.Pod{}, into, cache.ReflectorOptions{Name: "neighbours"}).RunWithContext(ctx)
}
