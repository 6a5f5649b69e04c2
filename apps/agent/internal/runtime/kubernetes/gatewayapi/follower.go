package gatewayapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/windlass-run/windlass/pkg/backoff"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// patience is the default of Config.Patience.
	patience = 30 * time.Second
	// callTimeout limits one call of the API server.
	callTimeout = 15 * time.Second
	// callsPerSecond and callBurst limit the calls of this client.
	callsPerSecond, callBurst = 50, 100
)

// again is the backoff between attempts after failures.
var again = backoff.Policy{Min: 200 * time.Millisecond, Max: 15 * time.Second}

// Feed is the region's table of routes; see gateways.Feed.
type Feed interface {
	Known() <-chan struct{}
	Changed() <-chan struct{}
	Take() []*gatewayv1.AppRoutes
	Serves(changes map[string]int64, anybody bool, notes []string)
}

// Config configures a Follower. Every field except Patience is required.
type Config struct {
	Feed   Feed
	Client *rest.Config
	// Namespace is the namespace of the objects. It must exist, with Windlass's labels.
	Namespace string
	Region    string
	Parent    Parent
	// UserAgent and FieldManager identify the agent to the API server.
	UserAgent, FieldManager string
	Log                     *slog.Logger
	Rand                    func() float64
	// Patience is how long a route may be unserved before people get a note. Default: 30 s.
	Patience time.Duration
}

// Follower writes the table to the cluster. Create it with New, and call Run once.
type Follower struct {
	cfg    Config
	at     target
	client dynamic.Interface
	cache  *cached

	apps map[string]*app
	// want has the wanted objects of all apps, by kind and name.
	want map[kind]map[string]*unstructured.Unstructured
	// owed has, by app, the change that tell has not reported as served yet.
	owed map[string]int64
	// written has the version of each object that this process wrote, by key.
	written map[key]version
	// unserved has the time since which a route has not been served, by name.
	unserved map[string]time.Time
	// verdicts has the result for the last examined version of a route, by name.
	verdicts map[string]verdict
	told     said
}

// app is an app of the table, with its objects in the cluster.
type app struct {
	objects map[kind]map[string]*unstructured.Unstructured
	notes   []string
}

type verdict struct {
	resource string // the version that was judged
	why      string
}

// said is what tell last sent to the feed. any means that it has sent anything. began means that
// the whole table was written to the cluster once.
type said struct {
	any, began bool
	notes      []string
}

// New returns a follower. It makes no call to the API server.
func New(cfg Config) (*Follower, error) {
	if cfg.Feed == nil || cfg.Client == nil || cfg.Namespace == "" || cfg.Region == "" || cfg.Parent == (Parent{}) || cfg.FieldManager == "" || cfg.Log == nil || cfg.Rand == nil {
		return nil, errors.New("gatewayapi: every field of Config except Patience is required")
	}
	if cfg.Patience == 0 {
		cfg.Patience = patience
	}
	c := rest.CopyConfig(cfg.Client)
	c.QPS, c.Burst, c.UserAgent = callsPerSecond, callBurst, cfg.UserAgent
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("gatewayapi: %w", err)
	}
	return &Follower{
		cfg: cfg, client: client, at: target{namespace: cfg.Namespace, region: cfg.Region, parent: cfg.Parent},
		apps: map[string]*app{}, owed: map[string]int64{}, written: map[key]version{}, unserved: map[string]time.Time{}, verdicts: map[string]verdict{},
		want: map[kind]map[string]*unstructured.Unstructured{serviceKind: {}, sliceKind: {}, routeKind: {}},
	}, nil
}

// Run writes until ctx ends. It counts as a gateway from the beginning, because a data plane may
// already serve the routes that exist in the cluster.
func (f *Follower) Run(ctx context.Context) error {
	f.tellFeed(nil, nil)
	for failures := 0; ctx.Err() == nil; failures++ {
		if err := f.followOnce(ctx); err != nil && ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "cannot write HTTPRoutes; will try again", "error", err)
			f.tellFeed(nil, []string{"HTTPRoutes are not written: " + err.Error()})
			// Sleep returns an error only if ctx ends, which the loop checks.
			_ = backoff.Sleep(ctx, again.Delay(failures, f.cfg.Rand))
		}
	}
	return nil
}

// followOnce watches the cluster and follows the table until ctx ends. It returns an error if it cannot
// start.
func (f *Follower) followOnce(ctx context.Context) error {
	if err := f.requireReady(ctx); err != nil {
		return err
	}
	f.cache, f.written = newCached(f.client, f.cfg.Namespace, f.cfg.Region), map[key]version{}
	stop, err := f.cache.run(ctx)
	if err != nil {
		return err
	}
	defer stop()
	select {
	case <-ctx.Done():
	case <-f.cfg.Feed.Known():
		f.followChanges(ctx)
	}
	return nil
}

// followChanges calls sync whenever something has changed.
func (f *Follower) followChanges(ctx context.Context) {
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.cfg.Feed.Changed():
		case <-f.cache.changed:
		case <-timer.C:
		}
		next := f.cfg.Patience // time until notes may change
		if err := f.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			f.cfg.Log.WarnContext(ctx, "HTTPRoutes are not as they should be; will try again", "error", err)
			f.tellFeed(nil, append(f.notesAt(time.Now()), "HTTPRoutes cannot be written: "+err.Error()))
			next = again.Delay(failures, f.cfg.Rand)
			failures++
		} else {
			failures = 0
		}
		timer.Reset(next)
	}
}

