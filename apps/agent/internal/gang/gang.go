// Package gang decides which pods start all or nothing. It is pure.
//
// A gang is a set of pods that are useless without each other, such as the ranks of an instance of several hosts. If
// such pods started one by one, two gangs could each hold a part of the GPUs and wait for the rest forever. So a gang
// has no pods until the region has room for all of them:
//
//	waits --room for all--> starts --every pod has a node--> whole
//	  ^                      |  ^                              |
//	  |                      |  '------- a pod has no node ----'
//	  '--pause-- gives back <'  not whole within the timeout
//
// The room is computed from what nodes have and what pods request. The scheduler may know more, for example about
// volumes, so a gang that was let in may still not fit. It then gives back everything after a timeout.
//
// A cluster whose scheduler itself places pods all or nothing needs no Admit: the caller lets the gang in at once.
package gang

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is the state of a gang.
type State int

const (
	// Unknown is the state of a gang that was not seen before.
	Unknown State = iota
	// Waits means that the gang must have no pods, because the region has no room for all of them.
	Waits
	// Starts means that all pods of the gang may exist, and that some of them have no node yet.
	Starts
	// Whole means that every pod of the gang has a node.
	Whole
	// GivesBack means that the gang did not become whole in time. Its pods are removed, and it must have no pods until
	// Entry.Retry.
	GivesBack
)

// Entry is what is known about a gang from one look to the next.
type Entry struct {
	State State
	// Since is the time from which the state Waits or Starts counts.
	Since time.Time
	// Retry is the end of the state GivesBack, if no pod is left by then.
	Retry time.Time
	// Failures is how often the gang has given back its pods since it was last whole.
	Failures int
}

// MayRun reports whether the pods of the gang may exist.
func (e Entry) MayRun() bool { return e.State == Starts || e.State == Whole }

// Seen is a gang as it was observed at one moment.
type Seen struct {
	// Pods is the number of pods that the gang should have, at least 1. Bound is how many of them have a node.
	Pods, Bound int
	// Started means that some pods exist, or that Kubernetes was asked to create them. Left means that some pods exist,
	// stopping ones included.
	Started, Left bool
	// GaveBack means that the cluster says that the gang gives back its pods.
	GaveBack bool
	// Queued means that the cluster's scheduler gives nodes to all pods of the gang or to none. Pods without a node then
	// hold nothing, and may wait for as long as no pod of the gang has one.
	Queued bool
	// Oldest is when the oldest pod without a node was created. It is zero if there is none.
	Oldest time.Time
}

// Next returns the entry after a look at the gang. timeout is how long the pods of a gang may lack a node. pause
// returns the length of the state GivesBack after a number of earlier failures.
func (e Entry) Next(s Seen, now time.Time, timeout time.Duration, pause func(failures int) time.Duration) Entry {
	since := now
	if !s.Oldest.IsZero() && s.Oldest.Before(now) {
		since = s.Oldest
	}
	switch e.State {
	case Unknown, Waits:
		switch {
		case e.State == Unknown && s.GaveBack && s.Left:
			return Entry{State: GivesBack, Retry: now.Add(pause(0)), Failures: 1}
		case !s.Started && e.State == Unknown:
			return Entry{State: Waits, Since: now}
		case !s.Started:
			return e
		}
		e.State, e.Since = Starts, since
	case GivesBack:
		if s.Left || now.Before(e.Retry) {
			return e
		}
		return Entry{State: Waits, Since: now, Failures: e.Failures}
	case Whole:
		switch {
		case s.Bound >= s.Pods:
			return e
		case !s.Started:
			return Entry{State: Waits, Since: now}
		}
		e.State, e.Since = Starts, since
	case Starts:
	}
	switch {
	case s.Bound >= s.Pods:
		return Entry{State: Whole}
	case s.Queued && s.Bound == 0:
		e.Since = now
	case now.Sub(e.Since) >= timeout:
		return Entry{State: GivesBack, Retry: now.Add(pause(e.Failures)), Failures: e.Failures + 1}
	}
	return e
}

// LetIn returns the entry of a gang that waited and may start now.
func (e Entry) LetIn(now time.Time) Entry {
	return Entry{State: Starts, Since: now, Failures: e.Failures}
}

// Resources are amounts by the name of the resource.
type Resources map[string]int64

// Node is a node with the resources that no pod has requested.
type Node struct {
	Name string
	Free Resources
}

// Pod is a pod without a node.
type Pod struct {
	// Shape is the same for pods with the same Needs, Nodes, Pool and GPUs. It spares work if many gangs are alike. If
	// it is empty, the pod is compared with no other.
	Shape string
	// Needs are the resources that the pod requests. The node must have each of them.
	Needs Resources
	// Nodes names the nodes on which the pod may run.
	Nodes map[string]bool
	// Pool is the pool whose quota the pod takes GPUs of. It is empty if no quota applies.
	Pool string
	GPUs int64
	// Key identifies a pod that exists. It is empty for other pods.
	Key string
}

