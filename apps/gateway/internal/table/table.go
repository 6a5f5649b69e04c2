// Package table finds the route of a host. It holds thousands of routes. A change of one route is
// atomic: a request finds the whole old route or the whole new route.
//
// A host leads to the routes that claim it, and each route knows its own hosts. Put adds claims for
// new hosts before it swaps the route, and removes the claims of old hosts after that. A host may
// have claims of two apps for a short time, while it moves from one app to the other. Then the app
// whose route was put last has the host.
package table

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// Table of routes. It is safe for concurrent use.
type Table struct {
	cfg   upstream.Config
	hosts sync.Map // string -> *claims
	mu    sync.Mutex
	apps  map[string]*upstream.Route
	// removed are removed routes that had requests under way.
	removed []*upstream.Route
}

// claims are the claims for one host. The claim that was put last comes first. They are immutable.
type claims []claim

type claim struct {
	app   string
	route *upstream.Route
}

// New returns an empty table. Its routes get cfg.
func New(cfg upstream.Config) *Table {
	return &Table{cfg: cfg, apps: map[string]*upstream.Route{}}
}

// Host returns a request's host in the form of the table: in lower case, without port and trailing
// dot. It returns "" for an invalid host. An instance gets the host as the client wrote it, and must
// not read another host from it than the gateway did, as in "echo.local:80@other.local".
func Host(host string) string {
	if strings.HasPrefix(host, "[") || strings.Count(host, ":") > 1 {
		address, bracketed := strings.CutPrefix(host, "[")
		if bracketed {
			var port string
			var closed bool
			if address, port, closed = strings.Cut(address, "]"); !closed || !endsHost(port) {
				return ""
			}
		}
		if ip, err := netip.ParseAddr(address); err != nil || !ip.Is6() {
			return ""
		}
		return address
	}
	if i := strings.IndexByte(host, ':'); i >= 0 {
		if !endsHost(host[i:]) {
			return ""
		}
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	for i := range len(host) {
		if c := host[i]; 'A' <= c && c <= 'Z' {
			return strings.ToLower(host)
		}
	}
	return host
}

// endsHost reports whether s, which follows a host, is empty or a port. The port itself may be empty (RFC
// 3986, section 3.2.3).
func endsHost(s string) bool {
	return s == "" || s[0] == ':' && strings.Trim(s[1:], "0123456789") == ""
}

// Lookup returns the route of a host that Host returned, or nil.
func (t *Table) Lookup(host string) *upstream.Route {
	found, ok := t.hosts.Load(host)
	if !ok {
		return nil
	}
	for _, c := range *found.(*claims) {
		if c.route.Serves(host) {
			return c.route
		}
	}
	return nil
}

// Put sets the routes of an app to spec. After an error, the routes have not changed.
func (t *Table) Put(spec upstream.Spec) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	route, known := t.apps[spec.AppID]
	var before upstream.Spec
	if known {
		before, _ = route.Spec()
	} else {
		route = upstream.New(t.cfg)
	}
	hosts, had := spec.AllHosts(), before.AllHosts()
	for _, host := range hosts {
		t.enterHost(host, spec.AppID, route)
	}
	if err := route.Update(spec); err != nil {
		t.leaveHosts(hosts, had, spec.AppID)
		return err
	}
	t.apps[spec.AppID] = route
	t.leaveHosts(had, hosts, spec.AppID)
	return nil
}

// Remove removes the routes of an app. Requests under way continue. It reports whether the app had routes.
func (t *Table) Remove(app string) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	route, known := t.apps[app]
	if !known {
		return false
	}
	before, _ := route.Spec()
	route.Remove()
	delete(t.apps, app)
	t.removed = append(t.removed, route)
	t.leaveHosts(before.AllHosts(), nil, app)
	return true
}

// IsHeld reports whether an app is at zero, so that its requests wait.
func (t *Table) IsHeld(app string) bool {
	t.mu.Lock()
	route := t.apps[app]
	t.mu.Unlock()
	return route != nil && route.Hold() != nil
}

// Has reports whether the app has routes.
func (t *Table) Has(app string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.apps[app] != nil
}

// Specs returns the specs of all routes, sorted by app.
func (t *Table) Specs() []upstream.Spec {
	routes := t.Routes()
	out := make([]upstream.Spec, 0, len(routes))
	for _, r := range routes {
		if spec, ok := r.Spec(); ok {
			out = append(out, spec)
		}
	}
	slices.SortFunc(out, func(a, b upstream.Spec) int { return strings.Compare(a.AppID, b.AppID) })
	return out
}

// Health returns the health of the instances of all routes, including removed routes. It leaves out
// instances without anything to report.
func (t *Table) Health() []upstream.Health {
	var out []upstream.Health
	for _, r := range t.Routes() {
		out = append(out, r.Health()...)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removed = slices.DeleteFunc(t.removed, func(r *upstream.Route) bool {
		left := r.Health()
		out = append(out, left...)
		return len(left) == 0
	})
	return out
}

// Routes returns the routes of all apps, in no order.
func (t *Table) Routes() []*upstream.Route {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*upstream.Route, 0, len(t.apps))
	for _, r := range t.apps {
		out = append(out, r)
	}
	return out
}

// Len returns how many apps have routes.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.apps)
}

func (t *Table) enterHost(host, app string, route *upstream.Route) {
	next := claims{{app: app, route: route}}
	if found, ok := t.hosts.Load(host); ok {
		held := *found.(*claims)
		if held[0].app == app {
			return
		}
		for _, c := range held {
			if c.app != app {
				next = append(next, c)
			}
		}
	}
	t.hosts.Store(host, &next)
}

// leaveHosts removes the app's claims for the hosts that are not in kept.
func (t *Table) leaveHosts(hosts, kept []string, app string) {
	for _, host := range hosts {
		found, ok := t.hosts.Load(host)
		if !ok || slices.Contains(kept, host) {
			continue
		}
		next := slices.DeleteFunc(slices.Clone(*found.(*claims)), func(c claim) bool { return c.app == app })
		if len(next) == 0 {
			t.hosts.Delete(host)
			continue
		}
		t.hosts.Store(host, &next)
	}
}
