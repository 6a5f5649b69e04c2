package kubernetes_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
)

// failover is how long a region may be without an active agent.
const failover = 15 * time.Second

func (h *harness) lease(t *testing.T, identity string, client *rest.Config) access.Lease {
	t.Helper()
	return access.Lease{
		Client: client, Namespace: kubetest.Namespace, Name: access.LeaseName(h.cfg.Region), Identity: identity,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// hold holds the lease in the background. The first channel is closed when the lease is held. The
// second channel gets the result of Hold.
func hold(ctx context.Context, l access.Lease, f func(context.Context)) (chan struct{}, chan error) {
	held, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- l.Hold(ctx, func(ctx context.Context) error {
			close(held)
			f(ctx)
			return nil
		})
	}()
	return held, done
}

func TestLease_IsTakenSoonAfterItsHolderIsKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	o := h.order()
	o.Lease = access.LeaseName(h.cfg.Region)
	text, err := json.Marshal(o)
	require.NoError(t, err)
	first := exec.CommandContext(t.Context(), self(t))
	first.Env = append(os.Environ(), agentEnv+"="+string(text))
	out, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	held, done := hold(ctx, h.lease(t, "second", h.cfg.Client), func(ctx context.Context) { <-ctx.Done() })
	select {
	case <-held:
		require.Fail(t, "two agents hold the lease")
	case <-time.After(2 * time.Second):
	}
	killed := time.Now()
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	select {
	case <-held:
	case <-time.After(failover):
		require.Fail(t, "no agent is active")
	}
	t.Logf("another agent is active after %v", time.Since(killed).Round(100*time.Millisecond))

	// A holder that stops releases the lease, so the next holder does not wait.
	other, otherDone := hold(t.Context(), h.lease(t, "third", h.cfg.Client), func(context.Context) {})
	stopped := time.Now()
	stop()
	require.NoError(t, <-done)
	<-other
	require.NoError(t, <-otherDone)
	require.Less(t, time.Since(stopped), 5*time.Second)
}

// An agent that stops cancels its renewal, but the renewal may still arrive at the server late.
// Here it arrives after the agent has read the lease, and before the agent releases the lease.
func TestLease_IsReleasedAgainAfterALateRenewal(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	name := access.LeaseName(h.cfg.Region)
	direct, err := clientset.NewForConfig(h.cfg.Client)
	require.NoError(t, err)
	leases := direct.CoordinationV1().Leases(kubetest.Namespace)
	var back atomic.Int32
	late := rest.CopyConfig(h.cfg.Client)
	late.ContentType = "application/json"
	late.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodPut {
				return next.RoundTrip(req)
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return nil, err
			}
			req.Body = io.NopCloser(bytes.NewReader(body))
			var put coordinationv1.Lease
			if err := json.Unmarshal(body, &put); err != nil {
				return nil, err
			}
			if ptr.Deref(put.Spec.HolderIdentity, "") == "" && back.Add(1) == 1 {
				renewed, err := leases.Get(req.Context(), name, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				renewed.Spec.RenewTime = new(metav1.NowMicro())
				_, err = leases.Update(req.Context(), renewed, metav1.UpdateOptions{})
				if err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(req)
		})
	})
	held, done := hold(t.Context(), h.lease(t, "first", late), func(context.Context) {})
	<-held
	require.NoError(t, <-done)
	require.Equal(t, int32(2), back.Load(), "the lease is released again after a late renewal undid the first release")
	lease, err := leases.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, ptr.Deref(lease.Spec.HolderIdentity, ""))
}

func TestLease_LostEndsWorkBeforeAnotherBegins(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	cut := rest.CopyConfig(h.cfg.Client)
	var off atomic.Bool
	cut.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if off.Load() {
			return nil, errors.New("the network is cut")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	cut.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if off.Load() {
				return nil, errors.New("the network is cut")
			}
			return next.RoundTrip(req)
		})
	})
	var running atomic.Int32
	work := func(ctx context.Context) {
		if running.Add(1) > 1 {
			t.Error("two agents work at once")
		}
		<-ctx.Done()
		running.Add(-1)
	}
	held, done := hold(t.Context(), h.lease(t, "first", cut), work)
	<-held
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	next, nextDone := hold(ctx, h.lease(t, "second", h.cfg.Client), work)
	off.Store(true)
	require.ErrorIs(t, <-done, access.ErrLeaseLost)
	select {
	case <-next:
	case <-time.After(failover):
		require.Fail(t, "no agent is active")
	}
	stop()
	require.NoError(t, <-nextDone)
}
