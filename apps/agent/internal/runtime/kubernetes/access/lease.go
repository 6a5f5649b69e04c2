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

// A lease is held for leaseDuration after its last renewal. A holder that could not
// renew it for renewDeadline stops, and has the time between the two to do so: its
// calls end at once with their context. An agent that waits looks every leaseRetry, and
// up to 1 + leaseJitter times that. It counts from when it saw the last renewal. So
// after a holder was killed, another one begins after at most 9 + 2.2 + 2.2 s.
const (
	leaseDuration = 9 * time.Second
	renewDeadline = 6 * time.Second
	leaseRetry    = time.Second
	leaseJitter   = 1.2
	// stopMargin is the end of that time, in which the process ends if f has not.
	stopMargin = 500 * time.Millisecond
	// releaseTimeout bounds giving the lease back; without that, it runs out.
	releaseTimeout = 3 * time.Second
)

// errStuck says that f, which must not run any more, did not end in time. Only the end
// of the process stops it.
var errStuck = errors.New("lost the lease of the region, and what ran under it does not end")

// ErrLeaseLost says that another agent may be the active one by now.
var ErrLeaseLost = errors.New("lost the lease of the region")

// Lease is what the active agent of a region holds.
type Lease struct {
	// Client says how to reach the API server.
	Client *rest.Config
	// Namespace of the agent; Name of the lease.
	Namespace, Name string
	// Identity of this agent. No other agent has the same.
	Identity string
	Log      *slog.Logger
}

// LeaseName is the lease of a region.
func LeaseName(region string) string { return "windlass-agent-" + region }

// Hold waits for the lease, runs f while it is held, and gives it back after f has
// ended. f's context ends when the lease is lost or ctx ends. The error is f's, or
// ErrLeaseLost.
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
		// The last request may have acquired it.
		giveBack(ctx, e)
		return nil
	}
	log.InfoContext(ctx, "active: the region's lease is ours")
	// It goes on renewing until f has ended, also when ctx has.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	held, drop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer drop()
		e.renew(electing, renewed)
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
		// Nothing is lost but a few seconds.
		e.log.WarnContext(ctx, "cannot give the lease back, if it is ours; it runs out by itself", "error", err)
	}
}
