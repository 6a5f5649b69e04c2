package kubernetes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestEndedRanks(t *testing.T) {
	now := time.Now()
	of := func(uid types.UID, change ...func(*rankPod)) rankPod {
		r := rankPod{template: "a", epoch: 1, there: true, uid: uid, runs: runs{ran: true, began: now}}
		for _, c := range change {
			c(&r)
		}
		return r
	}
	set := setOf([]rankPod{{uid: "a"}, {uid: "b"}})
	require.NotEqual(t, set, setOf([]rankPod{{uid: "b"}, {uid: "a"}}))
	joined := func(r *rankPod) { r.joined = set }
	crashed := func(after time.Duration) func(*rankPod) {
		return func(r *rankPod) { r.runs = runs{ran: true, ended: true, finished: now.Add(after)} }
	}
	waiting := func(r *rankPod) { r.runs = runs{} }
	gone := rankPod{template: "a", epoch: 1}
	next := func(r *rankPod) { r.epoch = 2 }
	other := func(r *rankPod) { r.template = "b" }
	for name, c := range map[string]struct {
		ranks []rankPod
		want  []bool
	}{
		"all ranks have joined": {[]rankPod{of("a", joined), of("b", joined)}, []bool{false, false}},
		"they start":            {[]rankPod{of("a"), of("b")}, []bool{false, false}},
		"a rank has no pod yet": {[]rankPod{of("a"), gone}, []bool{false, false}},
		"a container ended, also before all were ready":        {[]rankPod{of("a"), of("b", crashed(time.Second))}, []bool{false, true}},
		"a container ended while another rank has no node yet": {[]rankPod{of("a", crashed(0)), of("b", waiting)}, []bool{false, false}},
		"a container ended while another rank has no pod yet":  {[]rankPod{of("a", crashed(0)), gone}, []bool{false, false}},
		"a container ended before another rank started":        {[]rankPod{of("a", crashed(-time.Second)), of("b")}, []bool{false, false}},
		"a container ended again since another rank started":   {[]rankPod{of("a", crashed(time.Minute)), of("b")}, []bool{true, false}},
		"two containers ended":                                 {[]rankPod{of("a", crashed(0)), of("b", crashed(time.Second))}, []bool{true, true}},
		"a container ended after all had joined":               {[]rankPod{of("a", joined), of("b", joined, crashed(time.Second))}, []bool{false, true}},
		"a pod that joined is gone":                            {[]rankPod{of("a", joined), gone}, []bool{false, true}},
		"another pod has replaced a pod that joined":           {[]rankPod{of("c"), of("b", joined)}, []bool{true, false}},
		"all are ready, and not all are marked yet":            {[]rankPod{of("a", joined), of("b")}, []bool{false, false}},
		"a restart is under way":                               {[]rankPod{of("a", next), of("b", crashed(time.Second))}, []bool{false, false}},
		"another template is under way":                        {[]rankPod{of("a", other), of("b", joined)}, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, endedRanks(c.ranks)) })
	}
}

func TestRunsOf(t *testing.T) {
	now := metav1.Now()
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: now}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   runs
	}{
		"it waits":                         {corev1.ContainerStatus{State: waits}, runs{}},
		"it runs":                          {corev1.ContainerStatus{State: running}, runs{ran: true, began: now.Time}},
		"the container has ended":          {corev1.ContainerStatus{State: terminated}, runs{ran: true, ended: true, finished: now.Time}},
		"the container runs again":         {corev1.ContainerStatus{State: running, LastTerminationState: terminated, RestartCount: 1}, runs{ran: true, ended: true, finished: now.Time}},
		"the container waits to run again": {corev1.ContainerStatus{State: waits, LastTerminationState: terminated, RestartCount: 1}, runs{ran: true, ended: true, finished: now.Time}},
	} {
		t.Run(name, func(t *testing.T) {
			c.status.Name = render.ContainerName
			p := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "sidecar", RestartCount: 7}, c.status}}}
			require.Equal(t, c.want, runsOf(p))
		})
	}
}

const (
	isReady    = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	isRunning  = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	isPending  = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	isDraining = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	isEnded    = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
)

