package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

// fakeCluster is an API that only stores and returns objects. Tests that need the rules of a real API server
// are in package agenttest.
type fakeCluster struct {
	t      *testing.T
	client *fake.Clientset
}

const testPatience = 30 * time.Second

// versions gives each written object a resource version, which the fake client does not do.
type versions struct {
	clienttesting.ObjectTracker
	last atomic.Int64
}

func (v *versions) number(obj runtime.Object) runtime.Object {
	if o, ok := obj.(metav1.Object); ok {
		o.SetResourceVersion(fmt.Sprint(v.last.Add(1)))
	}
	return obj
}

func (v *versions) Create(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.CreateOptions) error {
	return v.ObjectTracker.Create(gvr, v.number(obj), ns, opts...)
}

func (v *versions) Update(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions) error {
	return v.ObjectTracker.Update(gvr, v.number(obj), ns, opts...)
}

func (v *versions) Patch(gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions) error {
	return v.ObjectTracker.Patch(gvr, v.number(obj), ns, opts...)
}

// refuse decides whether the API refuses a call, with which error.
type refuse func(verb, resource string) error

func newFakeCluster(t *testing.T, cidr string, refuse refuse) *fakeCluster {
	t.Helper()
	f := &fakeCluster{t: t, client: &fake.Clientset{}}
	tracker := &versions{ObjectTracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	if refuse != nil {
		f.client.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			err := refuse(a.GetVerb(), a.GetResource().Resource)
			return err != nil, nil, err
		})
	}
	f.client.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))
	f.client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := tracker.Watch(a.GetResource(), a.GetNamespace())
		return true, w, err
	})
	_, err := f.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	a, err := New(Config{
		Kubeconfig: &rest.Config{Host: "https://127.0.0.1:1"}, CIDR: netip.MustParsePrefix(cidr), Log: slog.New(slog.DiscardHandler),
		RestartBackoff: lifecycle.Backoff{Base: 10 * time.Millisecond, Max: 50 * time.Millisecond},
	})
	require.NoError(t, err)
	a.client = f.client
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return f
}

func (f *fakeCluster) create(name string, change func(*corev1.Pod)) {
	f.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Name: "main", Image: "model:1", Ports: []corev1.ContainerPort{{ContainerPort: 8000}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)}},
				PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1,
			},
		}}},
	}
	if change != nil {
		change(p)
	}
	_, err := f.client.CoreV1().Pods("default").Create(f.t.Context(), p, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

func (f *fakeCluster) await(name string, ok func(*corev1.Pod) bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		p, err := f.client.CoreV1().Pods("default").Get(f.t.Context(), name, metav1.GetOptions{})
		return err == nil && ok(p)
	}, testPatience, 5*time.Millisecond, "pod %s", name)
}

// quiet checks that nothing is written for d.
func (f *fakeCluster) quiet(d time.Duration) {
	f.t.Helper()
	f.client.ClearActions()
	time.Sleep(d)
	for _, a := range f.client.Actions() {
		require.NotContains(f.t, []string{"patch", "delete", "update"}, a.GetVerb())
	}
}

func isReady(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready
}

func TestWrite_ThatFailsIsRepeated(t *testing.T) {
	var refused atomic.Int64
	f := newFakeCluster(t, "127.72.0.0/24", func(verb, resource string) error {
		if verb != "patch" || resource != "pods" {
			return nil
		}
		switch refused.Add(1) {
		case 1:
			return errors.New("connection reset")
		case 2:
			return apierrors.NewInternalError(errors.New("etcd"))
		case 3:
			return apierrors.NewTooManyRequests("later", 0)
		default:
			return nil
		}
	})
	f.create("p", nil)
	f.await("p", isReady)
}

func TestDeletion_ThatFailsIsRepeated(t *testing.T) {
	var refused atomic.Int64
	f := newFakeCluster(t, "127.72.1.0/24", func(verb, _ string) error {
		if verb == "delete" && refused.Add(1) <= 2 {
			return errors.New("connection reset")
		}
		return nil
	})
	now, grace := metav1.Now(), int64(30)
	f.create("p", func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace })
	require.Eventually(t, func() bool {
		_, err := f.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, testPatience, 5*time.Millisecond)
}

