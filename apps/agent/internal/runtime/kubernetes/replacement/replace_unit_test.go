package replacement

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

func TestReplace_NewPodsAreAsManyAsReleased(t *testing.T) {
	const patience = 30 * time.Second
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	pod := func(word string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: word, Annotations: map[string]string{}}, Spec: corev1.PodSpec{NodeName: "n"}}
		if !strings.Contains(word, "-") {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		for mark, ago := range map[string]time.Duration{"m": 10 * time.Second, "M": patience} {
			if strings.Contains(word, mark) {
				p.Annotations[render.AnnotationDraining] = now.Add(-ago).Format(time.RFC3339)
			}
		}
		return p
	}
	// set returns a ReplicaSet with these pods. In a word, "m" means marked 10 s ago, "M" marked
	// for as long as patience, "-" not ready, and "!" released.
	set := func(c cohort, words ...string) cohort {
		c.created = now.Add(-time.Hour)
		c.replicas = max(c.replicas, len(words))
		for _, w := range words {
			c.pods = append(c.pods, pod(w))
			if isReady(c.pods[len(c.pods)-1]) && !c.guarded {
				c.available++
			}
		}
		return c
	}
	old := func(words ...string) cohort { return set(cohort{live: true}, words...) }
	was := func(words ...string) cohort { return set(cohort{}, words...) }
	fresh := func(words ...string) cohort { return set(cohort{live: true, wanted: true, guarded: true}, words...) }
	type words []string
	for name, c := range map[string]struct {
		sets         []cohort
		most, may    int
		unobserved   bool
		hold         bool
		wantMay      int
		mark, unmark words
		left         time.Duration
		over         bool
	}{
		"one pod is marked first":                {sets: []cohort{old("1", "2")}, most: 1, hold: true, mark: words{"1"}, left: patience},
		"two are marked if two may go":           {sets: []cohort{old("1", "2", "3")}, most: 2, hold: true, mark: words{"1", "2"}, left: patience},
		"a pod that is not ready goes first":     {sets: []cohort{old("1", "2-")}, most: 1, hold: true, mark: words{"2-"}},
		"the pod is not released yet":            {sets: []cohort{old("1m", "2")}, most: 1, hold: true, left: 20 * time.Second},
		"the pod is released":                    {sets: []cohort{old("1m!", "2")}, most: 1, wantMay: 1},
		"patience is over":                       {sets: []cohort{old("1M", "2")}, most: 1, wantMay: 1},
		"one of two is not released":             {sets: []cohort{old("1m!", "2m", "3")}, most: 2, hold: true, left: 20 * time.Second},
		"an unready pod need not be released":    {sets: []cohort{old("1", "2m-")}, most: 1, wantMay: 1},
		"a missing pod may become ready":         {sets: []cohort{set(cohort{live: true, replicas: 2}, "1")}, most: 1, hold: true},
		"a missing pod cannot be created":        {sets: []cohort{set(cohort{live: true, replicas: 2, failing: true}, "1")}, most: 1, wantMay: 1},
		"each unready pod may go, and is marked": {sets: []cohort{old("1", "2-", "3-")}, most: 1, hold: true, mark: words{"2-", "3-"}},
		"one of the unready pods goes":           {sets: []cohort{old("1", "2m-", "3m-")}, most: 1, wantMay: 1},
		"a pod that is ready again is unmarked":  {sets: []cohort{old("1", "2m", "3m-")}, most: 1, hold: true, unmark: words{"2m"}},
		"the new pod is not ready":               {sets: []cohort{was("1"), fresh("2-")}, most: 1, may: 1, wantMay: 1},
		"the new pod is ready":                   {sets: []cohort{was("1"), fresh("2")}, most: 1, may: 1, wantMay: 1, mark: words{"1"}, left: patience},
		"the next pod is released":               {sets: []cohort{was("1m!"), fresh("2")}, most: 1, may: 1, wantMay: 2},
		"Kubernetes has not removed it yet":      {sets: []cohort{was("1m!"), fresh("2")}, most: 1, may: 2, wantMay: 2},
		"Kubernetes has not seen the change yet": {sets: []cohort{was("1m!"), fresh("2")}, most: 1, may: 1, unobserved: true, wantMay: 1},
		"the removed pod still exists":           {sets: []cohort{{replicas: 1, available: 1, pods: []*corev1.Pod{pod("1m!"), pod("3")}}, fresh("2")}, most: 1, may: 1, wantMay: 1},
		"no old pod is left":                     {sets: []cohort{fresh("2", "3")}, most: 1, may: 2, over: true},
		"back to a template that pods have":      {sets: []cohort{set(cohort{live: true, guarded: true}, "2m!-"), set(cohort{wanted: true}, "1", "3")}, most: 1, may: 1, wantMay: 1},
		"fewer may go than are marked":           {sets: []cohort{old("1m", "2m", "3")}, most: 1, hold: true, unmark: words{"2m"}, left: 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			m := replacement{cohorts: c.sets, most: c.most, may: c.may, observed: !c.unobserved}
			for _, s := range c.sets {
				m.replicas, m.available = m.replicas+s.replicas, m.available+s.available
			}
			d := m.next(func(p *corev1.Pod) bool { return strings.Contains(p.Name, "!") }, func(*corev1.Pod) time.Duration { return patience }, now)
			names := func(pods []*corev1.Pod) (out words) {
				for _, p := range pods {
					out = append(out, p.Name)
				}
				slices.Sort(out)
				return out
			}
			require.Equal(t, c.mark, names(d.Mark))
			require.Equal(t, c.unmark, names(d.Unmark))
			require.Equal(t, c.left, d.Left)
			require.Equal(t, c.hold, d.Hold)
			require.Equal(t, c.wantMay, d.may)
			require.Equal(t, !c.over, d.Waits)
		})
	}
}
