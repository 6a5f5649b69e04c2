package kubernetes

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// The pods of a gang exist only while there is room for all of them. Package gang decides which gangs may have pods. A
// gang that waits, or gives back its pods, has workloads without replicas:
//
//	look at a deployment  --its gangs-->  gangs  --may run, or why not-->  replicas of its workloads
//	                                        ^
//	nodes, pods, quotas  --admitGangs------'
//
// If the cluster serves PodGroups, its scheduler decides instead: the gang gets a PodGroup, which its pods name, and all
// pods at once. They hold nothing until each of them gets a node. Gangs that run in one part of the region, and gangs of
// pools with a quota, are still the agent's, because the scheduler knows neither.
//
// One decision covers all gangs of the region, so that two gangs never start on the same room. The
// cluster does not store what a gang waits for, because the agent computes it from existing
// objects. Once a gang runs, its workloads are like any other, so Kubernetes replaces its pods also
// while the agent is away.

// gangsRef is the queue's name for a decision about all gangs that wait.
var gangsRef = render.NewRef(render.KindRoles, "", "gangs")

const (
	// roomDelay is how long a decision waits after room was freed, so that pods that end together cause one decision.
	roomDelay = 200 * time.Millisecond
	// roomPoll is the interval of decisions while a gang waits. It covers changes that cause no
	// decision by themselves, such as changes of quotas.
	roomPoll = 5 * time.Second
)

// gangs has the gangs of the region. It is safe for concurrent use.
type gangs struct {
	mu sync.Mutex
	of map[render.Ref]map[groups.Unit]*gangEntry
	// notes has, by workload, what the gang of the workload lacks at present.
	notes map[string]string
	stuck gang.Stuck
	// podGroups is the version of the cluster's PodGroups, empty for none, as it was at the time found.
	podGroups string
	found     time.Time
}

// gangEntry is one gang. Its key in gangs is the instance of several hosts, or the number of the group.
type gangEntry struct {
	gang.Entry

	gangPlace

	members []gangMember
	// pack says in which domains the pods may be. Nil means any node.
	pack *gangPack
	// native means that a gang that waits gets a PodGroup. made is when its PodGroup was last made.
	native bool
	made   time.Time
}

// gangPlace says how the pods of a gang that runs or starts get their nodes.
type gangPlace struct {
	// domain has the nodes on which the pods run. Nil means any node.
	domain *runtime.Domain
	// podGroup is the name of the PodGroup. It is empty if the agent started the gang by itself.
	podGroup string
}

// gangMember is one pod that a gang should have.
type gangMember struct {
	spec *gangSpec
	// pool is the pool of its GPUs, if the pool has a quota.
	pool string
	gpus int64
	// exists means that the pod exists. claimed means that its GPUs count in the quota.
	exists, claimed bool
	// workload identifies the workload, as access.Namespaced does. It is empty if there is none yet.
	workload string
}

// gangSpec is the spec of pods, with a text that is the same for all specs that need the same room.
type gangSpec struct {
	*corev1.PodSpec

	shape string
}

func newGangs() *gangs {
	return &gangs{of: map[render.Ref]map[groups.Unit]*gangEntry{}, notes: map[string]string{}}
}

// forgetDeployment drops the gangs of a deployment.
func (g *gangs) forgetDeployment(at render.Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, at)
}

// countIn returns how many gangs have the state.
func (g *gangs) countIn(s gang.State) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count(s)
}

// count is counted for a caller that holds g.mu.
func (g *gangs) count(s gang.State) (n int) {
	for _, all := range g.of {
		for _, e := range all {
			if e.State == s {
				n++
			}
		}
	}
	return n
}

// noteOf returns what the gang of a workload lacks at present, or "".
func (g *gangs) noteOf(workload string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.notes[workload]
}

// replaceNotes replaces the notes, and calls changed for each workload with another note. The caller holds g.mu.
func (g *gangs) replaceNotes(notes map[string]string, changed func(workload string)) {
	delete(notes, "")
	for workload := range g.notes {
		if _, still := notes[workload]; !still {
			changed(workload)
		}
	}
	for workload, text := range notes {
		if g.notes[workload] != text {
			changed(workload)
		}
	}
	g.notes = notes
}

// roomMoved queues a decision about the gangs that wait, because there may be more room.
func (r *Runtime) roomMoved() {
	if r.gangs.countIn(gang.Waits) > 0 {
		r.repairs.queue.AddAfter(gangsRef, roomDelay)
	}
}