// Gang is a gang that waits.
type Gang struct {
	Key   string
	Since time.Time
	Pods  []Pod
	// Pack, if set, says that all pods go to one domain of nodes, such as a rack.
	Pack *Pack
}

// Pack says which domains of nodes a region has, and how a gang uses them.
type Pack struct {
	// Label is the label of nodes whose value is the domain. Domains has the names of the nodes of each domain.
	Label   string
	Domains map[string][]string
	// Required means that the gang waits for room in one domain. Otherwise, its pods may be anywhere if no domain has
	// room for all of them.
	Required bool
}

// In returns the pods, each with only those of its nodes that are in the domain.
func (p *Pack) In(domain string, pods []Pod) []Pod {
	out := slices.Clone(pods)
	narrowed := map[string]map[string]bool{} // by shape
	for n := range out {
		nodes, ok := narrowed[out[n].Shape]
		if !ok || out[n].Shape == "" {
			nodes = map[string]bool{}
			for _, name := range p.Domains[domain] {
				if out[n].Nodes[name] {
					nodes[name] = true
				}
			}
			narrowed[out[n].Shape] = nodes
		}
		out[n].Nodes = nodes
	}
	return out
}

// text returns a text that is the same for gangs that are packed alike.
func (p *Pack) text() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf(" %s %t", p.Label, p.Required)
}

// Lack says why a gang does not start.
type Lack struct {
	// Fits is how many pods of the gang would have a node. If the gang must be in one domain, it is the number of the
	// domain with the most.
	Fits int
	// Pool is the pool whose quota has no room for all pods, and Quota is how many GPUs of the quota are left. Pool is
	// empty if quotas have room.
	Pool  string
	Quota int64
}

// Admit decides which of the waiting gangs start now, oldest first. A gang without room does not
// stop a younger one that has room. pending has the pods without a node that belong to no waiting
// gang. They get room before the gangs. quotas has, by pool with a quota, how many GPUs of the
// quota are left. lacks has the reason for each gang that does not start. roomy has the keys of the
// pending pods that got room. domains has the domain of each gang that starts in one.
func Admit(nodes []Node, pending []Pod, quotas map[string]int64, waiting []Gang) (starts []string, lacks map[string]Lack, roomy []string, domains map[string]string) {
	r := &freeNodes{left: make(map[string]Resources, len(nodes))}
	for _, n := range nodes {
		r.names = append(r.names, n.Name)
		r.left[n.Name] = maps.Clone(n.Free)
	}
	slices.Sort(r.names)
	quotas = maps.Clone(quotas)
	for _, p := range r.placePods(pending) {
		if p.key != "" {
			roomy = append(roomy, p.key)
		}
	}
	waiting = slices.Clone(waiting)
	slices.SortFunc(waiting, func(a, b Gang) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key)) })
	lacks, domains = map[string]Lack{}, map[string]string{}
	refused := map[string]Lack{} // by the shape of the gang, since the last one started
	for _, g := range waiting {
		shape := shapeOf(g.Pods)
		if shape != "" {
			shape += g.Pack.text()
		}
		if lack, alike := refused[shape]; alike && shape != "" {
			lacks[g.Key] = lack
			continue
		}
		taken, domain := r.pack(g)
		lack := Lack{Fits: len(taken)}
		lack.Pool, lack.Quota = exceededQuota(quotas, g.Pods)
		if len(taken) < len(g.Pods) || lack.Pool != "" {
			r.undoPlacement(taken)
			lacks[g.Key], refused[shape] = lack, lack
			continue
		}
		clear(refused)
		for _, p := range g.Pods {
			if _, limited := quotas[p.Pool]; limited {
				quotas[p.Pool] -= p.GPUs
			}
		}
		starts = append(starts, g.Key)
		if domain != "" {
			domains[g.Key] = domain
		}
	}
	return starts, lacks, roomy, domains
}

// stuckAfter is how long a pod may have no node although there is room for it. The scheduler looks at each pod again
// within 5 minutes.
const stuckAfter = 6 * time.Minute

// Stuck finds pods that get no node although there is room for them as far as the agent knows, for example because
// the scheduler must spread them over zones. They must not keep room from gangs, which could belong to other workspaces.
// The zero value is ready to use. It is not safe for concurrent use.
type Stuck struct {
	since map[string]time.Time
}

// Without returns the pods without those that are stuck.
func (s *Stuck) Without(pods []Pod, now time.Time) []Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return s.isStuck(p.Key, now) })
}

// Note takes the pods without a node, and the keys of the pods that had room in this decision. A
// pod that is stuck remains so for as long as it has no node.
func (s *Stuck) Note(pods []Pod, roomy []string, now time.Time) {
	next := map[string]time.Time{}
	for _, key := range roomy {
		next[key] = now
		if since, known := s.since[key]; known {
			next[key] = since
		}
	}
	for _, p := range pods {
		if s.isStuck(p.Key, now) {
			next[p.Key] = s.since[p.Key]
		}
	}
	s.since = next
}

