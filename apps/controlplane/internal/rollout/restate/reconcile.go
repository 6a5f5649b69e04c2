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

// identityPath is the path at which a process answers with its identity.
const identityPath = "/identity"

func (d *Driver) identityOf() string { return "windlass workflow " + d.cfg.Service }

// deadAfter is how many probes in a row must fail before an address counts as dead. A restart of another process, or
// one lost packet, is no reason to take over.
const deadAfter = 3

// reconcileLoop checks the registration every ReconcileEvery, when Reconcile is called, and more
// often while it is not in order.
func (d *Driver) reconcileLoop(ctx context.Context) error {
	dead := map[string]int{}
	// waiting is true while invocations may wait for a retry although a process can serve them.
	for failing, waiting := false, true; ; {
		settled, err := d.reconcileOnce(ctx, dead)
		if err != nil && ctx.Err() == nil && !failing {
			d.cfg.Log.Warn("cannot register workflows with Restate; will try again", "error", err)
		}
		if failing && err == nil {
			d.cfg.Log.Info("workflows are registered with Restate", "endpoint", d.Endpoint())
		}
		failing = err != nil
		waiting = d.recovered.Swap(false) || waiting || !settled || failing
		if waiting && settled && err == nil {
			d.hurryRetries(ctx)
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

// hurryRetries retries at once up to queryBatch invocations that failed while no process could serve
// them. Its errors do not matter, because Restate retries the invocations later by itself.
func (d *Driver) hurryRetries(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ids, err := d.admin.backingOff(ctx, d.cfg.Service, queryBatch)
	var all errgroup.Group
	all.SetLimit(maxSends)
	for _, id := range ids {
		all.Go(func() error { return d.admin.retry(ctx, id) })
	}
	if err = errors.Join(err, all.Wait()); err != nil {
		d.cfg.Log.Debug("some invocations wait until Restate retries them", "error", err)
	}
}

// reconcileOnce makes the registrations match the addresses that are alive:
//
//	no deployment is registered                call Lost, then register our address
//	none of this version is registered         register our address
//	one of this version, at a dead address     move it to our address: invocations
//	                                           that are pinned to it continue here
//	any other one, at a dead address           end the invocations that are pinned
//	                                           to it, and remove it
//	the latest deployment was removed          make ours the latest
//
// It never takes over a live address, because another process serves it. dead counts the failed probes of each
// deployment.
func (d *Driver) reconcileOnce(ctx context.Context, dead map[string]int) (settled bool, err error) {
	all, err := d.admin.listDeployments(ctx)
	if err != nil {
		return false, err
	}
	settled = true
	served, seen := "", map[string]bool{} // a live deployment of this version
	var gone []deployment
	for _, dep := range all {
		if !dep.servesService(d.cfg.Service) {
			continue
		}
		seen[dep.ID] = true
		switch {
		case dep.URI == d.Endpoint() || sameAddress(dep.URI, d.Endpoint()):
			served = dep.ID
		case d.isAlive(ctx, dep.URI):
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
			if err := d.admin.moveDeployment(ctx, dep.ID, d.Endpoint()); err != nil {
				return false, err
			}
			d.cfg.Log.Info("took over the workflows of a dead address", "was", dep.URI, "endpoint", d.Endpoint())
			served = dep.ID
			delete(dead, dep.ID)
			continue
		}
		if err := d.forgetDeployment(ctx, dep); err != nil {
			return false, err
		}
		delete(dead, dep.ID)
	}
	if served == "" && settled {
		// This waits until all addresses are known to be alive or dead, because moving a
		// dead deployment is better than registering a second one.
		if len(seen) == 0 {
			// Restate is new or has lost its data. Lost is called before Restate can accept
			// wake-ups, so that none of those counts as lost.
			if err := d.cfg.Lost(ctx); err != nil {
				return false, err
			}
		}
		return true, d.admin.registerEndpoint(ctx, d.Endpoint(), false)
	}
	return settled, d.becomeLatest(ctx, served, seen)
}

// becomeLatest makes our deployment the latest, which gets new invocations, if the latest one was removed.
func (d *Driver) becomeLatest(ctx context.Context, served string, known map[string]bool) error {
	if served == "" {
		return nil
	}
	latest, err := d.admin.latestDeployment(ctx, d.cfg.Service)
	if err != nil || known[latest] {
		return err
	}
	return d.admin.registerEndpoint(ctx, d.Endpoint(), true)
}

// queryBatch bounds one query for invocations.
const queryBatch = 500

// forgetDeployment ends the invocations that are pinned to the deployment, and removes it. Otherwise they
// would hold the keys of their apps for ever. Steps are idempotent and their wake-up rows are in
// SQL, so the next sweep starts them again.
func (d *Driver) forgetDeployment(ctx context.Context, dep deployment) error {
	ended := 0
	for {
		ids, err := d.admin.pinnedInvocations(ctx, dep.ID, queryBatch)
		if err != nil {
			return err
		}
		if ended == 0 && len(ids) > 0 {
			// Lost is called before the invocations end. If this process ended them first and
			// died, no other process could see that wake-ups were lost.
			if err := d.cfg.Lost(ctx); err != nil {
				return err
			}
		}
		for _, id := range ids {
			if err := d.admin.killInvocation(ctx, id); err != nil {
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
	d.cfg.Log.Info("removed the workflows of a dead address", "was", dep.URI, "ended", ended)
	return nil
}

func (d *Driver) sameVersion(uri string) bool {
	u, err := url.Parse(uri)
	return err == nil && pathOf(u) == pathOf(d.endpoint)
}

// sameAddress reports whether two URLs are equal, except for what Restate may normalise.
func sameAddress(a, b string) bool {
	ua, err := url.Parse(a)
	if err != nil {
		return false
	}
	ub, err := url.Parse(b)
	return err == nil && ua.Scheme == ub.Scheme && ua.Host == ub.Host && pathOf(ua) == pathOf(ub)
}

func pathOf(u *url.URL) string { return path.Join("/", u.Path) }

// isAlive reports whether our service answers at the address.
func (d *Driver) isAlive(ctx context.Context, uri string) bool {
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
	defer discardBody(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, 256))
	return err == nil && resp.StatusCode == http.StatusOK && string(body) == d.identityOf()
}

// Check fails unless Restate knows our service. It is a readiness check.
func (d *Driver) Check(ctx context.Context) error {
	latest, err := d.admin.latestDeployment(ctx, d.cfg.Service)
	if err != nil {
		return err
	}
	if latest == "" {
		return fmt.Errorf("restate: service %s is not registered", d.cfg.Service)
	}
	return nil
}
