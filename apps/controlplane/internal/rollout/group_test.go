package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// crowd is groups whose decisions wait at the gate, with the groups that were decided.
type crowd struct {
	*groups
	mu      sync.Mutex
	decided [][]string
	running int
	gate    chan struct{}
	fail    func(appIDs []string) error
	metrics *metrics
}

func newCrowd() *crowd {
	c := &crowd{gate: make(chan struct{}), metrics: newMetrics(prometheus.NewRegistry())}
	c.groups = newGroups(func(ctx context.Context, group []*member) ([]decision, error) {
		c.count(1)
		defer c.count(-1)
		var ids []string
		for _, m := range group {
			ids = append(ids, m.appID)
		}
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if c.fail != nil {
			if err := c.fail(ids); err != nil {
				return nil, err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.decided = append(c.decided, ids)
		return make([]decision, len(group)), nil
	}, c.metrics.countCommitted)
	return c
}

func (c *crowd) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += n
}

// atOnce returns how many groups are being decided.
func (c *crowd) atOnce() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// busy makes a group with an app of its own wait at the gate.
func (c *crowd) busy(t *testing.T) { c.come(t.Context(), "busy") }

// step is a step that was begun, and its error once it ended.
type step struct {
	appID string
	err   error
}

func (c *crowd) come(ctx context.Context, appIDs ...string) []*step {
	var all []*step
	for _, id := range appIDs {
		s := &step{appID: id, err: errors.New("it waits")}
		all = append(all, s)
		go func() { _, s.err = c.Do(ctx, &member{ctx: ctx, appID: id}) }()
		synctest.Wait()
	}
	return all
}

func TestGroup_HasOneStepOfEachAppThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		c.busy(t)
		c.come(t.Context(), "a", "b", "a", "c")
		close(c.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"busy"}, {"a", "b", "c"}, {"a"}}, c.decided, "its second step sees what the first wrote")
		require.NoError(t, testutil.CollectAndCompare(c.metrics.batch, strings.NewReader(`
# HELP deployment_workflow_step_batch_size Apps whose steps one transaction decided, including transactions that failed and were split.
# TYPE deployment_workflow_step_batch_size histogram
deployment_workflow_step_batch_size_bucket{le="1"} 2
deployment_workflow_step_batch_size_bucket{le="2"} 2
deployment_workflow_step_batch_size_bucket{le="4"} 3
deployment_workflow_step_batch_size_bucket{le="8"} 3
deployment_workflow_step_batch_size_bucket{le="16"} 3
deployment_workflow_step_batch_size_bucket{le="32"} 3
deployment_workflow_step_batch_size_bucket{le="+Inf"} 3
deployment_workflow_step_batch_size_sum 5
deployment_workflow_step_batch_size_count 3
`)))
	})
}

func TestGroup_SlowDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		c.busy(t)
		c.come(t.Context(), "a")
		time.Sleep(patience - time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 1, c.atOnce())
		for n := range maxGroups + 1 { // none of the further groups ends, either
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, min(n+2, maxGroups), c.atOnce())
			c.come(t.Context(), fmt.Sprint(n))
			time.Sleep(patience - time.Nanosecond)
		}
		close(c.gate)
		synctest.Wait()
		require.Len(t, slices.Concat(c.decided...), maxGroups+3)

		c.gate = make(chan struct{})
		c.busy(t)
		c.come(t.Context(), "a", "b")
		require.Equal(t, 1, c.atOnce(), "one at a time again")
		close(c.gate)
	})
}

func TestGroup_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		c.busy(t)
		for i := range maxGroup + 1 {
			c.come(t.Context(), fmt.Sprint(i))
		}
		close(c.gate)
		synctest.Wait()
		require.LessOrEqual(t, len(slices.MaxFunc(c.decided, func(a, b []string) int { return len(a) - len(b) })), maxGroup)
		require.Len(t, slices.Concat(c.decided...), 1+maxGroup+1)
	})
}

func TestGroup_FailingStepFailsAlone(t *testing.T) {
	for name, fail := range map[string]func([]string) error{
		"by an error": func(ids []string) error {
			if slices.Contains(ids, "bad") {
				return errors.New("bad app")
			}
			return nil
		},
		"by a panic": func(ids []string) error {
			if slices.Contains(ids, "bad") {
				panic("bad app")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd()
				c.fail = fail
				c.busy(t)
				all := c.come(t.Context(), "a", "b", "bad", "c", "d")
				close(c.gate)
				synctest.Wait()
				for _, m := range all {
					if m.appID == "bad" {
						require.ErrorContains(t, m.err, "bad app")
					} else {
						require.NoError(t, m.err, m.appID)
					}
				}
				require.Len(t, slices.Concat(c.decided...), 1+4)
			})
		})
	}
}

func TestGroup_LeavesWithItsLastMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd()
		c.busy(t)
		early, leave := context.WithCancel(t.Context())
		gone := c.come(early, "a")
		leave()
		ctx, cancel := context.WithCancel(t.Context())
		stays := c.come(t.Context(), "b")
		leaves := c.come(ctx, "c")
		c.gate <- struct{}{} // the busy group ends, and the next group begins
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.gate <- struct{}{}
		synctest.Wait()
		require.ErrorIs(t, gone[0].err, context.Canceled, "no request waited for it when its turn came")
		require.NoError(t, stays[0].err)
		require.NoError(t, leaves[0].err, "its group had begun")
		require.Contains(t, c.decided, []string{"b", "c"})

		alone, end := context.WithCancel(t.Context())
		last := c.come(alone, "d")
		end()
		synctest.Wait()
		require.ErrorIs(t, last[0].err, context.Canceled)
		require.Zero(t, c.atOnce())
	})
}
