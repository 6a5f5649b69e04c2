package access

import (
	"context"
	"errors"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// errHeld means that another agent holds the lease, and that the lease has not expired.
var errHeld = errors.New("another agent holds the lease")

// election acquires and renews a lease. It writes the same records as client-go's leader election,
// so programs with either one can share a lease. A program that imports client-go's leader election
// compiles the clients and informers of all API groups.
//
// election does not compare clocks of agents. A lease has expired when its record has not changed
// for its duration, measured by this agent's clock.
type election struct {
	leases   typedcoordinationv1.LeaseInterface
	name     string
	identity string
	random   func() float64
	log      *slog.Logger

	// lease is the record that was last read or written. changed is when this agent last saw the
	// record change.
	lease   *coordinationv1.Lease
	changed time.Time
}

// acquire waits for the lease. It returns the time at which the request that acquired the lease
// began. It returns an error only if ctx ends.
func (e *election) acquire(ctx context.Context) (time.Time, error) {
	active, failure := "", ""
	for {
		began := time.Now()
		err := e.tryLease(ctx)
		switch {
		case err == nil:
			return began, nil
		case ctx.Err() != nil:
			return time.Time{}, ctx.Err()
		case errors.Is(err, errHeld):
			failure = ""
			if holder := e.holderID(); holder != active {
				active = holder
				e.log.InfoContext(ctx, "standing by: another agent is active", "active", active)
			}
		case err.Error() != failure:
			failure = err.Error()
			e.log.WarnContext(ctx, "cannot acquire the lease; will try again", "error", err)
		}
		if err := backoff.Sleep(ctx, leaseRetry+time.Duration(leaseJitter*e.random()*float64(leaseRetry))); err != nil {
			return time.Time{}, err
		}
	}
}

// renewLease renews the lease until the lease is lost or ctx ends. renewed is the time at which the
// request that last wrote the lease began. The lease is lost when another agent has it, or when no
// request has succeeded for renewDeadline.
func (e *election) renewLease(ctx context.Context, renewed time.Time) {
	for {
		deadline := renewed.Add(renewDeadline)
		if backoff.Sleep(ctx, min(leaseRetry, time.Until(deadline))) != nil {
			return
		}
		began := time.Now()
		bounded, cancel := context.WithDeadline(ctx, deadline)
		err := e.tryLease(bounded)
		cancel()
		switch {
		case err == nil:
			renewed = began
		case ctx.Err() != nil:
			return
		default:
			e.log.WarnContext(ctx, "cannot renew the lease", "error", err, "lost_in", time.Until(deadline).Round(time.Millisecond))
			if errors.Is(err, errHeld) || !time.Now().Before(deadline) {
				return
			}
		}
	}
}

// tryLease acquires or renews the lease once.
func (e *election) tryLease(ctx context.Context) error {
	if e.holderID() == e.identity {
		// Only the holder writes a lease, so the version is known. If the write fails, the lease is
		// read below.
		if err := e.write(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	lease, err := e.leases.Get(ctx, e.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: e.name}}
		e.claimLease(&lease.Spec)
		if lease, err = e.leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
			return err
		}
		e.lease, e.changed = lease, time.Now()
		return nil
	}
	if err != nil {
		return err
	}
	if e.lease == nil || !equality.Semantic.DeepEqual(e.lease.Spec, lease.Spec) {
		e.changed = time.Now()
	}
	e.lease = lease
	if holder := e.holderID(); holder != "" && holder != e.identity && time.Now().Before(e.changed.Add(durationOf(lease))) {
		return errHeld
	}
	return e.write(ctx)
}

// write claims the lease as it was last seen. It fails with a conflict if the lease has changed
// since.
func (e *election) write(ctx context.Context) error {
	next := e.lease.DeepCopy()
	e.claimLease(&next.Spec)
	written, err := e.leases.Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		e.lease, e.changed = written, time.Now()
	}
	return err
}

// claimLease makes this agent the holder in the record, with the present time as the time of the
// renewal.
func (e *election) claimLease(s *coordinationv1.LeaseSpec) {
	now := metav1.NowMicro()
	if ptr.Deref(s.HolderIdentity, "") != e.identity {
		if s.RenewTime != nil {
			s.LeaseTransitions = new(ptr.Deref(s.LeaseTransitions, 0) + 1)
		}
		s.HolderIdentity, s.AcquireTime = new(e.identity), &now
	}
	s.RenewTime, s.LeaseDurationSeconds = &now, new(int32(leaseDuration/time.Second))
}

// release releases the lease if this agent holds it, so that another agent need not wait until the
// lease expires. A cancelled renewal may still arrive at the server between the read and the write.
// Then release reads the lease again.
func (e *election) release(ctx context.Context) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := e.leases.Get(ctx, e.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") != e.identity {
			return err
		}
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = nil, new(int32(1))
		lease.Spec.RenewTime, lease.Spec.AcquireTime = &now, &now
		_, err = e.leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// holderID returns the identity of the agent that held the lease when it was last seen, or "" if no
// agent held it.
func (e *election) holderID() string {
	if e.lease == nil {
		return ""
	}
	return ptr.Deref(e.lease.Spec.HolderIdentity, "")
}

func durationOf(l *coordinationv1.Lease) time.Duration {
	return time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
}
