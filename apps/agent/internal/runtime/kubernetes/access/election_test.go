package access

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// voters returns the elections of several agents for one lease, by name. A test sets cut[name] to
// disconnect an agent from the API server.
func voters(t *testing.T, names ...string) (elections map[string]*election, cut map[string]bool) {
	t.Helper()
	server := fake.NewClientset()
	cut = map[string]bool{}
	out := map[string]*election{}
	for _, name := range names {
		own := fake.NewClientset()
		own.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, apiruntime.Object, error) {
			if cut[name] {
				return true, nil, errors.New("the network is cut")
			}
			o, err := server.Invokes(action, &coordinationv1.Lease{})
			return true, o, err
		})
		out[name] = &election{
			leases: own.CoordinationV1().Leases("ns"), name: "lease", identity: name,
			random: middle, log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
	}
	return out, cut
}

// conflicting refuses writes like the API server does when the version has changed.
type conflicting struct {
	typedcoordinationv1.LeaseInterface
}

func (conflicting) Update(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", errors.New("it has changed"))
}

func TestElection(t *testing.T) {
	t.Run("a standby takes over once the lease did not change for its duration", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, _ := voters(t, "first", "second")
			renewed, err := e["first"].acquire(t.Context())
			require.NoError(t, err)
			ctx, kill := context.WithTimeout(t.Context(), 20*time.Second)
			defer kill()
			go e["first"].renewLease(ctx, renewed)
			_, err = e["second"].acquire(t.Context())
			require.NoError(t, err)
			// The last renewal was at most leaseRetry before the end.
			require.GreaterOrEqual(t, time.Since(renewed), 19*time.Second+leaseDuration)
			require.LessOrEqual(t, time.Since(renewed), 20*time.Second+leaseDuration+5*time.Second)
			require.EqualValues(t, 1, *e["second"].lease.Spec.LeaseTransitions)
		})
	})
	t.Run("a holder without the API server ends renewDeadline after its last renewal, before another agent begins", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, cut := voters(t, "first", "second")
			renewed, err := e["first"].acquire(t.Context())
			require.NoError(t, err)
			cut["first"] = true
			e["first"].renewLease(t.Context(), renewed)
			require.Equal(t, renewDeadline, time.Since(renewed))
			got, err := e["second"].acquire(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, got.Sub(renewed), leaseDuration)
		})
	})
	t.Run("a holder ends at once when another agent has the lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, _ := voters(t, "first", "second")
			renewed, err := e["first"].acquire(t.Context())
			require.NoError(t, err)
			stolen, err := e["second"].leases.Get(t.Context(), "lease", metav1.GetOptions{})
			require.NoError(t, err)
			stolen.Spec.HolderIdentity = new("second")
			_, err = e["second"].leases.Update(t.Context(), stolen, metav1.UpdateOptions{})
			require.NoError(t, err)
			// The write of the first agent conflicts with the new version.
			e["first"].leases = conflicting{e["first"].leases}
			e["first"].renewLease(t.Context(), renewed)
			require.Equal(t, leaseRetry, time.Since(renewed))
		})
	})
	t.Run("a released lease is taken at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, _ := voters(t, "first", "second")
			_, err := e["first"].acquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, e["second"].release(t.Context()), "an agent cannot release another agent's lease")
			require.ErrorIs(t, e["second"].tryLease(t.Context()), errHeld)
			require.NoError(t, e["first"].release(t.Context()))
			require.NoError(t, e["second"].tryLease(t.Context()))
			require.Equal(t, "second", ptr.Deref(e["second"].lease.Spec.HolderIdentity, ""))
		})
	})
	t.Run("waiting for the lease ends with its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, cut := voters(t, "first")
			cut["first"] = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := e["first"].acquire(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}
