// Package traffic counts the requests of deployments and of apps. The gateway reports the counts to the region's
// agent. They are used to analyse rollouts and to scale apps.
package traffic

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/pkg/histogram"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Traffic holds the counts. It is safe for concurrent use. The zero value is empty.
type Traffic struct {
	deployments sync.Map // id -> *counters
	apps        sync.Map // id -> *load
}

type counters struct {
	requests, errors    atomic.Uint64
	latency, firstToken [histogram.Buckets]atomic.Uint64
}

// Request is a request that has ended.
type Request struct {
	DeploymentID string
	Failed       bool
	Took         time.Duration
	// FirstToken is the time to the first token. 0: the answer was not a stream, or had no body.
	FirstToken time.Duration
}

// Ended counts a request.
func (t *Traffic) Ended(r Request) {
	found, ok := t.deployments.Load(r.DeploymentID)
	if !ok {
		found, _ = t.deployments.LoadOrStore(r.DeploymentID, &counters{})
	}
	c := found.(*counters) //nolint:forcetypeassert // nothing else is stored
	c.latency[histogram.Bucket(r.Took)].Add(1)
	if r.FirstToken > 0 {
		c.firstToken[histogram.Bucket(r.FirstToken)].Add(1)
	}
	if r.Failed {
		c.errors.Add(1)
	}
	// requests is counted last, so that a reader that finds the request in it finds the request in the other counts.
	c.requests.Add(1)
}

// Changed returns the traffic of the deployments whose count of requests differs from told, in no order. counts has
// the count of requests of each deployment.
func (t *Traffic) Changed(told map[string]uint64) (changed []*gatewayv1.Traffic, counts map[string]uint64) {
	counts = map[string]uint64{}
	t.deployments.Range(func(key, value any) bool {
		id, c := key.(string), value.(*counters) //nolint:forcetypeassert // nothing else is stored
		n := c.requests.Load()
		counts[id] = n
		if before, ok := told[id]; !ok || before != n {
			changed = append(changed, &gatewayv1.Traffic{
				DeploymentId: id, Requests: n, Errors: c.errors.Load(), Latency: packBuckets(&c.latency), FirstToken: packBuckets(&c.firstToken),
			})
		}
		return true
	})
	return changed, counts
}

func packBuckets(from *[histogram.Buckets]atomic.Uint64) []uint64 {
	var c histogram.Counts
	for i := range from {
		c[i] = from[i].Load()
	}
	return c.Pack()
}

// Forget drops the counts of a deployment.
func (t *Traffic) Forget(deploymentID string) { t.deployments.Delete(deploymentID) }
