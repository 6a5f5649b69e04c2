package kubernetes

import (
	"context"
	"log/slog"
	goruntime "runtime"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// shelf is a server with one workload.
type shelf struct {
	workload *appsv1.Deployment // nil: the workload is gone
	// gets and deletes count calls. If busy is true, the workload changes before each delete.
	gets, deletes int
	busy          bool
}

func (s *shelf) touch(label string) {
	s.workload = s.workload.DeepCopy()
	n, _ := strconv.Atoi(s.workload.ResourceVersion)
	s.workload.ResourceVersion, s.workload.Labels[render.LabelDeployment] = strconv.Itoa(n+1), label
}

func (s *shelf) resource() access.Resource {
	gr := schema.GroupResource{Group: "apps", Resource: "deployments"}
	return access.Resource{
		Get: func(context.Context, string, string) (render.Object, error) {
			if s.gets++; s.workload == nil {
				return nil, apierrors.NewNotFound(gr, "chat")
			}
			return s.workload, nil
		},
		Remove: func(_ context.Context, _, _ string, opts metav1.DeleteOptions) error {
			if s.deletes++; s.busy {
				s.touch(s.workload.Labels[render.LabelDeployment])
			}
			if want := opts.Preconditions; *want.UID != s.workload.UID || *want.ResourceVersion != s.workload.ResourceVersion {
				return apierrors.NewConflict(gr, "chat", context.Canceled)
			}
			s.workload = nil
			return nil
		},
	}
}

func shelved(t *testing.T) (*Runtime, *shelf, render.Ref) {
	t.Helper()
	r, err := New(Config{
		Client: &rest.Config{Host: "http://127.0.0.1:1"}, Region: "us-1", NamespacePrefix: "windlass-",
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	s := &shelf{workload: &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Name: "chat", Namespace: "ns", UID: "u1", ResourceVersion: "7", Labels: map[string]string{render.LabelDeployment: "dep_1"},
	}}}
	r.api.Resources[render.KindWorkload] = s.resource()
	require.NoError(t, r.caches.Ours[render.KindWorkload].GetIndexer().Add(s.workload.DeepCopy()))
	return r, s, render.NewRef(render.KindWorkload, "ns", "chat")
}

func TestRemove_KeepsAWorkloadAdoptedSinceTheCacheWasRead(t *testing.T) {
	r, s, w := shelved(t)
	s.touch("dep_2")
	require.NoError(t, r.removeWorkload(t.Context(), w, "dep_1"))
	require.NotNil(t, s.workload)
	require.Equal(t, 1, s.deletes)
	require.Nil(t, r.caches.Get(w).GetDeletionTimestamp())
}

func TestRemove_RemovesAWorkloadThatChangedMeanwhile(t *testing.T) {
	r, s, w := shelved(t)
	s.touch("dep_1")
	require.NoError(t, r.removeWorkload(t.Context(), w, "dep_1"))
	require.Nil(t, s.workload)
	require.Equal(t, 1, s.gets)
	require.NotNil(t, r.caches.Get(w).GetDeletionTimestamp())
}

func TestRemove_WaitsForAWorkloadThatKeepsChanging(t *testing.T) {
	r, s, w := shelved(t)
	s.busy = true
	err := r.removeWorkload(t.Context(), w, "dep_1")
	var rej *runtime.Rejection
	require.ErrorAs(t, err, &rej)
	require.True(t, rej.Retryable)
	require.Equal(t, runtime.ReasonConflict, rej.Code)
	require.Equal(t, removeAttempts, s.deletes)
	s.busy = false
	require.NoError(t, r.removeWorkload(t.Context(), w, "dep_1"))
	require.Nil(t, s.workload)
}

// A repair records the state that it repairs as wanted. If it runs while the workload is removed,
// it must not record the state again, because later repairs would then create the workload.
func TestRemove_EndsARepairUnderWay(t *testing.T) {
	for name, cached := range map[string]bool{"of an existing workload": true, "of a workload that was deleted": false} {
		t.Run(name, func(t *testing.T) {
			r, s, w := shelved(t)
			close(r.synced)
			if !cached {
				require.NoError(t, r.caches.Ours[render.KindWorkload].GetIndexer().Delete(s.workload))
			}
			a := runtime.Assignment{Deployment: &agentv1.Deployment{Id: "dep_1"}, WorkloadKey: "dep_1"}
			r.wanted.recordWanted(w, a)
			repaired := r.locks.Exclusive(w.String())
			removed := make(chan error)
			go func() { removed <- r.Remove(t.Context(), "dep_1") }()
			for r.locks.Waiting(w.String()) == 0 {
				goruntime.Gosched()
			}
			r.wanted.recordWanted(w, a)
			require.NoError(t, r.caches.Ours[render.KindWorkload].GetIndexer().Add(s.workload.DeepCopy()))
			repaired()
			require.NoError(t, <-removed)
			require.Nil(t, r.wanted.get(w))
			require.Nil(t, s.workload)
		})
	}
}
