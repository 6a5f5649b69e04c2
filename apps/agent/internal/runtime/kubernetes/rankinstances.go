package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// isRank reports whether the workload is a rank of an instance of several hosts.
func isRank(p part) bool {
	_, ok := render.RankOf(p.key)
	return ok
}

// instancesOf groups the lists of workloads by instance. The order is that of the first rank of
// each instance.
func instancesOf(all []part) (out [][]part) {
	index := map[string]int{}
	for _, p := range all {
		rank, ok := render.RankOf(p.key)
		if !ok {
			out = append(out, []part{p})
			continue
		}
		first := p.list[0]
		at := fmt.Sprintf("%s/%s/%d/%d", render.ParentKey(p.key), first.Role, first.Group, first.Slot)
		n, known := index[at]
		if !known {
			n = len(out)
			index[at] = n
			out = append(out, nil)
		}
		where, _ := slices.BinarySearchFunc(out[n], rank, func(p part, rank int) int {
			of, _ := render.RankOf(p.key)
			return cmp.Compare(of, rank)
		})
		out[n] = slices.Insert(out[n], where, p)
	}
	return out
}

// rankInstance is the instance of one rank.
type rankInstance struct {
	rank int
	runtime.Instance
}

// joinedRanks returns up to three instances for the ranks of an instance of several hosts: the
// newest terminated rank, one instance for stopping ranks of an earlier epoch or template, and one
// for the present ranks. The parts are in the order of the ranks.
func joinedRanks(ranks []part) (out []runtime.Instance) {
	var present, past, ended []rankInstance
	var pods []rankPod
	for _, p := range ranks {
		pods = append(pods, p.pod)
	}
	restarts := slices.Contains(endedRanks(pods), true)
	hosts, epoch, sameEpoch := 0, 0, true
	for _, p := range ranks {
		rank, _ := render.RankOf(p.key)
		if sameEpoch = sameEpoch && (epoch == 0 || p.epoch == epoch); p.hosts > hosts {
			hosts = p.hosts
		}
		epoch = max(epoch, p.epoch)
		newest := -1
		for n := range p.list {
			in := &p.list[n]
			switch {
			case in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED || p.stale[in.ID]:
			case newest < 0, in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, p.list[newest].Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
				newest = n
			}
		}
		for n := range p.list {
			in := rankInstance{rank, p.list[n]}
			if in.Reason == runtime.ReasonStartupTimeout && in.ID == render.InstanceID(p.pod.uid) && endedAlone(pods, p.pod) {
				excuseRank(&in.Instance)
			}
			switch {
			case in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED:
				ended = append(ended, in)
			case n == newest:
				present = append(present, in)
			default:
				in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
				past = append(past, in)
			}
		}
	}
	// A rank that drains counts as old if other ranks have another template already.
	isOld := func(in rankInstance) bool {
		return in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING && slices.ContainsFunc(present, func(o rankInstance) bool {
			return o.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING && o.TemplateHash != in.TemplateHash
		})
	}
	present, past = splitInstances(present, past, isOld)
	if len(ended) > 0 {
		out = append(out, slices.MaxFunc(ended, func(a, b rankInstance) int { return a.StartedAt.Compare(b.StartedAt) }).Instance)
	}
	if len(past) > 0 {
		out = append(out, joinedInstance(past, hosts))
	}
	if len(present) > 0 {
		one := joinedInstance(present, hosts)
		if one.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && (!sameEpoch || restarts) {
			one.Status, one.Reason, one.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonNotReady, "all its ranks restart"
			one.ReadyAt = time.Time{}
		}
		one.Restarts += max(epoch-1, 0)
		out = append(out, one)
	}
	return out
}

// excuseRank changes a rank that was not ready in time: the rank counts as starting, because it waited
// for a rank that had not run.
func excuseRank(in *runtime.Instance) {
	in.Doomed, in.Reason, in.Message = false, runtime.ReasonNotReady, "waits for another rank"
	if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED {
		in.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	}
}

// splitInstances moves the instances for which moves is true from the list from to the list to.
func splitInstances(from, to []rankInstance, moves func(rankInstance) bool) (left, moved []rankInstance) {
	for _, in := range from {
		if moves(in) {
			to = append(to, in)
		} else {
			left = append(left, in)
		}
	}
	return left, to
}

// joinedInstance returns one instance for the present pods of its ranks. It is ready if every rank
// is ready. Otherwise it has the state and the message of the worst rank. It has the id and the
// address of rank 0.
func joinedInstance(ranks []rankInstance, hosts int) runtime.Instance {
	out := ranks[0].Instance
	worst, ready, template := 0, 0, true
	out.GPUs, out.ReadyAt = nil, ranks[0].ReadyAt
	for n := range ranks {
		in := &ranks[n]
		if severityOf(in) > severityOf(&ranks[worst]) {
			worst = n
		}
		if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			ready++
		}
		template = template && in.TemplateHash == out.TemplateHash
		out.GPUs = append(out.GPUs, in.GPUs...)
		out.Restarts, out.Doomed = max(out.Restarts, in.Restarts), out.Doomed || in.Doomed
		if in.ReadyAt.After(out.ReadyAt) {
			out.ReadyAt = in.ReadyAt
		}
		if in.StartedAt.After(out.StartedAt) {
			out.StartedAt = in.StartedAt
		}
	}
	bad := ranks[worst]
	out.Status, out.Reason, out.Message = bad.Status, bad.Reason, bad.Message
	// The message names no rank if all ranks wait for the same thing.
	together := bad.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING && !slices.ContainsFunc(ranks, func(in rankInstance) bool { return in.Message != bad.Message })
	if bad.Message != "" && !together {
		out.Message = fmt.Sprintf("rank %d of %d: %s", bad.rank, max(hosts, len(ranks)), bad.Message)
	}
	if out.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && (ready < hosts || hosts == 0 || !template) {
		out.Status, out.Reason, out.Message = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING, runtime.ReasonNotReady, fmt.Sprintf("%d of %d ranks are ready", ready, hosts)
		if !template {
			out.Message = "its ranks are being replaced"
		}
	}
	if out.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
		out.ReadyAt = time.Time{}
	}
	if ranks[0].rank != 0 {
		out.Address = ""
	}
	return out
}

// severityOf orders the states of ranks. The instance has the state of the rank with the highest
// severity.
func severityOf(in *rankInstance) int {
	if in.Doomed {
		return 10
	}
	switch in.Status {
	case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
		return 9
	case windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:
		return 8
	case windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING:
		return 6
	case windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING:
		return 5
	case windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:
		if in.Reason != "" && in.Reason != runtime.ReasonNotReady {
			return 7
		}
		return 4
	default:
		return 0
	}
}