func TestPods_GetAddressesAndGiveThemBack(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
	t.Run("lab", func(t *testing.T) {
		f := newFakeCluster(t, "127.72.2.0/26", nil)
		for round := range 2 {
			seen := map[string]bool{}
			for i := range 60 {
				name := fmt.Sprintf("p%d-%d", round, i)
				f.create(name, nil)
				// The fake client's watch holds 100 events and panics at the next one.
				f.await(name, func(p *corev1.Pod) bool { return p.Status.PodIP != "" })
			}
			for i := range 60 {
				f.await(fmt.Sprintf("p%d-%d", round, i), func(p *corev1.Pod) bool {
					seen[p.Status.PodIP] = true
					return isReady(p)
				})
			}
			delete(seen, "")
			require.Len(t, seen, 60)
			for i := range 60 {
				require.NoError(t, f.client.CoreV1().Pods("default").Delete(t.Context(), fmt.Sprintf("p%d-%d", round, i), metav1.DeleteOptions{}))
			}
		}
	})
}

func TestPods_OfALostNodeAreLeftAlone(t *testing.T) {
	f := newFakeCluster(t, "127.72.3.0/24", nil)
	f.create("p", nil)
	f.await("p", isReady)
	mark := func(lost string) {
		_, err := f.client.CoreV1().Nodes().Update(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{nodes.AnnotationLost: lost}},
		}, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	mark("true")
	client := &http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool {
		resp, err := client.Get("http://127.72.3.1:8000/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	}, testPatience, 5*time.Millisecond, "the loss is noticed")
	f.create("later", nil)
	f.quiet(1500 * time.Millisecond) // longer than the period of the probe
	mark("")
	f.await("later", isReady)
}

func TestPod_IdleCostsNoWrites(t *testing.T) {
	f := newFakeCluster(t, "127.72.4.0/24", nil)
	f.create("p", nil)
	f.await("p", isReady)
	f.quiet(2500 * time.Millisecond) // two periods of the probe
}

func TestPod_WithoutAnAddressGetsOneWhenOneIsFree(t *testing.T) {
	f := newFakeCluster(t, "127.72.5.0/30", nil)
	for _, name := range []string{"a", "b"} {
		f.create(name, nil)
		f.await(name, isReady)
	}
	f.create("c", nil)
	require.Eventually(t, func() bool {
		events, err := f.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "FailedCreatePodSandBox" && e.InvolvedObject.Name == "c"
		})
	}, testPatience, 5*time.Millisecond)
	require.NoError(t, f.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	f.await("c", isReady)
}

func TestLoop_IsNotWokenByPastTimes(t *testing.T) {
	f := &fake.Clientset{}
	l := newLoop(Config{CIDR: netip.MustParsePrefix("127.72.6.0/24"), NodeAddress: "127.0.0.1", Log: slog.New(slog.DiscardHandler)}, f, nil)
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	now := time.Now()
	past := now.Add(-time.Second)
	p := &pod{object: object, machine: lifecycle.New(l.tuning, object, now), wakeIndex: -1, askAddress: past, writeAfter: past}
	close(l.stopped) // as if nothing reads the inbox any more
	l.wakePod(p, now)
	require.True(t, p.addr.IsValid())
	require.True(t, p.writing)
	require.Equal(t, -1, p.wakeIndex)
}

// The answer to a status write may show a deletion before the watch reports it. The watch's event is then not
// newer and is ignored.
func TestDeletion_SeenInTheAnswerToAWriteIsCarriedOut(t *testing.T) {
	l := newLoop(Config{CIDR: netip.MustParsePrefix("127.72.7.0/24"), NodeAddress: "127.0.0.1", Log: slog.New(slog.DiscardHandler)}, &fake.Clientset{}, nil)
	close(l.stopped) // as if nothing reads the inbox any more
	now := time.Now()
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "model:1"}}},
	}
	l.podSeen(object, now)
	p := l.pods["u"]
	require.True(t, p.writing)
	deleted := object.DeepCopy()
	at, grace := metav1.NewTime(now), int64(0)
	deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds, deleted.ResourceVersion = &at, &grace, "2"
	written := deleted.DeepCopy()
	written.ResourceVersion = "3"
	l.handleWritten(p, &write{base: object}, written, nil, now)
	l.podSeen(deleted, now)
	l.podSeen(written, now)
	main := lifecycle.Ref{Container: "main"}
	p.machine.Started(now, main, nil)
	l.advancePod(p, now)
	p.machine.Exited(now, main, lifecycle.Exit{Code: 137})
	require.NotNil(t, l.dueWrite(p, now))
	require.True(t, l.dueWrite(p, now).remove)
}
