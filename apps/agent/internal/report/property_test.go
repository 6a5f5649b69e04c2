package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// wholePicture has all messages by id, made for one observation. It shares no data with another
// wholePicture. A picture must agree with it.
type wholePicture struct {
	instances map[string]*agentv1.InstanceState
	rollups   map[string]*agentv1.DeploymentRollup
	// settled has the last settled generation of each deployment that exists.
	settled map[string]int64
}

func takeWhole(src Source, before wholePicture) wholePicture {
	w := wholePicture{instances: map[string]*agentv1.InstanceState{}, rollups: map[string]*agentv1.DeploymentRollup{}, settled: map[string]int64{}}
	for _, a := range src.Applied() {
		w.rollups[a.Key] = &agentv1.DeploymentRollup{DeploymentId: a.Key, Generation: a.Generation}
	}
	seen, _ := src.Observation()
	for _, d := range seen.Deployments {
		w.rollups[d.DeploymentID] = Rollup(d)
		w.settled[d.DeploymentID] = d.Generation
		if d.Unsettled {
			w.settled[d.DeploymentID] = 0
			if was := before.settled[d.DeploymentID]; was <= d.Generation {
				w.settled[d.DeploymentID] = was
			}
		}
		w.rollups[d.DeploymentID].Generation = w.settled[d.DeploymentID]
		for _, i := range d.Instances {
			w.instances[i.ID] = instanceState(d.DeploymentID, &i)
		}
	}
	return w
}

// changesTo returns what the next report must contain. edge is true if a rollout may wait for it.
func (w wholePicture) changesTo(now wholePicture) (instances []*agentv1.InstanceState, rollups []*agentv1.DeploymentRollup, edge bool) {
	for _, id := range slices.Sorted(maps.Keys(now.instances)) {
		if was, is := w.instances[id], now.instances[id]; !proto.Equal(was, is) {
			instances = append(instances, is)
			edge = edge || isEdge(was.GetStatus()) != isEdge(is.Status)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.instances)) {
		if was := w.instances[id]; now.instances[id] == nil && was.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			instances = append(instances, terminatedState(was))
			edge = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now.rollups)) {
		if was, is := w.rollups[id], now.rollups[id]; !proto.Equal(was, is) {
			rollups = append(rollups, is)
			edge = edge || was == nil || was.Generation != is.Generation || was.ReadyReplicas != is.ReadyReplicas || was.Ready != is.Ready || was.Failed != is.Failed || was.Doomed != is.Doomed
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.rollups)) {
		was, none := w.rollups[id], &agentv1.DeploymentRollup{DeploymentId: id, Generation: w.rollups[id].Generation}
		if now.rollups[id] == nil && !proto.Equal(was, none) {
			rollups = append(rollups, none)
			edge = edge || was.ReadyReplicas+was.Ready+was.Failed+was.Doomed > 0
		}
	}
	return instances, rollups, edge
}

// simulation is a region in which deployments and instances change at random. It never changes a
// list that it has returned.
type simulation struct {
	deployments []runtime.ObservedDeployment
	applied     []*agentv1.AppliedState
	copies      bool
	born        int
}

func (s *simulation) Applied() []*agentv1.AppliedState                    { return s.applied }
func (s *simulation) Quarantined() (_ []*agentv1.QuarantinedKey, ok bool) { return nil, true }
func (s *simulation) HeldSince(string) (int64, bool)                      { return 0, true }
func (s *simulation) Changed() <-chan struct{}                            { return nil }

func (s *simulation) Observation() (runtime.Observation, bool) {
	out := runtime.Observation{Deployments: slices.Clone(s.deployments)}
	if s.copies {
		for n := range out.Deployments {
			out.Deployments[n].Instances = slices.Clone(out.Deployments[n].Instances)
		}
	}
	return out, true
}

func (s *simulation) pick(t *rapid.T) *runtime.ObservedDeployment {
	if len(s.deployments) == 0 {
		return nil
	}
	return &s.deployments[rapid.IntRange(0, len(s.deployments)-1).Draw(t, "deployment")]
}

// changeRandomly makes one random change.
func (s *simulation) changeRandomly(t *rapid.T) {
	d := s.pick(t)
	what := rapid.SampledFrom([]string{
		"nothing", "copies", "deploy", "scale", "scale", "end", "move", "shuffle", "reassign", "forget", "settle", "state", "state", "state", "applied",
	}).Draw(t, "what")
	switch {
	case what == "copies":
		s.copies = !s.copies
	case what == "deploy":
		if id := fmt.Sprint("dep_", rapid.IntRange(0, 5).Draw(t, "id")); !slices.ContainsFunc(s.deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == id }) {
			s.deployments = append(s.deployments, runtime.ObservedDeployment{DeploymentID: id, Generation: 1, TemplateHash: "a"})
		}
	case what == "applied":
		s.applied = nil
		for n := range 6 {
			if rapid.Bool().Draw(t, "known") {
				s.applied = append(s.applied, &agentv1.AppliedState{
					Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: fmt.Sprint("dep_", n), Generation: int64(rapid.IntRange(1, 2).Draw(t, "generation")),
				})
			}
		}
	case d == nil:
	case what == "reassign":
		d.Generation += int64(rapid.IntRange(-1, 2).Draw(t, "generations"))
		d.TemplateHash = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "template")
	case what == "settle":
		d.Unsettled = !d.Unsettled
	case what == "forget":
		id := d.DeploymentID
		s.deployments = slices.DeleteFunc(s.deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == id })
	case what == "shuffle":
		d.Instances = slices.Clone(d.Instances)
		slices.Reverse(d.Instances)
	case what == "scale" && len(d.Instances) < 8:
		d.Instances = slices.Clone(d.Instances)
		for range rapid.IntRange(1, 3).Draw(t, "more") {
			s.born++
			at := rapid.IntRange(0, len(d.Instances)).Draw(t, "at")
			d.Instances = slices.Insert(d.Instances, at, runtime.Instance{ID: fmt.Sprint("ins_", s.born), Group: at, TemplateHash: "a"})
		}
	case len(d.Instances) > 0:
		s.changeInstance(t, d, what, rapid.IntRange(0, len(d.Instances)-1).Draw(t, "instance"))
	}
}

