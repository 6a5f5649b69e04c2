package replacement

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

const modelPatience = 30 * time.Second

// model is a workload with its controllers and gateways. Each of them acts in its turn, on the
// state that it knows.
type model struct {
	t   require.TestingT
	now time.Time

	// template, want and most are the wanted template, replicas and number of unavailable pods.
	// Pods of the template broken are never ready.
	template, want, most int
	broken               int

	// These are fields of the workload.
	live, replicas, unavailable, may int
	guarded                          bool
	generation, observed, available  int
	// desired is the number of replicas to which its sets were last scaled.
	desired int

	sets   []*modelSet
	pods   []*modelPod
	serial int

	// At least fewest - worst - evicted - left pods must serve. fewest is the lowest wanted number
	// of pods so far, and worst is the highest value of most.
	fewest, worst, evicted, givenUp, left int
}

type modelSet struct {
	template, replicas, available int
	guarded                       bool
}

type modelPod struct {
	*corev1.Pod
	set *modelSet
	// sent means that gateways send to the pod, or have requests in flight there.
	sent bool
}

func (m *model) of(s *modelSet) []*modelPod {
	return slices.DeleteFunc(slices.Clone(m.pods), func(p *modelPod) bool { return p.set != s })
}

// agent makes one decision and carries it out.
func (m *model) agent() {
	r := replacement{replicas: m.replicas, most: m.most, may: m.may, observed: m.observed == m.generation, available: m.available}
	for n, s := range m.sets {
		c := cohort{live: s.template == m.live, wanted: s.template == m.template, created: m.now.Add(time.Duration(n)), replicas: s.replicas, available: s.available, guarded: s.guarded}
		for _, p := range m.of(s) {
			c.pods = append(c.pods, p.Pod)
		}
		r.cohorts = append(r.cohorts, c)
	}
	var pods []*corev1.Pod
	sent := map[string]bool{}
	for _, p := range m.pods {
		pods = append(pods, p.Pod)
		sent[p.Name] = p.sent
	}
	d := r.decideSteps(pods, m.want, m.live == m.template, func(p *corev1.Pod) bool { return !sent[p.Name] }, func(*corev1.Pod) time.Duration { return modelPatience }, m.now)
	live, replicas, unavailable := m.template, m.want, m.most
	if d.Hold {
		live = m.live
	}
	if d.replicas != nil {
		replicas = int(*d.replicas)
	}
	if d.may > 0 {
		unavailable = d.may
	}
	if live != m.live || replicas != m.replicas || d.may != m.may || unavailable != m.unavailable {
		m.live, m.replicas, m.unavailable, m.may, m.guarded = live, replicas, unavailable, d.may, d.may > 0
		m.generation++
	}
	for _, p := range d.Unmark {
		delete(p.Annotations, render.AnnotationDraining)
	}
	for _, p := range m.pods {
		p.sent = p.sent || isReady(p.Pod) && slices.Contains(d.Unmark, p.Pod)
	}
	for _, p := range d.Mark {
		p.Annotations[render.AnnotationDraining] = m.now.Format(time.RFC3339)
	}
}

// controller is one run of Kubernetes' controller of Deployments.
func (m *model) controller() {
	defer func() {
		m.observed, m.available = m.generation, 0
		for _, s := range m.sets {
			m.available += s.available
		}
	}()
	var fresh *modelSet
	sum := 0
	var active []*modelSet
	for _, s := range m.sets {
		sum += s.replicas
		if s.template == m.live {
			fresh = s
		}
		if s.replicas > 0 {
			active = append(active, s)
		}
	}
	if m.desired != m.replicas {
		m.desired = m.replicas
		change := m.replicas - sum
		for _, s := range active { // the controller itself chooses the sets
			n := max(change, -s.replicas)
			s.replicas, change = s.replicas+n, change-n
		}
		return
	}
	if fresh == nil {
		fresh = &modelSet{template: m.live}
		m.sets = append(m.sets, fresh)
	}
	fresh.guarded = m.guarded
	if add := m.replicas - sum; add > 0 {
		fresh.replicas += add
		return
	}
	budget := min(m.unavailable, m.replicas)
	down := sum - (m.replicas - budget) - (fresh.replicas - fresh.available)
	if down <= 0 {
		return
	}
	for _, s := range m.sets {
		if s != fresh && down > 0 {
			n := min(down, max(0, s.replicas-s.available))
			s.replicas, down = s.replicas-n, down-n
		}
	}
	available := 0
	for _, s := range m.sets {
		available += s.available
	}
	rest := available - (m.replicas - budget)
	for _, s := range m.sets {
		if n := min(s.replicas, rest); s != fresh && n > 0 {
			s.replicas, rest = s.replicas-n, rest-n
		}
	}
}

// count is one run of the controller of a ReplicaSet.
func (m *model) count(s *modelSet) {
	pods := m.of(s)
	slices.SortFunc(pods, func(a, b *modelPod) int {
		return cmp.Or(compareBool(isReady(a.Pod), isReady(b.Pod)), -compareBool(render.Drains(a.Pod), render.Drains(b.Pod)), -cmp.Compare(a.Name, b.Name))
	})
	for len(pods) > s.replicas {
		p := pods[0]
		pods = pods[1:]
		require.False(m.t, p.sent && m.now.Sub(DrainsSince(p.Pod)) < modelPatience, "%s goes while gateways send to it", p.Name)
		m.pods = slices.DeleteFunc(m.pods, func(q *modelPod) bool { return p == q })
	}
	for len(pods) < s.replicas {
		m.serial++
		p := &modelPod{set: s, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%03d of %d", m.serial, s.template), Annotations: map[string]string{},
		}, Spec: corev1.PodSpec{NodeName: "n"}}}
		m.pods, pods = append(m.pods, p), append(pods, p)
	}
	s.available = 0
	for _, p := range pods {
		if isReady(p.Pod) && !s.guarded {
			s.available++
		}
	}
}

