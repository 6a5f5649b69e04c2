package kubernetes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func middle() float64 { return 0.5 }

func TestDifferencesAreOfOurFieldsAndOfWhatTheyMean(t *testing.T) {
	want := appsac.Deployment("chat", "ns").WithLabels(map[string]string{"a": "1"}).WithSpec(appsac.DeploymentSpec().
		WithReplicas(2).
		WithStrategy(appsac.DeploymentStrategy().WithRollingUpdate(appsac.RollingUpdateDeployment().WithMaxSurge(intstr.FromInt32(0)))).
		WithTemplate(coreac.PodTemplateSpec().WithSpec(coreac.PodSpec().WithHostIPC(false).
			WithContainers(coreac.Container().WithName("main").WithImage("x:1").
				WithEnv(coreac.EnvVar().WithName("A").WithValue("1")).
				WithResources(coreac.ResourceRequirements().WithRequests(corev1.ResourceList{"cpu": quantity.MustParse("1000m")}))).
			WithVolumes(coreac.Volume().WithName("shm").WithEmptyDir(coreac.EmptyDirVolumeSource())))))
	live := func() *appsv1.Deployment {
		replicas, surge := int32(2), intstr.FromInt32(0)
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "chat", Namespace: "ns", Labels: map[string]string{"a": "1", "theirs": "x"}},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, MinReadySeconds: 5,
				Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge}},
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					Containers: []corev1.Container{
						{Name: "sidecar", Image: "theirs"},
						{Name: "main", Image: "x:1", Env: []corev1.EnvVar{{Name: "B", Value: "2"}, {Name: "A", Value: "1"}}, Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{"cpu": quantity.MustParse("1"), "memory": quantity.MustParse("1Gi")},
						}},
					},
					Volumes: []corev1.Volume{{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				}},
			},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*appsv1.Deployment)
		diff   string
	}{
		{"what others add, and other spellings", func(*appsv1.Deployment) {}, ""},
		{"a label", func(d *appsv1.Deployment) { delete(d.Labels, "a") }, `metadata.labels.a: want "1", found nothing`},
		{"an image", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[1].Image = "y" }, `spec.template.spec.containers[main].image: want "x:1", found "y"`},
		{"a quantity", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[1].Resources.Requests["cpu"] = quantity.MustParse("2")
		}, `spec.template.spec.containers[main].resources.requests.cpu: want "1", found "2"`},
		{"a number", func(d *appsv1.Deployment) { *d.Spec.Replicas = 9 }, "spec.replicas: want 2, found 9"},
		{"no more", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = nil }, `spec.template.spec.volumes: want [{"emptyDir":{},"name":"shm"}], found nothing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := live()
			c.change(d)
			diffs, err := differences(want, d)
			require.NoError(t, err)
			require.Equal(t, c.diff, summary(kindWorkload, diffs))
		})
	}
}

func TestASummaryShowsNoValueOfASecretAndFitsIntoAnEvent(t *testing.T) {
	secret := []difference{{"data.KEY", `"hunter2"`, "nothing"}}
	require.Equal(t, "data.KEY", summary(kindSecret, secret))
	var many []difference
	for range 9 {
		many = append(many, difference{strings.Repeat("p", 300), "1", "2"})
	}
	require.LessOrEqual(t, len(summary(kindService, many)), 1024)
	require.Contains(t, summary(kindService, []difference{{"a", "1", "2"}, {"b", "1", "2"}, {"c", "1", "2"}, {"d", "1", "2"}, {"e", "1", "2"}, {"f", "1", "2"}}), "and 1 more")
}

func TestTheGateLetsOneCallFindOutWhetherTheServerIsBack(t *testing.T) {
	g := &gate{policy: backoff.Policy{Min: time.Second, Max: 16 * time.Second}, random: middle}
	now := time.Unix(1000, 0)
	pass := func() bool {
		wait, _ := g.pass(now)
		return wait == 0
	}
	require.True(t, pass())
	g.failed(now, errors.New("down"))
	wait, cause := g.pass(now)
	require.EqualError(t, cause, "down")
	require.Equal(t, 1500*time.Millisecond, wait)
	now = now.Add(wait)
	require.True(t, pass(), "one finds out")
	require.False(t, pass(), "the others wait for what it finds")
	g.succeeded()
	require.True(t, pass())
	require.True(t, pass())

	// However many want to call, a minute without the server costs a handful.
	calls := 0
	for end := now.Add(time.Minute); now.Before(end); now = now.Add(10 * time.Millisecond) {
		for range 100 {
			if pass() {
				calls++
				g.failed(now, errors.New("down"))
			}
		}
	}
	require.LessOrEqual(t, calls, 10)
	g.succeeded()
	g.asked(now.Add(5 * time.Second))
	wait, cause = g.pass(now)
	require.ErrorIs(t, cause, errAskedToWait)
	require.Equal(t, 5*time.Second, wait)
}

func TestAWatchThatDoesNotLastIsOpenedEverLessOften(t *testing.T) {
	p := &pacer{policy: backoff.Policy{Min: time.Second, Max: 10 * time.Second}, random: middle}
	now := time.Unix(1000, 0)
	opened := 0
	for end := now.Add(time.Minute); now.Before(end); opened++ {
		now = now.Add(p.delay("pods", now))
	}
	require.LessOrEqual(t, opened, 20)
	require.Zero(t, p.delay("nodes", now), "each for itself")
	now = now.Add(wellAfter)
	require.Zero(t, p.delay("pods", now), "it lasted")
}

func TestAnswersOfTheServerMeanSomethingForTheAssignment(t *testing.T) {
	gr := schema.GroupResource{Group: "apps", Resource: "deployments"}
	terminating := apierrors.NewForbidden(gr, "chat", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, c := range []struct {
		err       error
		code      string
		retryable bool
		says      string
	}{
		{apierrors.NewBadRequest("no"), runtime.ReasonInvalidSpec, false, "no"},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "chat", nil), runtime.ReasonInvalidSpec, false, "chat"},
		{apierrors.NewForbidden(gr, "chat", errors.New(`User "agent" cannot patch resource "deployments"`)), runtime.ReasonForbidden, true, `cannot patch resource "deployments"`},
		{terminating, runtime.ReasonUnavailable, true, "is being removed"},
		{apierrors.NewUnauthorized("expired"), runtime.ReasonForbidden, true, "credentials"},
		{apierrors.NewConflict(gr, "chat", errors.New("uid")), runtime.ReasonConflict, true, "uid"},
		{apierrors.NewMethodNotSupported(gr, "patch"), runtime.ReasonUnavailable, true, "patch"},
	} {
		rej := rejection("apply Deployment ns/chat", c.err)
		require.Equal(t, c.code, rej.Code, "%v", c.err)
		require.Equal(t, c.retryable, rej.Retryable, "%v", c.err)
		require.Contains(t, rej.Message, c.says)
		require.Contains(t, rej.Message, "apply Deployment ns/chat")
	}
	require.True(t, answered(apierrors.NewConflict(gr, "chat", nil)))
	for _, err := range []error{apierrors.NewTooManyRequests("", 1), apierrors.NewInternalError(errors.New("x")), apierrors.NewServiceUnavailable("x"), errors.New("connection refused")} {
		require.False(t, answered(err), "%v", err)
	}
}

func TestCallsAreNamedAsRolesNameThem(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/pods?watch=true":                             "watch pods",
		"GET /api/v1/pods?labelSelector=a":                        "list pods",
		"GET /api/v1/namespaces/ns":                               "get namespaces",
		"PATCH /apis/apps/v1/namespaces/ns/deployments/chat":      "patch deployments",
		"DELETE /api/v1/namespaces/ns/secrets/x":                  "delete secrets",
		"DELETE /apis/apps/v1/namespaces/ns/replicasets":          "deletecollection replicasets",
		"POST /api/v1/namespaces/ns/events":                       "create events",
		"PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/l": "update leases",
		"GET /version": "get other",
		"GET /api/v1/namespaces/ns/pods/chat-1/log?tailLines=1": "get pods",
	} {
		method, url, _ := strings.Cut(path, " ")
		verb, res := classify(httptest.NewRequestWithContext(t.Context(), method, "http://x"+url, http.NoBody))
		require.Equal(t, want, verb+" "+res, path)
	}
}

func pooled(id string, replicas, gpus int) runtime.Assignment {
	return runtime.Assignment{Deployment: &agentv1.Deployment{
		Id: id, AppName: id, Replicas: int32(replicas),
		Spec: &windlassv1.DeploymentSpec{Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: int32(gpus), Pool: "h100"}}},
	}}
}

func TestAPoolIsNotTakenBeyondItsQuota(t *testing.T) {
	q := newQuota(map[string]render.Pool{"h100": {Name: "h100", Quota: 10}, "free": {Name: "free"}})
	c := newCaches(fake.NewClientset(), patience{policy: outage, random: rand.Float64}, "r")
	at := func(name string) ref { return ref{kindWorkload, "ns", name} }
	take := func(a runtime.Assignment) error {
		_, err := q.claim(at(a.Deployment.Id), a, c)
		return err
	}
	// What is there counts, also when it was not claimed since we started.
	replicas := int32(2)
	require.NoError(t, c.ours[kindWorkload].GetIndexer().Add(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "old", Namespace: "ns", Labels: map[string]string{render.LabelName: "old"},
			Annotations: map[string]string{poolAnnotation: "h100", gpusAnnotation: "2"},
		},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas},
	}))
	require.NoError(t, take(pooled("a", 1, 4)))
	var rej *runtime.Rejection
	require.ErrorAs(t, take(pooled("b", 3, 1)), &rej)
	require.Equal(t, runtime.ReasonQuotaExceeded, rej.Code)
	require.True(t, rej.Retryable)
	require.Equal(t, "needs 3 GPUs of pool h100, whose quota is 10: a uses 4, old uses 4, 2 free", rej.Message)
	require.NoError(t, take(pooled("b", 2, 1)))
	require.ErrorAs(t, take(pooled("b", 3, 1)), &rej, "growing")
	require.NoError(t, take(pooled("b", 1, 1)), "shrinking")
	require.NoError(t, take(pooled("old", 3, 1)), "another size, within what it has")

	q.pools["h100"] = render.Pool{Name: "h100", Quota: 2}
	require.NoError(t, take(pooled("a", 1, 4)), "what it has it keeps when the quota is lowered")
	require.ErrorAs(t, take(pooled("a", 2, 4)), &rej)
	q.release(at("a"))
	undo, err := q.claim(at("b"), pooled("b", 0, 1), c)
	require.NoError(t, err)
	undo()
	require.Equal(t, 1, q.claimed[at("b")].gpus)
}

func TestAPodIsForcedAwayOnlyWhenSomebodySaysThatItsNodeIsDown(t *testing.T) {
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	pod := func(due time.Duration) *corev1.Pod {
		deleted := ago(due)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}, Spec: corev1.PodSpec{NodeName: "n"}}
	}
	node := func(status corev1.ConditionStatus, since time.Duration, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: ago(since)}}}}
		for _, k := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k})
		}
		return n
	}
	const after = 10 * time.Minute
	alive := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		node *corev1.Node
		want bool
	}{
		{"down for long, and said so", pod(time.Minute), node(corev1.ConditionUnknown, time.Hour, outOfService), true},
		{"not said so", pod(time.Hour), node(corev1.ConditionUnknown, time.Hour, corev1.TaintNodeUnreachable), false},
		{"not for long", pod(time.Minute), node(corev1.ConditionUnknown, time.Minute, outOfService), false},
		{"back again", pod(time.Hour), node(corev1.ConditionTrue, time.Hour, outOfService), false},
		{"within its grace", pod(-time.Second), node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"not to end", alive, node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"its node removed for long", pod(time.Hour), nil, true},
		{"its node removed just now", pod(time.Minute), nil, false},
	} {
		require.Equal(t, c.want, lostFor(c.pod, c.node, after, now), c.name)
	}
}

func TestWhoUndoesEveryRepairWaitsEverLongerForTheNext(t *testing.T) {
	r := newRepairs(backoff.Policy{Min: time.Second, Max: time.Minute}, middle)
	w := ref{kindWorkload, "ns", "chat"}
	now := time.Unix(10000, 0)
	var waits []time.Duration
	for range 8 {
		wait := r.wait(w, now)
		waits = append(waits, wait)
		now = now.Add(wait)
		r.done(w, now)
	}
	require.Zero(t, waits[0])
	require.IsIncreasing(t, waits[1:6])
	require.LessOrEqual(t, waits[7], time.Minute)
	require.Zero(t, r.wait(w, now.Add(calmAfter+time.Second)))
}

func TestATemplateIsKeptAsItWasSent(t *testing.T) {
	want := coreac.PodTemplateSpec().WithSpec(coreac.PodSpec().
		WithContainers(coreac.Container().WithName("main").WithImage("x").
			WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName("vars")))).
		WithImagePullSecrets(coreac.LocalObjectReference().WithName("pull")))
	packed, err := packTemplate(want)
	require.NoError(t, err)
	got, err := unpackTemplate(packed)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, []string{"pull", "vars"}, secretsNamed(got))
	_, err = unpackTemplate("nonsense")
	require.ErrorContains(t, err, "kept pod template")
}

func TestTheEndOfALongLogIsReadInWholeLines(t *testing.T) {
	var b strings.Builder
	for i := range 10000 {
		_, _ = fmt.Fprintf(&b, "line %d\n", i)
	}
	got, err := lastBytes(strings.NewReader(b.String()), 1000)
	require.NoError(t, err)
	require.LessOrEqual(t, len(got), 1000)
	require.True(t, strings.HasPrefix(string(got), "line "))
	require.True(t, strings.HasSuffix(string(got), "line 9999\n"))
	short, err := lastBytes(strings.NewReader("a\nb"), 1000)
	require.NoError(t, err)
	require.Equal(t, "a\nb", string(short))
}

func TestLocksExcludeAndAreForgotten(t *testing.T) {
	var l locks
	unlock := l.alone("a")
	got := make(chan string, 2)
	both := make(chan struct{}, 2)
	var ended sync.WaitGroup
	for range 2 {
		ended.Go(func() {
			let := l.together("a")
			defer let()
			got <- "together"
			<-both
		})
	}
	l.alone("b")() // others are not held up
	require.Empty(t, got)
	unlock()
	require.Equal(t, []string{"together", "together"}, []string{<-got, <-got}, "both hold it now")
	both <- struct{}{}
	both <- struct{}{}
	l.alone("a")()
	ended.Wait()
	require.Empty(t, l.held)
}

func TestWhereTheClusterIsIsSaidClearlyOrRefusedClearly(t *testing.T) {
	_, _, err := LoadClient("", "")
	require.ErrorContains(t, err, "set --kubeconfig")
	_, _, err = LoadClient("", "prod")
	require.ErrorContains(t, err, "set --kubeconfig, too")
	_, _, err = LoadClient("/no/such/file", "")
	require.ErrorContains(t, err, "--kubeconfig=/no/such/file")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: c, cluster: {server: "https://one"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: a, context: {cluster: c, user: u}}, {name: b, context: {cluster: c, user: u, namespace: agents}}]
`), 0o600))
	cfg, ns, err := LoadClient(file, "")
	require.NoError(t, err)
	require.Equal(t, "https://one", cfg.Host)
	require.Equal(t, "default", ns)
	_, ns, err = LoadClient(file, "b")
	require.NoError(t, err)
	require.Equal(t, "agents", ns)
	_, _, err = LoadClient(file, "nope")
	require.ErrorContains(t, err, "nope")
}