// requireReady returns an error that says what is missing in the cluster, if anything is.
func (f *Follower) requireReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, k := range kinds {
		_, err := f.client.Resource(k.resource).Namespace(f.cfg.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
		case apierrors.IsNotFound(err) && k == routeKind:
			return errors.New("the cluster has no HTTPRoute of gateway.networking.k8s.io/v1: install the Gateway API's standard CRDs")
		case apierrors.IsForbidden(err):
			return fmt.Errorf("the agent may not list %s in namespace %s: apply deployments/kubernetes/agent-gateway-api.yaml: %w", k.resource.Resource, f.cfg.Namespace, err)
		default:
			return fmt.Errorf("list %s: %w", k.resource.Resource, err)
		}
	}
	return nil
}

// sync takes the changed apps from the feed. It writes and removes objects, and returns the joined
// errors.
func (f *Follower) sync(ctx context.Context) error {
	var errs []error
	for _, r := range f.cfg.Feed.Take() {
		f.owed[r.AppId] = r.Change
		errs = append(errs, f.take(r))
	}
	// Services and slices are written before the routes that refer to them, and removed after these
	// routes.
	for _, k := range kinds {
		errs = append(errs, f.write(ctx, k, f.want[k]))
	}
	errs = append(errs, f.remove(ctx, routeKind, f.want[routeKind], nil))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	waiting := f.unservedApps(time.Now())
	// A data plane that still has the old route may still send requests to these Services.
	for _, k := range []kind{sliceKind, serviceKind} {
		errs = append(errs, f.remove(ctx, k, f.want[k], waiting))
	}
	served := map[string]int64{}
	for id, change := range f.owed {
		if !waiting[id] {
			served[id] = change
			delete(f.owed, id)
		}
	}
	f.tellFeed(served, f.notesAt(time.Now()))
	return errors.Join(errs...)
}

// take replaces the wanted objects of an app by the objects of the table's new routes.
func (f *Follower) take(r *gatewayv1.AppRoutes) error {
	if was := f.apps[r.AppId]; was != nil {
		for k, objects := range was.objects {
			for name := range objects {
				delete(f.want[k], name)
			}
		}
		delete(f.apps, r.AppId)
	}
	if len(r.Hosts) == 0 && len(r.Previews) == 0 {
		return nil
	}
	o := objectsOf(r, f.at)
	objects, err := encode(o)
	f.apps[r.AppId] = &app{objects: objects, notes: o.notes}
	for k := range objects {
		maps.Copy(f.want[k], objects[k])
	}
	return err
}

// unservedApps returns the apps with a route whose present version is not served yet.
func (f *Follower) unservedApps(now time.Time) map[string]bool {
	waiting := map[string]bool{}
	still := map[string]time.Time{}
	for id, a := range f.apps {
		for name := range a.objects[routeKind] {
			if why := f.whyUnserved(name); why == "" {
				continue
			}
			waiting[id] = true
			since, known := f.unserved[name]
			if !known {
				since = now
			}
			still[name] = since
		}
	}
	f.unserved = still
	maps.DeleteFunc(f.verdicts, func(name string, _ verdict) bool { return f.want[routeKind][name] == nil })
	return waiting
}

// whyUnserved returns why a route is not served, or "" if it is served.
func (f *Follower) whyUnserved(name string) string {
	live := f.cache.get(routeKind, name)
	if live == nil {
		return "it was written, and the agent has not seen it yet"
	}
	if was := f.written[key{routeKind, name}]; live.GetGeneration() < was.generation {
		return "it was written, and the agent has not seen the new version yet"
	}
	if v, ok := f.verdicts[name]; ok && v.resource == live.GetResourceVersion() {
		return v.why
	}
	why := f.read(live)
	f.verdicts[name] = verdict{resource: live.GetResourceVersion(), why: why}
	return why
}

func (f *Follower) read(live *unstructured.Unstructured) string {
	route := &gwv1.HTTPRoute{}
	if err := apiruntime.DefaultUnstructuredConverter.FromUnstructured(live.Object, route); err != nil {
		return fmt.Sprintf("it cannot be read: %v", err)
	}
	return whyNotServed(route, f.at.parent)
}

// notesAt returns notes for people.
func (f *Follower) notesAt(now time.Time) []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(f.apps)) {
		out = append(out, f.apps[id].notes...)
	}
	for _, name := range slices.Sorted(maps.Keys(f.unserved)) {
		if why := f.whyUnserved(name); why != "" && now.Sub(f.unserved[name]) >= f.cfg.Patience {
			out = append(out, fmt.Sprintf("HTTPRoute %s/%s is not served since %s: %s", f.cfg.Namespace, name, f.unserved[name].UTC().Format(time.TimeOnly), why))
		}
	}
	return out
}

// tellFeed sends the served changes and the notes to the feed if they are new.
func (f *Follower) tellFeed(served map[string]int64, notes []string) {
	now := said{any: true, began: served != nil || f.told.began, notes: notes}
	if len(served) == 0 && f.told.any && f.told.began == now.began && slices.Equal(notes, f.told.notes) {
		return
	}
	f.told = now
	f.cfg.Feed.Serves(served, true, notes)
}