// start makes a pod ready, unless its template is broken.
func (m *model) start(p *modelPod) {
	if p.set.template != m.broken {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		p.sent = p.sent || !render.Drains(p.Pod)
	}
}

// gateways updates which pods gateways send to. With done, gateways have finished with all draining
// pods.
func (m *model) gateways(done bool) {
	for _, p := range m.pods {
		switch {
		case !render.Drains(p.Pod):
			p.sent = isReady(p.Pod)
		case done:
			p.sent = false
		}
	}
}

func (m *model) serving() (n int) {
	for _, p := range m.pods {
		if isReady(p.Pod) && !render.Drains(p.Pod) {
			n++
		}
	}
	return n
}

// actors has all actors, in an order in which none waits for a later one.
var actors = []string{"agent", "controller", "counts", "starts", "gateways"}

// act gives one actor its turn.
func (m *model) act(who string) {
	switch who {
	case "agent":
		m.agent()
	case "controller":
		m.controller()
	case "counts":
		for _, s := range m.sets {
			m.count(s)
		}
	case "starts":
		for _, p := range m.pods {
			m.start(p)
		}
	case "gateways":
		m.gateways(true)
	}
}

// settle gives all actors their turns until everything is as it should be. It reports whether this
// took at most the given number of rounds.
func (m *model) settle(rounds int) bool {
	for range rounds {
		for _, who := range actors {
			m.act(who)
			m.check()
		}
		if m.done() {
			return true
		}
	}
	return false
}

func (m *model) done() bool {
	return len(m.pods) == m.want && m.serving() == m.want && m.may == 0 && m.observed == m.generation &&
		!slices.ContainsFunc(m.pods, func(p *modelPod) bool { return p.set.template != m.template })
}

func (m *model) check() {
	// If several templates were given up before their replacement was over, the pods of the oldest
	// template go first, even if pods of a younger template are not ready.
	left, guarded := 0, 0
	for _, s := range m.sets {
		if s.template != m.template && s.guarded && s.replicas > 0 {
			guarded++
			up := slices.DeleteFunc(m.of(s), func(p *modelPod) bool { return !isReady(p.Pod) })
			left += max(0, s.replicas-len(up))
		}
	}
	if m.givenUp = max(m.givenUp, guarded); m.givenUp > 1 {
		m.left = max(m.left, left)
	}
	require.GreaterOrEqual(m.t, m.serving(), m.fewest-m.worst-m.evicted-m.left, "too many pods are out of service")
}

func newModel(t require.TestingT, replicas, most int) *model {
	m := &model{
		t: t, now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC), template: 1, want: replicas, most: most, live: 1, replicas: replicas,
		unavailable: most, generation: 1, desired: replicas,
	}
	require.True(t, m.settle(20))
	m.fewest, m.worst = replicas, most
	return m
}

func TestReplace_NoPodGoesWhileGatewaysSendToItProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, rapid.IntRange(1, 6).Draw(t, "replicas"), rapid.IntRange(1, 3).Draw(t, "at once"))
		sound := func(t *rapid.T) {
			m.template = rapid.SampledFrom([]int{1, 2, 3, 4}).Draw(t, "template")
		}
		sound(t)
		t.Repeat(map[string]func(*rapid.T){
			"agent":      func(*rapid.T) { m.agent() },
			"controller": func(*rapid.T) { m.controller() },
			"count": func(t *rapid.T) {
				m.count(rapid.SampledFrom(m.sets).Draw(t, "set"))
			},
			"start": func(t *rapid.T) {
				if len(m.pods) > 0 {
					m.start(rapid.SampledFrom(m.pods).Draw(t, "pod"))
				}
			},
			"gateways": func(t *rapid.T) { m.gateways(rapid.Bool().Draw(t, "done")) },
			"time":     func(*rapid.T) { m.now = m.now.Add(modelPatience / 3) },
			"evict": func(t *rapid.T) {
				if len(m.pods) > 0 && m.evicted < 2 {
					gone := rapid.SampledFrom(m.pods).Draw(t, "pod")
					m.pods = slices.DeleteFunc(m.pods, func(p *modelPod) bool { return p == gone })
					m.evicted++
				}
			},
			"a while": func(t *rapid.T) { m.settle(rapid.IntRange(1, 8).Draw(t, "rounds")) },
			"a while, in another order": func(t *rapid.T) {
				for _, who := range rapid.Permutation(actors).Draw(t, "actors") {
					m.act(who)
					m.check()
				}
			},
			"another sound version": sound,
			"a broken version": func(*rapid.T) {
				m.template, m.broken = 9, 9
			},
			"scale": func(t *rapid.T) {
				m.want = rapid.IntRange(0, 6).Draw(t, "replicas")
				m.fewest = min(m.fewest, m.want)
			},
			"at once": func(t *rapid.T) {
				m.most = rapid.IntRange(1, 3).Draw(t, "at once")
				m.worst = max(m.worst, m.most)
			},
			"": func(*rapid.T) { m.check() },
		})
		sound(t)
		require.True(t, m.settle(200), "the replacement does not end: %+v", m)
	})
}

func TestReplace_NeverReadyVersionStaysProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, rapid.IntRange(1, 6).Draw(t, "replicas"), rapid.IntRange(1, 3).Draw(t, "at once"))
		m.template, m.broken = 2, 2
		require.False(t, m.settle(30))
		require.Equal(t, max(0, m.want-m.most), m.serving())
		m.template = rapid.SampledFrom([]int{1, 3}).Draw(t, "back, or on")
		require.True(t, m.settle(100))
	})
}
