package report

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// steady is a region in which all instances are ready.
type steady struct {
	simulation
	capacity *agentv1.Capacity
}

func newSteady(deployments, each int, copies bool) *steady {
	s := &steady{simulation: simulation{copies: copies}, capacity: &agentv1.Capacity{CpuMillicores: 1000}}
	at := time.Unix(1_700_000_000, 0)
	for n := range deployments {
		d := runtime.ObservedDeployment{DeploymentID: fmt.Sprintf("dep_%032d", n), Generation: 1, TemplateHash: "template"}
		for g := range each {
			d.Instances = append(d.Instances, runtime.Instance{
				ID: fmt.Sprintf("ins_%032d", n*each+g), Role: "main", Group: g, TemplateHash: "template", Status: ready,
				Address: "10.0.0.1:80", RuntimeName: "web-" + strconv.Itoa(g), StartedAt: at, ReadyAt: at.Add(time.Second),
			})
		}
		s.deployments = append(s.deployments, d)
		s.applied = append(s.applied, &agentv1.AppliedState{
			Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: d.DeploymentID, Epoch: 1, Generation: 1, Phase: agentv1.AppliedState_PHASE_APPLIED,
		})
	}
	return s
}

func (s *steady) Observation() (runtime.Observation, bool) {
	seen, ok := s.simulation.Observation()
	seen.Capacity = s.capacity
	return seen, ok
}

// restart restarts one instance of one deployment.
func (s *steady) restart(n int) {
	d := &s.deployments[n%len(s.deployments)]
	d.Instances = slices.Clone(d.Instances)
	d.Instances[n%len(d.Instances)].Restarts++
}

func TestReport_ReusesUnchangedParts(t *testing.T) {
	for _, copies := range []bool{false, true} {
		s := newSteady(3, 5, copies)
		before, _ := takePicture(s, emptyPicture())
		s.restart(1)
		now, _ := takePicture(s, before)
		for n, same := range []bool{true, false, true} {
			id := s.deployments[n].DeploymentID
			require.Equal(t, same, before.deployments[id] == now.deployments[id])
			require.Equal(t, same, before.rollups[id] == now.rollups[id])
		}
		list, _ := compareInstances(before, now)
		require.Len(t, list, 1)
	}
}

// BenchmarkLookAfterOneChange measures how long it takes to find the one instance that changed. In
// the first case, the runtime shares the lists of unchanged deployments. In the second, it copies
// all lists each time. In the third, one deployment has all instances.
func BenchmarkLookAfterOneChange(b *testing.B) {
	for _, instances := range []int{1000, 20_000, 200_000} {
		for _, c := range []struct {
			name   string
			each   int
			copies bool
		}{{"shared", 100, false}, {"copied", 100, true}, {"one deployment", instances, false}} {
			b.Run(fmt.Sprintf("instances=%d/%s", instances, c.name), func(b *testing.B) {
				s := newSteady(instances/c.each, c.each, c.copies)
				base := heapBytes()
				before, _ := takePicture(s, emptyPicture())
				used := heapBytes() - base
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					b.StopTimer()
					s.restart(n)
					b.StartTimer()
					now, _ := takePicture(s, before)
					compareFacts(before, now)
					if list, _ := compareInstances(before, now); len(list) != 1 {
						b.Fatalf("%d instances to report", len(list))
					}
					before = now
				}
				b.ReportMetric(float64(used)/float64(instances), "used-B/instance")
			})
		}
	}
}

// heapBytes returns how many bytes of the heap are in use.
func heapBytes() int64 {
	var m goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
