package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/plural"
)

// quota keeps workloads within the part of each pool that Windlass may use. It counts the requests
// of workloads, whether or not their pods are scheduled. If it counted only running pods, the
// waiting pods would exceed the quota later.
type quota struct {
	pools map[string]render.Pool

	mu sync.Mutex
	// claimed has the claims of workloads that are being applied, which the caches may not show yet.
	claimed map[render.Ref]claim
}

type claim struct {
	pool       string
	gpus       int
	deployment string
}

func newQuota(pools map[string]render.Pool) *quota {
	return &quota{pools: pools, claimed: map[render.Ref]claim{}}
}

// claimOf returns how many GPUs an assignment takes of a pool with a quota.
func (q *quota) claimOf(a runtime.Assignment) claim {
	gpu := a.Deployment.GetSpec().GetResources().GetGpu()
	if q.pools[gpu.GetPool()].Quota == 0 {
		return claim{}
	}
	return claim{gpu.GetPool(), int(gpu.GetCount()) * int(a.Deployment.GetReplicas()), a.Deployment.GetAppName()}
}

// claimGPUs takes the GPUs that the assignment needs of its pool, unless that would exceed the quota.
// An assignment that takes no more than before passes even if the quota was lowered. workloads
// returns all workloads. undo undoes the claim.
func (q *quota) claimGPUs(w render.Ref, a runtime.Assignment, workloads func() []render.Object) (undo func(), err error) {
	asked := q.claimOf(a)
	q.mu.Lock()
	defer q.mu.Unlock()
	was, had := q.claimed[w]
	undo = func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if delete(q.claimed, w); had {
			q.claimed[w] = was
		}
	}
	if asked.pool == "" {
		delete(q.claimed, w)
		return undo, nil
	}
	limit := q.pools[asked.pool].Quota
	used := map[render.Ref]claim{}
	for _, o := range workloads() {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		if had := q.heldClaim(d); had.pool == asked.pool {
			used[render.NewRef(render.KindWorkload, d.Namespace, d.Name)] = had
		}
	}
	for other, had := range q.claimed {
		if had.pool == asked.pool {
			used[other] = had
		}
	}
	before := used[w].gpus
	delete(used, w)
	sum := 0
	for _, u := range used {
		sum += u.gpus
	}
	if asked.gpus > before && sum+asked.gpus > limit {
		return nil, &runtime.Rejection{
			Code: runtime.ReasonQuotaExceeded, Retryable: true,
			Message: fmt.Sprintf("needs %s of pool %s, whose quota is %d: %s", plural.Count(asked.gpus, "GPU"), asked.pool, limit, sharesText(used, limit-sum)),
		}
	}
	q.claimed[w] = asked
	return undo, nil
}

// heldClaim returns the claim of a workload in the cluster.
func (q *quota) heldClaim(d *appsv1.Deployment) claim {
	pool := d.Annotations[desired.AnnotationPool]
	if pool == "" || d.Spec.Replicas == nil {
		return claim{}
	}
	gpus, err := strconv.Atoi(d.Annotations[desired.AnnotationGpus])
	if err != nil {
		return claim{}
	}
	return claim{pool, gpus * int(*d.Spec.Replicas), d.Labels[render.LabelName]}
}

// leftOf returns, by pool with a quota, how many GPUs of the quota are left. A number is negative if
// the quota was lowered below the GPUs in use.
func (q *quota) leftOf(workloads []render.Object) map[string]int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]int64{}
	for name, p := range q.pools {
		if p.Quota > 0 {
			out[name] = int64(p.Quota)
		}
	}
	take := func(c claim) {
		if _, limited := out[c.pool]; limited {
			out[c.pool] -= int64(c.gpus)
		}
	}
	for _, o := range workloads {
		d, ok := o.(*appsv1.Deployment)
		if !ok {
			continue
		}
		if _, newer := q.claimed[render.NewRef(render.KindWorkload, d.Namespace, d.Name)]; !newer {
			take(q.heldClaim(d))
		}
	}
	for _, c := range q.claimed {
		take(c)
	}
	return out
}

func (q *quota) release(w render.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.claimed, w)
}

// maxShares is the number of apps that a message names.
const maxShares = 5

// sharesText returns a text that says how many GPUs each app uses and how many are free.
func sharesText(used map[render.Ref]claim, free int) string {
	all := make([]claim, 0, len(used))
	for _, u := range used {
		if u.gpus > 0 {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.gpus, a.gpus), cmp.Compare(a.deployment, b.deployment))
	})
	parts := make([]string, 0, maxShares+1)
	for i, u := range all {
		if i == maxShares {
			parts = append(parts, fmt.Sprintf("%d more use the rest", len(all)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s uses %d", u.deployment, u.gpus))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d free", max(0, free))), ", ")
}
