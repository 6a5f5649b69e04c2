package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/batch"
)

type ticket struct {
	id, lane int
	key      string
	poison   bool
}

// Each of many concurrent requests is committed at most once, and exactly once if Do returns no error.
func TestGroupUnderLoad(t *testing.T) {
	t.Parallel()
	for _, split := range []batch.Split{batch.Halves, batch.Singly, batch.Apart} {
		for _, detached := range []bool{false, true} {
			t.Run(fmt.Sprintf("split %d, detached %t", split, detached), func(t *testing.T) {
				t.Parallel()
				runUnderLoad(t, split, detached)
			})
		}
	}
}

func runUnderLoad(t *testing.T, split batch.Split, detached bool) {
	const callers, requests = 16, 200
	var mu sync.Mutex
	committed, busy := map[int]int{}, map[string]bool{}
	largest := 0
	errPoison := errors.New("poison")
	cfg := batch.Config[int, ticket, int]{
		Commit: func(ctx context.Context, members []ticket) ([]int, error) {
			mu.Lock()
			for _, r := range members {
				require.False(t, busy[r.key], "two requests of one key are committed at the same time")
				busy[r.key] = split != batch.Apart
			}
			largest = max(largest, len(members))
			mu.Unlock()
			for range rand.IntN(100) {
				runtime.Gosched()
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range members {
				delete(busy, r.key)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if slices.ContainsFunc(members, func(r ticket) bool { return r.poison }) {
				if rand.IntN(2) == 0 {
					panic(errPoison)
				}
				return nil, errPoison
			}
			var results []int
			for _, r := range members {
				committed[r.id]++
				results = append(results, r.id)
			}
			return results, nil
		},
		Lane: func(r ticket) int { return r.lane },
		Limits: func(lane int) batch.Limits {
			return batch.Limits{Size: 8, Commits: 1 + lane, Patience: time.Duration(1-lane) * 100 * time.Microsecond}
		},
		MaxCommits: 3, Split: split, Detached: detached, Adapt: true,
	}
	if split != batch.Apart {
		cfg.Key = func(r ticket) string { return r.key }
	}
	g := batch.New(cfg)
	var running sync.WaitGroup
	for c := range callers {
		running.Go(func() {
			for n := range requests {
				r := ticket{id: c*requests + n, lane: rand.IntN(2), key: fmt.Sprint("key", rand.IntN(12)), poison: rand.IntN(20) == 0}
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(5) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(200))*time.Microsecond, cancel)
				}
				result, err := g.Do(ctx, r)
				cancel()
				mu.Lock()
				times := committed[r.id]
				mu.Unlock()
				_, panicked := errors.AsType[*batch.PanicError](err)
				switch {
				case err == nil:
					require.False(t, r.poison)
					require.Equal(t, r.id, result)
					require.Equal(t, 1, times)
				case panicked || errors.Is(err, errPoison):
					require.True(t, r.poison)
				default:
					require.ErrorIs(t, err, context.Canceled)
					if !detached {
						require.Zero(t, times)
					}
				}
			}
		})
	}
	running.Wait()
	g.Close()
	for id, n := range committed {
		require.Equal(t, 1, n, id)
	}
	require.Greater(t, largest, 1)
	require.LessOrEqual(t, largest, 8)
	g.Look(func(w batch.Waiting[int]) {
		for lane := range 2 {
			require.Zero(t, w.Lane(lane))
		}
		for k := range 12 {
			require.Zero(t, w.Key(fmt.Sprint("key", k)))
		}
	})
}