func TestOfEndedPodsTheOldestGoFirstAndNoneBeforeItCouldBeReported(t *testing.T) {
	now := time.Now()
	ended := func(ago time.Duration) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: ago.String(), CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour))},
			Status: corev1.PodStatus{
				Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, LastTransitionTime: metav1.NewTime(now.Add(-ago - time.Second))}},
				ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					FinishedAt: metav1.NewTime(now.Add(-ago)),
				}}}},
			},
		}
	}
	for _, c := range []struct {
		name  string
		ended []time.Duration
		want  []string
	}{
		{"the newest three stay", []time.Duration{9 * time.Minute, 2 * time.Minute, 5 * time.Minute, 7 * time.Minute, 3 * time.Minute}, []string{"9m0s", "7m0s"}},
		{"for an hour", []time.Duration{time.Hour, 59 * time.Minute}, []string{"1h0m0s"}},
		{"all stay for a minute", []time.Duration{5 * time.Second, time.Second, 59 * time.Second, 2 * time.Second, 3 * time.Second, time.Minute}, []string{"1m0s"}},
		{"none", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var policy EndedPods
			require.NoError(t, policy.check())
			var pods []*corev1.Pod
			for _, ago := range c.ended {
				pods = append(pods, ended(ago))
			}
			var got []string
			for _, p := range policy.surplus(pods, now) {
				got = append(got, p.Name)
			}
			require.Equal(t, c.want, got)
		})
	}
	bad := EndedPods{Newest: -1}
	require.ErrorContains(t, bad.check(), "EndedPods")
}