func (s *Stuck) isStuck(key string, now time.Time) bool {
	since, known := s.since[key]
	return known && now.Sub(since) >= stuckAfter
}

// shapeOf returns a text that is the same for gangs of alike pods, or "" if a pod has no shape.
func shapeOf(pods []Pod) string {
	count := map[string]int{}
	for _, p := range pods {
		if p.Shape == "" {
			return ""
		}
		count[p.Shape]++
	}
	var out strings.Builder
	for _, shape := range slices.Sorted(maps.Keys(count)) {
		_, _ = fmt.Fprintf(&out, "%d %q ", count[shape], shape)
	}
	return out.String()
}

// exceededQuota returns a pool whose quota has no room for all pods, and what is left of the quota.
func exceededQuota(quotas map[string]int64, pods []Pod) (pool string, left int64) {
	asked := map[string]int64{}
	for _, p := range pods {
		asked[p.Pool] += p.GPUs
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if left, limited := quotas[name]; limited && asked[name] > left {
			return name, max(left, 0)
		}
	}
	return "", 0
}

// room has what is left of each node.
type freeNodes struct {
	names []string
	left  map[string]Resources
}

// placed is a pod with its node.
type placed struct {
	node  string
	needs Resources
	key   string
}

// placePods takes room on a node for each pod that fits, and returns the placed pods. Pods for the
// fewest nodes and with the largest needs come first, and each takes the node that it fills most.
// If all pods are alike, no other placement has room for more of them. If they differ, another
// placement may have room for more.
func (r *freeNodes) placePods(pods []Pod) (out []placed) {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(len(a.Nodes), len(b.Nodes)), -cmp.Compare(a.GPUs, b.GPUs), -compareNeeds(a.Needs, b.Needs))
	})
	for _, p := range pods {
		best := ""
		for _, name := range r.namesFor(p) {
			if p.Nodes[name] && fitsIn(p.Needs, r.left[name]) && (best == "" || isTighter(p.Needs, r.left[name], r.left[best])) {
				best = name
			}
		}
		if best == "" {
			continue
		}
		for name, n := range p.Needs {
			r.left[best][name] -= n
		}
		out = append(out, placed{best, p.Needs, p.Key})
	}
	return out
}

// namesFor returns the nodes to try for a pod, sorted. It may have more nodes than those on which the pod may run.
func (r *freeNodes) namesFor(p Pod) []string {
	if len(p.Nodes) >= len(r.names)/4 {
		return r.names
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.Nodes)), func(name string) bool { return r.left[name] == nil })
}

// pack takes room for the pods of a gang, and returns the placed pods. If the gang is packed and some domains have room
// for all of its pods, they are in the one that has the least left, whose name is domain. Otherwise domain is empty.
func (r *freeNodes) pack(g Gang) (taken []placed, domain string) {
	if g.Pack == nil {
		return r.placePods(g.Pods), ""
	}
	var most string
	var best Resources
	fit := -1
	for _, name := range slices.Sorted(maps.Keys(g.Pack.Domains)) {
		pods := g.Pack.In(name, g.Pods)
		free := r.freeFor(pods[0])
		taken := r.placePods(pods)
		r.undoPlacement(taken)
		if len(taken) > fit {
			most, fit = name, len(taken)
		}
		if len(taken) == len(g.Pods) && (domain == "" || isTighter(pods[0].Needs, free, best)) {
			domain, best = name, free
		}
	}
	switch {
	case domain != "":
		return r.placePods(g.Pack.In(domain, g.Pods)), domain
	case g.Pack.Required:
		return r.placePods(g.Pack.In(most, g.Pods)), ""
	}
	return r.placePods(g.Pods), ""
}

// freeFor returns what is left of all nodes on which the pod may run.
func (r *freeNodes) freeFor(p Pod) Resources {
	out := Resources{}
	for node := range p.Nodes {
		for name := range p.Needs {
			out[name] += r.left[node][name]
		}
	}
	return out
}

func (r *freeNodes) undoPlacement(all []placed) {
	for _, p := range all {
		for name, n := range p.needs {
			r.left[p.node][name] += n
		}
	}
}

func fitsIn(needs, left Resources) bool {
	for name, n := range needs {
		if n > 0 && n > left[name] {
			return false
		}
	}
	return true
}

// compareNeeds compares by the resources in the order of their names, which is the same for each pair.
func compareNeeds(a, b Resources) int {
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if order := cmp.Compare(a[name], b[name]); order != 0 {
			return order
		}
	}
	return 0
}

// isTighter reports whether node a has less left than node b of the resources that a pod needs. Names of devices, such
// as nvidia.com/gpu, sort after cpu and memory, so they are compared first.
func isTighter(needs, a, b Resources) bool {
	names := slices.Sorted(maps.Keys(needs))
	slices.Reverse(names)
	for _, name := range names {
		if a[name] != b[name] {
			return a[name] < b[name]
		}
	}
	return false
}