func TestJoinedRanks(t *testing.T) {
	now := time.Now()
	in := func(id string, status windlassv1.InstanceStatus, change ...func(*runtime.Instance)) runtime.Instance {
		i := runtime.Instance{ID: id, Role: "shard", TemplateHash: "a", Status: status, Address: id + ":80", StartedAt: now}
		for _, c := range change {
			c(&i)
		}
		return i
	}
	rank := func(n, epoch int, list ...runtime.Instance) part {
		return part{key: render.RankKey("dep_1", "shard", 0, 0, n), list: list, hosts: 2, epoch: epoch}
	}
	why := func(reason, message string) func(*runtime.Instance) {
		return func(i *runtime.Instance) { i.Reason, i.Message = reason, message }
	}
	stale := func(p part, ids ...string) part {
		p.stale = map[string]bool{}
		for _, id := range ids {
			p.stale[id] = true
		}
		return p
	}
	// of sets what the rank's pod did. The pod is that of the first instance in the list.
	of := func(p part, r runs) part {
		uid, _ := render.UIDOf(p.list[0].ID)
		p.pod = rankPod{template: "a", epoch: p.epoch, there: true, uid: uid, runs: r}
		return p
	}
	uid := render.InstanceID
	late := func(i *runtime.Instance) {
		i.Reason, i.Message, i.Doomed, i.Restarts = runtime.ReasonStartupTimeout, "not ready within 1m0s", true, 1
	}
	once := runs{ran: true, ended: true, finished: now}
	type seen struct {
		ID       string
		Status   windlassv1.InstanceStatus
		Reason   string
		Message  string
		Address  string
		Restarts int
		Doomed   bool
	}
	for name, c := range map[string]struct {
		ranks []part
		want  []seen
	}{
		"all are ready": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isReady))},
			[]seen{{"a", isReady, "", "", "a:80", 0, false}},
		},
		"one rank is missing": {
			[]part{rank(0, 1, in("a", isReady))},
			[]seen{{"a", isRunning, runtime.ReasonNotReady, "1 of 2 ranks are ready", "a:80", 0, false}},
		},
		"the leader is missing": {
			[]part{rank(1, 1, in("b", isReady))},
			[]seen{{"b", isRunning, runtime.ReasonNotReady, "1 of 2 ranks are ready", "", 0, false}},
		},
		"the message is that of the worst rank": {
			[]part{rank(0, 1, in("a", isRunning, why(runtime.ReasonNotReady, "waits"))), rank(1, 1, in("b", isPending, why(runtime.ReasonUnschedulable, "no node has 8 GPUs")))},
			[]seen{{"a", isPending, runtime.ReasonUnschedulable, "rank 1 of 2: no node has 8 GPUs", "a:80", 0, false}},
		},
		"pods of the last epoch are stopping": {
			[]part{stale(rank(0, 2, in("a", isReady), in("c", isRunning)), "a"), stale(rank(1, 2, in("b", isDraining), in("d", isReady)), "b")},
			[]seen{{"a", isDraining, "", "", "a:80", 0, false}, {"c", isRunning, "", "", "c:80", 1, false}},
		},
		"one rank has the next epoch, and both are ready": {
			[]part{rank(0, 2, in("c", isReady)), rank(1, 1, in("b", isReady))},
			[]seen{{"c", isRunning, runtime.ReasonNotReady, "all its ranks restart", "c:80", 1, false}},
		},
		"one rank has the next template, and both are ready": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isReady, func(i *runtime.Instance) { i.TemplateHash = "b" }))},
			[]seen{{"a", isRunning, runtime.ReasonNotReady, "its ranks are being replaced", "a:80", 0, false}},
		},
		"a rank of the old template drains, and a rank of the new one starts": {
			[]part{rank(0, 1, in("c", isRunning, func(i *runtime.Instance) { i.TemplateHash = "b" })), rank(1, 1, in("b", isDraining))},
			[]seen{{"b", isDraining, "", "", "", 0, false}, {"c", isRunning, "", "", "c:80", 0, false}},
		},
		"a rank drains": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isDraining))},
			[]seen{{"a", isDraining, "", "", "a:80", 0, false}},
		},
		"a rank ended, all are ready again, and the restart of all ranks waits": {
			[]part{
				of(rank(0, 1, in(uid("a"), isReady)), runs{ran: true, began: now.Add(-time.Minute)}),
				of(rank(1, 1, in(uid("b"), isReady, func(i *runtime.Instance) { i.Restarts = 1 })), once),
			},
			[]seen{{uid("a"), isRunning, runtime.ReasonNotReady, "all its ranks restart", uid("a") + ":80", 1, false}},
		},
		"a rank was late because another rank has no node": {
			[]part{
				of(rank(0, 1, in(uid("a"), isRunning, late)), once),
				of(rank(1, 1, in(uid("b"), isPending, why(runtime.ReasonUnschedulable, "no node has 8 GPUs"))), runs{}),
			},
			[]seen{{uid("a"), isPending, runtime.ReasonUnschedulable, "rank 1 of 2: no node has 8 GPUs", uid("a") + ":80", 1, false}},
		},
		"a rank was late because another rank had not started yet, and waits to run again": {
			[]part{
				of(rank(0, 1, in(uid("a"), windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, late)), once),
				of(rank(1, 1, in(uid("b"), isRunning)), runs{ran: true, began: now.Add(time.Second)}),
			},
			[]seen{{uid("a"), isRunning, runtime.ReasonNotReady, "rank 0 of 2: waits for another rank", uid("a") + ":80", 1, false}},
		},
		"a rank was late although all ranks ran": {
			[]part{
				of(rank(0, 1, in(uid("a"), isRunning, late)), once),
				of(rank(1, 1, in(uid("b"), isRunning)), runs{ran: true, began: now.Add(-time.Second)}),
			},
			[]seen{{uid("a"), isRunning, runtime.ReasonStartupTimeout, "rank 0 of 2: not ready within 1m0s", uid("a") + ":80", 1, true}},
		},
		"only the newest ended rank is listed": {
			[]part{rank(0, 1, in("x", isEnded, func(i *runtime.Instance) { i.StartedAt = now.Add(-time.Minute) }), in("a", isReady)), rank(1, 1, in("y", isEnded), in("b", isReady))},
			[]seen{{"y", isEnded, "", "", "y:80", 0, false}, {"a", isReady, "", "", "a:80", 0, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []seen
			for _, i := range joinedRanks(c.ranks) {
				got = append(got, seen{i.ID, i.Status, i.Reason, i.Message, i.Address, i.Restarts, i.Doomed})
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestInstancesOf(t *testing.T) {
	at := func(key string) part { return part{key: key, list: []runtime.Instance{{Role: "shard"}}} }
	ranks := []part{
		at(render.UnitKey("dep_1", "router", 0, 0)), at(render.RankKey("dep_1", "shard", 0, 0, 10)), at(render.RankKey("dep_1", "shard", 0, 0, 2)),
	}
	require.Equal(t, [][]part{{ranks[0]}, {ranks[2], ranks[1]}}, instancesOf(ranks), "ranks are sorted as numbers")
}
