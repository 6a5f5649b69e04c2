package kubernetes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestEndedRanks(t *testing.T) {
	joined := rankPod{template: "a", epoch: 1, there: true, joined: true}
	fresh := rankPod{template: "a", epoch: 1, there: true}
	gone := rankPod{template: "a", epoch: 1}
	crashed := rankPod{template: "a", epoch: 1, there: true, ended: true}
	next := rankPod{template: "a", epoch: 2, there: true}
	other := rankPod{template: "b", epoch: 1, there: true}
	for name, c := range map[string]struct {
		ranks []rankPod
		ready bool
		want  []bool
	}{
		"all are there":      {[]rankPod{joined, joined}, true, []bool{false, false}},
		"they start":         {[]rankPod{fresh, fresh}, false, []bool{false, false}},
		"one has no pod yet": {[]rankPod{fresh, gone}, false, []bool{false, false}},
		"a container ended, also before all were ready":        {[]rankPod{fresh, crashed}, false, []bool{false, true}},
		"a pod that joined is gone":                            {[]rankPod{joined, gone}, false, []bool{false, true}},
		"another pod is in the place of one that joined":       {[]rankPod{fresh, joined}, false, []bool{true, false}},
		"all are ready, and the agent has not marked them all": {[]rankPod{joined, fresh}, true, []bool{false, false}},
		"a restart is under way":                               {[]rankPod{next, crashed}, false, []bool{false, false}},
		"another template is under way":                        {[]rankPod{other, joined}, false, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, endedRanks(c.ranks, c.ready)) })
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
	type seen struct {
		ID       string
		Status   windlassv1.InstanceStatus
		Reason   string
		Message  string
		Address  string
		Restarts int
	}
	for name, c := range map[string]struct {
		ranks []part
		want  []seen
	}{
		"all are ready": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isReady))},
			[]seen{{"a", isReady, "", "", "a:80", 0}},
		},
		"one rank is missing": {
			[]part{rank(0, 1, in("a", isReady))},
			[]seen{{"a", isRunning, runtime.ReasonNotReady, "1 of 2 ranks are ready", "a:80", 0}},
		},
		"the leader is missing": {
			[]part{rank(1, 1, in("b", isReady))},
			[]seen{{"b", isRunning, runtime.ReasonNotReady, "1 of 2 ranks are ready", "", 0}},
		},
		"the message is that of the worst rank": {
			[]part{rank(0, 1, in("a", isRunning, why(runtime.ReasonNotReady, "waits"))), rank(1, 1, in("b", isPending, why(runtime.ReasonUnschedulable, "no node has 8 GPUs")))},
			[]seen{{"a", isPending, runtime.ReasonUnschedulable, "rank 1 of 2: no node has 8 GPUs", "a:80", 0}},
		},
		"pods of the last epoch are stopping": {
			[]part{stale(rank(0, 2, in("a", isReady), in("c", isRunning)), "a"), stale(rank(1, 2, in("b", isDraining), in("d", isReady)), "b")},
			[]seen{{"a", isDraining, "", "", "a:80", 0}, {"c", isRunning, "", "", "c:80", 1}},
		},
		"one rank has the next epoch, and both are ready": {
			[]part{rank(0, 2, in("c", isReady)), rank(1, 1, in("b", isReady))},
			[]seen{{"c", isRunning, runtime.ReasonNotReady, "its ranks start anew", "c:80", 1}},
		},
		"one rank has the next template, and both are ready": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isReady, func(i *runtime.Instance) { i.TemplateHash = "b" }))},
			[]seen{{"a", isRunning, runtime.ReasonNotReady, "its ranks are being replaced", "a:80", 0}},
		},
		"a rank of the last template drains, and the next one starts": {
			[]part{rank(0, 1, in("c", isRunning, func(i *runtime.Instance) { i.TemplateHash = "b" })), rank(1, 1, in("b", isDraining))},
			[]seen{{"b", isDraining, "", "", "", 0}, {"c", isRunning, "", "", "c:80", 0}},
		},
		"a rank drains": {
			[]part{rank(0, 1, in("a", isReady)), rank(1, 1, in("b", isDraining))},
			[]seen{{"a", isDraining, "", "", "a:80", 0}},
		},
		"of those that ended the newest is left": {
			[]part{rank(0, 1, in("x", isEnded, func(i *runtime.Instance) { i.StartedAt = now.Add(-time.Minute) }), in("a", isReady)), rank(1, 1, in("y", isEnded), in("b", isReady))},
			[]seen{{"y", isEnded, "", "", "y:80", 0}, {"a", isReady, "", "", "a:80", 0}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []seen
			for _, i := range joinedRanks(c.ranks) {
				got = append(got, seen{i.ID, i.Status, i.Reason, i.Message, i.Address, i.Restarts})
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
	require.Equal(t, [][]part{{ranks[0]}, {ranks[2], ranks[1]}}, instancesOf(ranks), "by rank as a number")
}
