package replacement

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

func TestDrain_PrecedesFewerReplicas(t *testing.T) {
	const patience = 30 * time.Second
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	// parse returns the pods of one workload, each younger than the previous one. In a word, "m"
	// means marked 10 s ago, "M" marked for as long as patience, "-" not ready, "!" released, and
	// "$" a low deletion cost.
	parse := func(words []string) (pods []*corev1.Pod, released map[string]bool) {
		released = map[string]bool{}
		for n, word := range words {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: word, Annotations: map[string]string{}, CreationTimestamp: metav1.NewTime(now.Add(time.Duration(n) * time.Minute)),
			}, Spec: corev1.PodSpec{NodeName: "n"}}
			ready := corev1.ConditionTrue
			for _, c := range word {
				switch c {
				case 'm':
					p.Annotations[render.AnnotationDraining] = now.Add(-10 * time.Second).Format(time.RFC3339)
				case 'M':
					p.Annotations[render.AnnotationDraining] = now.Add(-patience).Format(time.RFC3339)
				case '-':
					ready = corev1.ConditionFalse
				case '!':
					released[word] = true
				case '$':
					p.Annotations[corev1.PodDeletionCost] = "-5"
				}
			}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
			pods = append(pods, p)
		}
		return pods, released
	}
	type words []string
	for name, c := range map[string]struct {
		pods           words
		replicas, want int
		replaces       bool
		mark, unmark   words
		keeps          bool
		left           time.Duration
	}{
		"no pod must go":                              {pods: words{"1", "2"}, replicas: 2, want: 2},
		"the youngest go first":                       {pods: words{"1", "2", "3"}, replicas: 3, want: 1, mark: words{"2", "3"}, keeps: true, left: patience},
		"all go":                                      {pods: words{"1", "2"}, replicas: 2, want: 0, mark: words{"1", "2"}, keeps: true, left: patience},
		"a pod that is not ready goes first":          {pods: words{"1-", "2"}, replicas: 2, want: 1, mark: words{"1-"}, keeps: true, left: patience},
		"a pod with a low deletion cost goes first":   {pods: words{"1$", "2"}, replicas: 2, want: 1, mark: words{"1$"}, keeps: true, left: patience},
		"a mark stays, although another would go":     {pods: words{"1m", "2-"}, replicas: 2, want: 1, keeps: true, left: 20 * time.Second},
		"no gateway sends any more":                   {pods: words{"1", "2m!"}, replicas: 2, want: 1},
		"one of two is not released":                  {pods: words{"1", "2m!", "3m"}, replicas: 3, want: 1, keeps: true, left: 20 * time.Second},
		"patience is over":                            {pods: words{"1", "2M"}, replicas: 2, want: 1},
		"fewer still":                                 {pods: words{"1", "2", "3M"}, replicas: 3, want: 1, mark: words{"2"}, keeps: true, left: patience},
		"no gateway sends to any pod":                 {pods: words{"1!", "2!"}, replicas: 2, want: 1},
		"a marked pod is wanted again":                {pods: words{"1", "2m"}, replicas: 2, want: 2, unmark: words{"2m"}},
		"one of two marked pods is wanted again":      {pods: words{"1", "2m", "3m"}, replicas: 3, want: 2, unmark: words{"2m"}, keeps: true, left: 20 * time.Second},
		"Kubernetes still has to remove a marked pod": {pods: words{"1", "2M"}, replicas: 1, want: 1},
		"Kubernetes has removed another pod":          {pods: words{"2M"}, replicas: 1, want: 1, unmark: words{"2M"}},
		"pods are missing":                            {pods: words{"1"}, replicas: 3, want: 1},
		"during a replacement, Kubernetes chooses":    {pods: words{"1", "2"}, replicas: 2, want: 1, replaces: true},
	} {
		t.Run(name, func(t *testing.T) {
			pods, released := parse(c.pods)
			d := drainedPods(pods, c.replicas, c.want, c.replaces, func(p *corev1.Pod) bool { return released[p.Name] }, func(*corev1.Pod) time.Duration { return patience }, now)
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
			if !c.keeps {
				require.Nil(t, d.replicas)
				return
			}
			require.EqualValues(t, c.replicas, *d.replicas)
		})
	}
}