func TestWhatHappensToOneObjectAgainAndAgainIsSummedUp(t *testing.T) {
	var n notices
	start := time.Now()
	at := start.Add
	service := subject{agentv1.Notice_KIND_DRIFT, "dep_1", "Service shop/chat"}
	policy := subject{agentv1.Notice_KIND_DRIFT, "dep_1", "NetworkPolicy shop/chat"}
	said := 0
	next := func() (out []string) {
		for _, x := range n.newest() {
			if x.Seq > int64(said) {
				said++
				require.EqualValues(t, said, x.Seq)
				require.Equal(t, "dep_1", x.DeploymentID)
				out = append(out, fmt.Sprintf("%s: %s, %d", x.Object, x.Message, x.Times))
			}
		}
		return out
	}
	n.add(service, "a", at(0))
	n.add(policy, "b", at(time.Second))
	require.Equal(t, []string{"Service shop/chat: a, 1", "NetworkPolicy shop/chat: b, 1"}, next(), "at once")
	// Somebody undoes every repair, one a minute for two days.
	told := 0
	for m := 1; m <= 48*60; m++ {
		n.add(service, "a", at(time.Duration(m)*time.Minute))
		if n.sumUp(at(time.Duration(m) * time.Minute)) {
			told++
		}
		switch m {
		case 10:
			require.Equal(t, []string{"Service shop/chat: a, 10"}, next(), "after ten minutes")
		case 29:
			require.Empty(t, next())
		case 30:
			require.Equal(t, []string{"Service shop/chat: a, 20"}, next(), "after twenty more")
		}
	}
	require.Equal(t, 12, told)
	require.Len(t, n.sums, 1, "what did not happen again is forgotten")
	require.False(t, n.sumUp(at(60*time.Hour)) && n.sumUp(at(80*time.Hour)), "told once when it ended")
	n.sumUp(at(120 * time.Hour))
	require.Empty(t, n.sums)

	for i := range 3 * runtime.MaxNotices {
		n.add(subject{agentv1.Notice_KIND_DRIFT, "dep_1", fmt.Sprint(i)}, "gone", at(121*time.Hour))
	}
	require.Len(t, n.newest(), runtime.MaxNotices)
	require.Equal(t, fmt.Sprint(3*runtime.MaxNotices-1), n.newest()[runtime.MaxNotices-1].Object, "the newest")
}
