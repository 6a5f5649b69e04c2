package restate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeNode answers as one node of Restate.
type fakeNode struct {
	*httptest.Server
	status atomic.Int64
	calls  atomic.Int64
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{}
	n.status.Store(http.StatusOK)
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/health") {
			n.calls.Add(1)
		}
		w.WriteHeader(int(n.status.Load()))
		_, _ = w.Write([]byte(`{"deployments": []}`))
	}))
	t.Cleanup(n.Close)
	return n
}

// threeNodes returns a driver that knows all nodes to be up.
func threeNodes(t *testing.T) (d *Driver, nodes []*fakeNode) {
	cfg := Config{
		Step: func(context.Context, string) error { return nil }, Lost: func(context.Context) error { return nil },
		Listen: "127.0.0.1:0", Log: testLog(t),
	}
	for range 3 {
		n := newFakeNode(t)
		nodes = append(nodes, n)
		cfg.Ingress, cfg.Admin = append(cfg.Ingress, n.URL), append(cfg.Admin, n.URL+"/")
	}
	d, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.listener.Close() })
	d.ingress.CheckAll(t.Context())
	d.admin.set.CheckAll(t.Context())
	return d, nodes
}

func TestWake_GoesToTheNextNodeIfOneIsLost(t *testing.T) {
	d, nodes := threeNodes(t)
	require.NoError(t, d.Wake(t.Context(), []string{"app_1"}))
	require.EqualValues(t, 1, nodes[0].calls.Load())
	nodes[0].Close()
	nodes[1].status.Store(http.StatusServiceUnavailable)
	require.NoError(t, d.Wake(t.Context(), []string{"app_1"}))
	require.EqualValues(t, 1, nodes[2].calls.Load())
	ingress, admin := d.ListAddresses()
	require.True(t, ingress[2].InUse)
	require.False(t, ingress[0].Up)
	require.True(t, admin[0].Up, "each port is judged by itself")
}

func TestWake_ARefusalIsNoFailureOfTheNode(t *testing.T) {
	d, nodes := threeNodes(t)
	nodes[0].status.Store(http.StatusBadRequest)
	require.ErrorContains(t, d.Wake(t.Context(), []string{"app_1"}), "answered 400")
	require.Zero(t, nodes[1].calls.Load())
	require.Zero(t, d.ingress.CurrentIndex())
}

func TestAdmin_GoesToTheNextNodeIfOneIsLost(t *testing.T) {
	d, nodes := threeNodes(t)
	nodes[0].Close()
	all, err := d.admin.listDeployments(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	require.NoError(t, d.Reachable(t.Context()))
	require.EqualValues(t, 1, nodes[1].calls.Load())
	nodes[1].Close()
	nodes[2].Close()
	require.Error(t, d.Reachable(t.Context()))
}
