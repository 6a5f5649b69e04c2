package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

// A lease is held for leaseDuration after its holder last renewed it. One that has
// not managed to renew it for renewDeadline stops, and has the time between the two
// to do so: its calls end at once with their context. One that waits looks every
// leaseRetry, and up to 2.2 times that by jitter; it counts from when it saw the
// last renewal. So after a holder was killed another one begins after at most
// 9 + 2.2 + 2.2 s, and has its caches within 15.
const (
	leaseDuration = 9 * time.Second
	renewDeadline = 6 * time.Second
	leaseRetry    = time.Second
	// stopMargin is left of that time for the process to end, if what ran does not.
	stopMargin = 500 * time.Millisecond
	// releaseTimeout bounds giving the lease back; without that, it runs out.
	releaseTimeout = 3 * time.Second
)

// errStuck says that what must not run any more did not end in time: only the end of
// the process stops it.
var errStuck = errors.New("lost the lease of the region, and what ran under it does not end")

// ErrLeaseLost says that another agent may be the active one by now.
var ErrLeaseLost = errors.New("lost the lease of the region")

// Lease is what the active agent of a region holds.
type Lease struct {
	// Client says how to reach the API server.
	Client *rest.Config
	// Namespace of the agent; Name of the lease.
	Namespace, Name string
	// Identity of this agent, unlike that of any other.
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
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("kubernetes client: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
	}
	// The elector's own context outlives f: it must go on renewing until f has ended,
	// and it would give the lease back before.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	leading := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: leaseRetry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { leading <- held },
			OnStoppedLeading: func() {},
			OnNewLeader: func(who string) {
				if who != l.Identity {
					l.Log.InfoContext(ctx, "standing by: another agent is active", "lease", l.Namespace+"/"+l.Name, "active", who)
				}
			},
		},
		Name: l.Name,
	})
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	var held context.Context
	select {
	case held = <-leading:
	case <-ctx.Done():
		stopElecting()
		<-ended
		// It may have been got in the last moment.
		l.release(ctx, lock)
		return nil
	}
	l.Log.InfoContext(ctx, "active: the region's lease is ours", "lease", l.Namespace+"/"+l.Name)
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	forget := context.AfterFunc(held, func() { stop(ErrLeaseLost) }) //nolint:contextcheck // held is the lease, which the work must not outlive
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
	<-ended
	if lost && ctx.Err() == nil {
		return errors.Join(ErrLeaseLost, err)
	}
	l.release(ctx, lock)
	return err
}

// release gives the lease back, if it is ours, so that another agent need not wait
// until it runs out. The last renewal was given up when the elector was stopped, but
// may still arrive at the server between our look and our word: then it is looked at
// again.
func (l Lease) release(ctx context.Context, lock *resourcelock.LeaseLock) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := lock.Get(ctx)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || record.HolderIdentity != l.Identity {
			return err
		}
		now := metav1.Now()
		return lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
	}); err != nil {
		// Nothing is lost but a few seconds.
		l.Log.WarnContext(ctx, "cannot give the lease back, if it is ours; it runs out by itself", "lease", l.Namespace+"/"+l.Name, "error", err)
	}
}