// changeInstance changes one instance of a deployment.
func (s *simulation) changeInstance(t *rapid.T, d *runtime.ObservedDeployment, what string, n int) {
	i := d.Instances[n]
	d.Instances = slices.Delete(slices.Clone(d.Instances), n, n+1)
	switch what {
	case "move": // another deployment adopts it
		to := s.pick(t)
		to.Instances = append(slices.Clone(to.Instances), i)
	case "state": // one field at a time, because each change alone must be found
		switch rapid.SampledFrom([]string{"status", "status", "reason", "message", "template", "started", "doomed", "gpus"}).Draw(t, "field") {
		case "status":
			i.Status = rapid.SampledFrom([]windlassv1.InstanceStatus{
				ready, ready, running, ended, windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING,
			}).Draw(t, "status")
		case "reason":
			i.Reason = rapid.SampledFrom([]string{"", runtime.ReasonExited, runtime.ReasonEvicted}).Draw(t, "reason")
		case "message":
			i.Message = rapid.SampledFrom([]string{"bad \xff", "bad \xfe", ""}).Draw(t, "message")
		case "template":
			i.TemplateHash = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "template")
		case "started":
			i.StartedAt = time.UnixMicro(int64(rapid.IntRange(0, 3).Draw(t, "started")) * 400)
		case "doomed":
			i.Doomed = !i.Doomed
		case "gpus":
			i.GPUs = rapid.SampledFrom([][]string{{"0"}, {"1"}, {"0", "1"}, nil}).Draw(t, "gpus")
		}
		d.Instances = slices.Insert(d.Instances, n, i)
	}
}

func TestPicture_SharedEqualsWholeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulation{}
		latest, reported := emptyPicture(), emptyPicture()
		stored, seen := wholePicture{}, wholePicture{}
		for range rapid.IntRange(100, 250).Draw(t, "length") {
			s.changeRandomly(t)
			now, ok := takePicture(s, latest)
			require.True(t, ok)
			latest = now
			is := takeWhole(s, seen)
			seen = is

			d := compareFacts(reported, now)
			list, edgeOfOne := compareInstances(reported, now)
			instances, rollups, edge := stored.changesTo(is)
			said := d.newRequest(list)
			slices.SortFunc(instances, func(a, b *agentv1.InstanceState) int { return cmp.Compare(a.Id, b.Id) })
			slices.SortFunc(rollups, func(a, b *agentv1.DeploymentRollup) int { return cmp.Compare(a.DeploymentId, b.DeploymentId) })
			requireSame(t, instances, said.Instances)
			requireSame(t, rollups, said.Rollups)
			appliedEdge := false
			for _, a := range d.applied {
				was := reported.applied[key{a.Kind, a.Key}]
				appliedEdge = appliedEdge || was == nil || was.Generation != a.Generation
			}
			require.Equal(t, edge || appliedEdge, d.edge || edgeOfOne)
			urgent := d.urgentParts()
			require.Equal(t, d.edge, !urgent.isEmpty())
			switch {
			case d.isEmpty() && len(list) == 0:
				reported.deployments = now.deployments
			case !rapid.Bool().Draw(t, "answered"):
			case rapid.Bool().Draw(t, "edges alone"):
				urgent.learnFacts(&reported)
				left := compareFacts(reported, now)
				require.False(t, left.edge, "edges that were sent are not sent again")
				for _, r := range urgent.rollups {
					stored.rollups = withRollup(stored.rollups, r)
				}
			default:
				reported, stored = now, is
			}
		}
	})
}

func withRollup(rollups map[string]*agentv1.DeploymentRollup, r *agentv1.DeploymentRollup) map[string]*agentv1.DeploymentRollup {
	out := maps.Clone(rollups)
	if out == nil {
		out = map[string]*agentv1.DeploymentRollup{}
	}
	out[r.DeploymentId] = r
	return out
}

func requireSame[M proto.Message](t *rapid.T, want, got []M) {
	require.Len(t, got, len(want))
	for n := range want {
		require.True(t, proto.Equal(want[n], got[n]), "want %v, got %v", want[n], got[n])
	}
}
