package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// A lease is held for leaseDuration after its last renewal. A holder that could not renew it for
// renewDeadline must stop f before leaseDuration is over. A waiting agent reads the lease every
// leaseRetry to (1 + leaseJitter) * leaseRetry. It counts leaseDuration from the time when it saw
// the last renewal. So after a holder was killed, another agent begins at most 9 + 2.2 + 2.2 s
// later.
const (
	leaseDuration = 9 * time.Second
	renewDeadline = 6 * time.Second
	leaseRetry    = time.Second
	leaseJitter   = 1.2
	// stopMargin is the last part of the time between renewDeadline and leaseDuration. If f has not
	// ended before it, the process ends.
	stopMargin = 500 * time.Millisecond
	// releaseTimeout limits the release of the lease. If the release fails, the lease expires by
	// itself.
	releaseTimeout = 3 * time.Second
)

// errStuck means that f did not end in time after the lease was lost. The process must end then,
// because f must not continue.
var errStuck = errors.New("lost the lease of the region, and the agent's work did not stop in time")

// ErrLeaseLost means that another agent may be active by now.
var ErrLeaseLost = errors.New("lost the lease of the region")

// Lease is the lease that the active agent of a region holds.
type Lease struct {
	// Client says how to reach the API server.
	Client *rest.Config
	// Namespace is the agent's namespace, and Name is the name of the lease.
	Namespace, Name string
	// Identity is the identity of this agent. It is unique.
	Identity string
	Log      *slog.Logger
}

// LeaseName returns the name of a region's lease.
func LeaseName(region string) string { return "windlass-agent-" + region }

// Hold waits for the lease, runs f while the lease is held, and releases the lease after f has
// ended. The context of f ends when the lease is lost or ctx ends. The error is that of f,
// ErrLeaseLost or errStuck. It is nil if ctx ended before the lease was acquired.
func (l Lease) Hold(ctx context.Context, f func(ctx context.Context) error) error {
	cfg := rest.CopyConfig(l.Client)
	cfg.Timeout = renewDeadline / 2
	cfg.UserAgent = "windlass-agent-lease"
	client, err := typedcoordinationv1.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("kubernetes client: %w", err)
	}
	log := l.Log.With("lease", l.Namespace+"/"+l.Name)
	e := &election{leases: client.Leases(l.Namespace), name: l.Name, identity: l.Identity, random: rand.Float64, log: log}
	renewed, err := e.acquire(ctx)
	if err != nil {
		// The last request may have acquired the lease.
		giveBack(ctx, e)
		return nil
	}
	log.InfoContext(ctx, "active: this agent holds the region's lease")
	// The lease is renewed until f has ended, also after ctx has ended.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	held, drop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer drop()
		e.renewLease(electing, renewed)
	}()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	forget := context.AfterFunc(held, func() { stop(ErrLeaseLost) })
	defer forget()
	done := make(chan error, 1)
	go func() { done <- f(working) }()
	select {
	case err = <-done:
	case <-held.Done():
		select {
		case err = <-done:
		case <-time.After(leaseDuration - renewDeadline - stopMargin):
			return errStuck
		}
	}
	lost := held.Err() != nil
	stopElecting()
	<-held.Done()
	if lost && ctx.Err() == nil {
		return errors.Join(ErrLeaseLost, err)
	}
	giveBack(ctx, e)
	return err
}

// giveBack releases the lease within releaseTimeout, also after ctx has ended.
func giveBack(ctx context.Context, e *election) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := e.release(ctx); err != nil {
		// Another agent then waits some seconds longer.
		e.log.WarnContext(ctx, "cannot release the lease; it expires by itself", "error", err)
	}
}
