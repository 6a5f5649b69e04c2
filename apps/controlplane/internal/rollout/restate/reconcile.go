package restate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// identityPath answers who serves an address.
const identityPath = "/identity"

func (d *Driver) identity() string { return "windlass workflow " + d.cfg.Service }

// probes that in a row find a deployment's address dead make it so: a restart of
// another replica, or one lost packet, is no reason to take over.
const deadAfter = 3

// reconcileLoop looks at the registration at its time, when asked, and quickly
// again while it is not in order.
func (d *Driver) reconcileLoop(ctx context.Context) error {
	dead := map[string]int{}
	// waiting: something may wait for its next try longer than it need.
	for failing, waiting := false, true; ; {
		settled, err := d.reconcile(ctx, dead)
		if err != nil && ctx.Err() == nil && !failing {
			d.cfg.Log.Warn("workflows are not registered with Restate, will be tried again", "error", err)
		}
		if failing && err == nil {
			d.cfg.Log.Info("workflows are registered with Restate", "endpoint", d.Endpoint())
		}
		failing = err != nil
		waiting = d.recovered.Swap(false) || waiting || !settled || failing
		if waiting && settled && err == nil {
			d.hurry(ctx)
			waiting = false
		}
		wait := d.cfg.ReconcileEvery
		if err != nil || !settled {
			wait = min(wait, 300*time.Millisecond)
		}
		timer := time.NewTimer(backoff.Policy{Min: wait / 2, Max: wait}.Delay(1, nil))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-d.check:
			timer.Stop()
		}
	}
}

// hurry retries at once the invocations that failed while no process could serve them: the
// first ones, where there are very many. It is only quicker than waiting, so that its errors do
// not matter and it gives up soon.
func (d *Driver) hurry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ids, err := d.admin.backingOff(ctx, d.cfg.Service, queryBatch)
	var all errgroup.Group
	all.SetLimit(maxSends)
	for _, id := range ids {
		all.Go(func() error { return d.admin.retry(ctx, id) })
	}
	if err = errors.Join(err, all.Wait()); err != nil {
		d.cfg.Log.Debug("some invocations wait for their time", "error", err)
	}
}

// reconcile brings Restate's knowledge in line with what is alive:
//
//	nothing is registered                      what was sent is lost; and as below
//	nothing of this version is registered      register our address
//	it is, at an address that is dead          move it to ours: what is pinned to
//	                                           it goes on here, with the same code
//	another version is, and its address dead   end what only it could finish, and
//	                                           forget it
//	another version is the latest, and dead    make ours the latest
//
// A live address is never taken over: another replica serves it as well as we
// would. dead counts the failed probes of each deployment.
func (d *Driver) reconcile(ctx context.Context, dead map[string]int) (settled bool, err error) {
	all, err := d.admin.deployments(ctx)
	if err != nil {
		return false, err
	}
	settled = true
	served, seen := "", map[string]bool{} // a live deployment of this version
	var gone []deployment
	for _, dep := range all {
		if !dep.serves(d.cfg.Service) {
			continue
		}
		seen[dep.ID] = true
		switch {
		case dep.URI == d.Endpoint() || sameAddress(dep.URI, d.Endpoint()):
			served = dep.ID
		case d.alive(ctx, dep.URI):
			delete(dead, dep.ID)
			if d.sameVersion(dep.URI) && served == "" {
				served = dep.ID
			}
		default:
			if dead[dep.ID]++; dead[dep.ID] >= deadAfter {
				gone = append(gone, dep)
			} else {
				settled = false
			}
		}
	}
	for id := range dead {
		if !seen[id] {
			delete(dead, id)
		}
	}
	for _, dep := range gone {
		if d.sameVersion(dep.URI) && served == "" {
			if err := d.admin.move(ctx, dep.ID, d.Endpoint()); err != nil {
				return false, err
			}
			d.cfg.Log.Info("took over workflows of an address that is dead", "was", dep.URI, "endpoint", d.Endpoint())
			served = dep.ID
			delete(dead, dep.ID)
			continue
		}
		if err := d.forget(ctx, dep); err != nil {
			return false, err
		}
		delete(dead, dep.ID)
	}
	if served == "" && settled {
		// Not while a deployment may yet turn out to be dead: moving it is better
		// than a second one beside it.
		if len(seen) == 0 {
			// It is new, or was wiped. Before it takes anything, so that nothing which it
			// takes counts as lost.
			if err := d.cfg.Lost(ctx); err != nil {
				return false, err
			}
		}
		return true, d.admin.register(ctx, d.Endpoint(), false)
	}
	return settled, d.lead(ctx, served, seen)
}

// lead makes this version the one that new invocations go to, when the latest
// one was forgotten or is no more.
func (d *Driver) lead(ctx context.Context, served string, known map[string]bool) error {
	if served == "" {
		return nil
	}
	latest, err := d.admin.latest(ctx, d.cfg.Service)
	if err != nil || known[latest] {
		return err
	}
	return d.admin.register(ctx, d.Endpoint(), true)
}

// queryBatch bounds one query for invocations.
const queryBatch = 500

// forget ends what is pinned to the deployment and removes it. Steps are
// idempotent and their wake-up rows are in SQL, so that what is ended here starts
// over with the next sweep; left alone, it would hold its app's key for ever.
func (d *Driver) forget(ctx context.Context, dep deployment) error {
	ended := 0
	for {
		ids, err := d.admin.pinned(ctx, dep.ID, queryBatch)
		if err != nil {
			return err
		}
		if ended == 0 && len(ids) > 0 {
			// Before they are: a process that comes after us could not see that they were.
			if err := d.cfg.Lost(ctx); err != nil {
				return err
			}
		}
		for _, id := range ids {
			if err := d.admin.kill(ctx, id); err != nil {
				return err
			}
		}
		if ended += len(ids); len(ids) < queryBatch {
			break
		}
	}
	if err := d.admin.remove(ctx, dep.ID); err != nil {
		return err
	}
	d.cfg.Log.Info("forgot workflows at an address that is dead", "was", dep.URI, "ended", ended)
	return nil
}

func (d *Driver) sameVersion(uri string) bool {
	u, err := url.Parse(uri)
	return err == nil && pathOf(u) == pathOf(d.endpoint)
}

// sameAddress compares URLs as Restate may have normalised them.
func sameAddress(a, b string) bool {
	ua, err := url.Parse(a)
	if err != nil {
		return false
	}
	ub, err := url.Parse(b)
	return err == nil && ua.Scheme == ub.Scheme && ua.Host == ub.Host && pathOf(ua) == pathOf(ub)
}

func pathOf(u *url.URL) string { return path.Join("/", u.Path) }

// alive reports whether our service answers at the address.
func (d *Driver) alive(ctx context.Context, uri string) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	u, err := url.Parse(uri)
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(identityPath).String(), nil)
	if err != nil {
		return false
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return false
	}
	defer discard(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, 256))
	return err == nil && resp.StatusCode == http.StatusOK && string(body) == d.identity()
}

// Check reports whether Restate knows our service: for a readiness check.
func (d *Driver) Check(ctx context.Context) error {
	latest, err := d.admin.latest(ctx, d.cfg.Service)
	if err != nil {
		return err
	}
	if latest == "" {
		return fmt.Errorf("restate: service %s is not registered", d.cfg.Service)
	}
	return nil
}
