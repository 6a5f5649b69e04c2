package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/batch"
)

type (
	config = batch.Config[int, string, string]
	group  = batch.Group[int, string, string]
)

// harness is a group whose commits wait at a gate.
type harness struct {
	*group
	gate chan struct{}

	mu        sync.Mutex
	committed [][]string
	outcomes  []batch.Outcome
	running   int
}

var limits = batch.Limits{Size: 100, Patience: time.Hour}

// newHarness returns a harness whose commits answer each request with "did REQUEST", unless change sets another
// Commit.
func newHarness(change ...func(*config)) *harness {
	b := &harness{gate: make(chan struct{})}
	cfg := config{
		Commit: func(_ context.Context, requests []string) ([]string, error) { return answersOf(requests), nil },
		Limits: func(int) batch.Limits { return limits },
		Observe: func(o batch.Outcome) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.outcomes = append(b.outcomes, o)
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	commit := cfg.Commit
	cfg.Commit = func(ctx context.Context, requests []string) ([]string, error) {
		b.count(1)
		defer b.count(-1)
		select {
		case <-b.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		results, err := commit(ctx, requests)
		if err == nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.committed = append(b.committed, requests)
		}
		return results, err
	}
	b.group = batch.New(cfg)
	return b
}

func (h *harness) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running += n
}

// runningCommits returns how many commits run.
func (h *harness) runningCommits() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}

func answersOf(requests []string) (results []string) {
	for _, r := range requests {
		results = append(results, "did "+r)
	}
	return results
}

// answer has the results of a call of Do. done reports whether Do has returned.
type answer struct {
	result string
	err    error
	done   bool
}

// submit calls Do for each request, in this order, each in a goroutine of its own. It does not wait for results.
func (h *harness) submit(ctx context.Context, requests ...string) []*answer {
	var all []*answer
	for _, r := range requests {
		a := &answer{}
		all = append(all, a)
		go func() {
			a.result, a.err = h.Do(ctx, r)
			a.done = true
		}()
		synctest.Wait()
	}
	return all
}

// maxCommits sets the maximum number of concurrent commits of a lane.
func maxCommits(n int) func(*config) {
	return func(c *config) {
		c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Commits: n, Patience: time.Second} }
	}
}

// byLetter gives requests that begin with the same letter the same key.
func byLetter(c *config) { c.Key = func(r string) string { return r[:1] } }

// runInBubble runs a subtest in a synctest bubble, which has virtual time.
func runInBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestBatch(t *testing.T) {
	runInBubble(t, "takes all waiting requests when a commit ends, in order", func(t *testing.T) {
		b := newHarness()
		first := b.submit(t.Context(), "a")
		rest := b.submit(t.Context(), "b", "c", "d")
		require.Equal(t, 1, b.runningCommits())
		b.gate <- struct{}{}
		synctest.Wait()
		require.True(t, first[0].done)
		require.False(t, rest[0].done)
		time.Sleep(time.Minute)
		b.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"b", "c", "d"}}, b.committed)
		for i, r := range []string{"b", "c", "d"} {
			require.Equal(t, answer{result: "did " + r, done: true}, *rest[i])
		}
		require.Equal(t, []batch.Outcome{{Size: 1}, {Size: 3, Took: time.Minute}}, b.outcomes)
	})
	runInBubble(t, "ends at its size", func(t *testing.T) {
		b := newHarness(func(c *config) {
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 2, Patience: time.Hour} }
		})
		b.submit(t.Context(), "a", "b", "c", "d")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"b", "c"}, {"d"}}, b.committed)
	})
	runInBubble(t, "ends with the request that reaches its weight", func(t *testing.T) {
		b := newHarness(func(c *config) {
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Weight: 4, Patience: time.Hour} }
			c.Weight = func(r string) int { return len(r) }
		})
		b.submit(t.Context(), "a", "bb", "c", "dddd", "eeeeeeee", "f")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"bb", "c", "dddd"}, {"eeeeeeee"}, {"f"}}, b.committed)
	})
	runInBubble(t, "with fewer results than requests fails", func(t *testing.T) {
		b := newHarness(func(c *config) {
			c.Commit = func(context.Context, []string) ([]string, error) { return nil, nil }
		})
		close(b.gate)
		require.ErrorContains(t, b.submit(t.Context(), "a")[0].err, "Commit returned 0 results for 1 requests")
	})
	t.Run("needs Commit and Limits, and no Key with Apart", func(t *testing.T) {
		require.Panics(t, func() { batch.New(config{}) })
		require.Panics(t, func() { newHarness(byLetter, func(c *config) { c.Split = batch.Apart }) })
	})
}

func TestPatience(t *testing.T) {
	runInBubble(t, "that is over lets the next commit begin while the first one runs", func(t *testing.T) {
		b := newHarness(maxCommits(3))
		b.submit(t.Context(), "a", "b")
		time.Sleep(time.Second - time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 1, b.runningCommits())
		for n := range 4 { // the next commits do not end, either
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, min(n+2, 3), b.runningCommits())
			b.submit(t.Context(), fmt.Sprint(n))
			time.Sleep(time.Second - time.Nanosecond)
		}
		close(b.gate)
		synctest.Wait()
		require.Equal(t, 0, b.runningCommits())
		require.Len(t, slices.Concat(b.committed...), 6)

		b.gate = make(chan struct{})
		b.submit(t.Context(), "a", "b")
		require.Equal(t, 1, b.runningCommits(), "one commit at a time again")
		close(b.gate)
	})
	runInBubble(t, "counts from the start of a commit, also if the next request comes later", func(t *testing.T) {
		b := newHarness(maxCommits(0))
		b.submit(t.Context(), "a")
		time.Sleep(time.Hour)
		b.submit(t.Context(), "b")
		require.Equal(t, 2, b.runningCommits())
		close(b.gate)
	})
	runInBubble(t, "of zero starts as many commits as the limit allows", func(t *testing.T) {
		b := newHarness(func(c *config) { c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Commits: 2} } })
		b.submit(t.Context(), "a", "b", "c", "d")
		require.Equal(t, 2, b.runningCommits())
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"c", "d"}}, slices.DeleteFunc(b.committed, func(c []string) bool { return len(c) == 1 }))
	})
}

func TestKey(t *testing.T) {
	runInBubble(t, "has at most one request in a batch, and its other requests follow", func(t *testing.T) {
		b := newHarness(byLetter)
		b.submit(t.Context(), "z", "a1", "b1", "a2", "c1", "a3")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"a1", "b1", "c1"}, {"a2"}, {"a3"}}, b.committed)
	})
	runInBubble(t, "never has two running commits, in any lane", func(t *testing.T) {
		b := newHarness(byLetter, func(c *config) {
			c.Lane = func(r string) int { return len(r) }
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100} }
		})
		all := b.submit(t.Context(), "a", "aa", "aaa", "b")
		require.Equal(t, 2, b.runningCommits(), "one commit of key a, one of key b")
		for range 4 {
			b.gate <- struct{}{}
			synctest.Wait()
			require.LessOrEqual(t, b.runningCommits(), 2)
		}
		for _, a := range all {
			require.True(t, a.done)
		}
	})
	runInBubble(t, "empty means no key", func(t *testing.T) {
		b := newHarness(func(c *config) { c.Key = func(string) string { return "" } })
		b.submit(t.Context(), "z", "a", "a")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"a", "a"}}, b.committed)
	})
}

func TestLane(t *testing.T) {
	byNumber := func(c *config) { c.Lane = func(r string) int { return int(r[0] - '0') } }
	runInBubble(t, "does not wait for another lane", func(t *testing.T) {
		b := newHarness(byNumber)
		b.submit(t.Context(), "1a", "1b", "2a", "2b")
		require.Equal(t, 2, b.runningCommits())
		close(b.gate)
		synctest.Wait()
		require.ElementsMatch(t, [][]string{{"1a"}, {"1b"}, {"2a"}, {"2b"}}, b.committed)
	})
	runInBubble(t, "with the lower name begins first if commits are limited", func(t *testing.T) {
		b := newHarness(byNumber, func(c *config) { c.MaxCommits = 1 })
		b.submit(t.Context(), "5a", "7a", "3a", "5b", "7b")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"5a"}, {"3a"}, {"5b"}, {"7a", "7b"}}, b.committed)
	})
}

func TestSplit(t *testing.T) {
	fails := map[string]func() ([]string, error){
		"an error":       func() ([]string, error) { return nil, errors.New("bad request") },
		"a panic":        func() ([]string, error) { panic("bad request") },
		"runtime.Goexit": func() ([]string, error) { runtime.Goexit(); return nil, nil },
	}
	for how, split := range map[string]batch.Split{"Halves": batch.Halves, "Singly": batch.Singly, "Apart": batch.Apart} {
		for why, fail := range fails {
			runInBubble(t, how+" lets a request fail alone after "+why, func(t *testing.T) {
				b := newHarness(func(c *config) {
					c.Split = split
					c.Commit = func(_ context.Context, requests []string) ([]string, error) {
						if slices.Contains(requests, "bad") && (why != "runtime.Goexit" || len(requests) == 1) {
							return fail()
						}
						if len(requests) > 1 && slices.Contains(requests, "bad") {
							return nil, errors.New("a request of the batch is bad")
						}
						return answersOf(requests), nil
					}
				})
				b.submit(t.Context(), "z")
				all := b.submit(t.Context(), "a", "b", "bad", "c", "d")
				close(b.gate)
				synctest.Wait()
				for i, a := range all {
					require.True(t, a.done, i)
					p, panicked := errors.AsType[*batch.PanicError](a.err)
					switch {
					case i != 2 && why == "runtime.Goexit" && split != batch.Apart && i > 2:
						// The goroutine that should have committed it has ended.
						require.True(t, panicked || a.err == nil)
					case i != 2:
						require.NoError(t, a.err)
					case why == "an error":
						require.EqualError(t, a.err, "bad request")
					case why == "a panic":
						require.Equal(t, "bad request", p.Value)
						require.ErrorContains(t, a.err, "batch_test.go")
					default:
						require.True(t, panicked)
						require.ErrorContains(t, a.err, "ended its goroutine")
					}
				}
				last := b.submit(t.Context(), "e")
				require.NoError(t, last[0].err, "the group still works")
			})
		}
	}
	runInBubble(t, "Apart delays no other batch", func(t *testing.T) {
		stuck := make(chan struct{})
		b := newHarness(func(c *config) {
			c.Split = batch.Apart
			c.Commit = func(_ context.Context, requests []string) ([]string, error) {
				switch {
				case !slices.Contains(requests, "bad"):
				case len(requests) > 1:
					return nil, errors.New("no")
				default:
					<-stuck
				}
				return answersOf(requests), nil
			}
		})
		b.submit(t.Context(), "z")
		all := b.submit(t.Context(), "bad", "a")
		close(b.gate)
		synctest.Wait()
		require.True(t, all[1].done)
		require.False(t, all[0].done)
		require.NoError(t, b.submit(t.Context(), "b")[0].err)
		close(stuck)
		synctest.Wait()
		require.NoError(t, all[0].err)
	})
	runInBubble(t, "limits all parts together to the timeout of one commit", func(t *testing.T) {
		b := newHarness(func(c *config) {
			c.Split, c.Timeout, c.Detached = batch.Singly, time.Minute, true
			c.Commit = func(ctx context.Context, requests []string) ([]string, error) {
				if slices.Contains(requests, "z") {
					return answersOf(requests), nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		b.submit(t.Context(), "z")
		all := b.submit(t.Context(), "a", "b", "c")
		begun := time.Now()
		close(b.gate)
		synctest.Wait()
		_, err := b.Do(t.Context(), "z")
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute, time.Since(begun))
		synctest.Wait()
		for _, a := range all {
			require.ErrorIs(t, a.err, context.DeadlineExceeded)
		}
	})
}

func TestAdapt(t *testing.T) {
	runInBubble(t, "makes batches smaller after one that failed, and larger after full ones", func(t *testing.T) {
		b := newHarness(func(c *config) {
			c.Split, c.Adapt = batch.Apart, true
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 4, Patience: time.Hour} }
			c.Commit = func(_ context.Context, requests []string) ([]string, error) {
				if len(requests) > 1 && slices.Contains(requests, "bad") {
					return nil, errors.New("no")
				}
				return answersOf(requests), nil
			}
		})
		b.submit(t.Context(), "z", "a", "b", "c", "bad")
		close(b.gate)
		synctest.Wait()
		b.committed, b.gate = nil, make(chan struct{})
		for i := range 15 {
			b.submit(t.Context(), fmt.Sprint(i))
		}
		close(b.gate)
		synctest.Wait()
		var sizes []int
		for _, c := range b.committed {
			sizes = append(sizes, len(c))
		}
		require.Equal(t, []int{1, 2, 3, 4, 4, 1}, sizes)
	})
}

type nameKey struct{}

func TestContext(t *testing.T) {
	runInBubble(t, "that ends removes its waiting request", func(t *testing.T) {
		b := newHarness()
		b.submit(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		gone := b.submit(ctx, "a")
		b.submit(t.Context(), "b")
		cancel()
		synctest.Wait()
		require.Equal(t, answer{err: context.Canceled, done: true}, *gone[0])
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"b"}}, b.committed)
	})
	runInBubble(t, "that has ended keeps a request out of a batch", func(t *testing.T) {
		b := newHarness()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.Do(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Empty(t, b.outcomes)
	})
	runInBubble(t, "that ends for one request does not end the commit, and Do waits for the commit", func(t *testing.T) {
		b := newHarness()
		b.submit(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		leaves, stays := b.submit(ctx, "a"), b.submit(t.Context(), "b")
		b.gate <- struct{}{}
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.False(t, leaves[0].done, "the request may be committed already")
		b.gate <- struct{}{}
		synctest.Wait()
		require.NoError(t, leaves[0].err)
		require.NoError(t, stays[0].err)
	})
	runInBubble(t, "that ends for all requests ends the commit", func(t *testing.T) {
		b := newHarness()
		b.submit(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		later, cancelLater := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLater()
		all := append(b.submit(ctx, "a"), b.submit(later, "b")...)
		b.gate <- struct{}{}
		synctest.Wait()
		cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.ErrorIs(t, all[0].err, context.Canceled)
		require.Error(t, all[1].err)
		require.Equal(t, 0, b.runningCommits())
	})
	runInBubble(t, "of a commit has the values of the first request's context, and a timeout", func(t *testing.T) {
		var names []any
		b := newHarness(func(c *config) {
			c.Timeout = time.Minute
			c.Commit = func(ctx context.Context, requests []string) ([]string, error) {
				names = append(names, ctx.Value(nameKey{}))
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		close(b.gate)
		all := b.submit(context.WithValue(t.Context(), nameKey{}, "alone"), "a")
		all = append(all, b.submit(context.WithValue(t.Context(), nameKey{}, "first"), "b")...)
		all = append(all, b.submit(context.WithValue(t.Context(), nameKey{}, "second"), "c")...)
		begun := time.Now()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		for _, a := range all {
			require.ErrorContains(t, a.err, "context")
		}
		require.Equal(t, []any{"alone", "first", "first"}, names[:3])
		require.Equal(t, 4*time.Minute, time.Since(begun))
	})
	runInBubble(t, "of a detached request ends its Do, but not its commit", func(t *testing.T) {
		b := newHarness(func(c *config) { c.Detached = true })
		ctx, cancel := context.WithCancel(t.Context())
		gone := b.submit(ctx, "a")
		cancel()
		synctest.Wait()
		require.Equal(t, answer{err: context.Canceled, done: true}, *gone[0])
		require.Equal(t, 1, b.runningCommits())
		b.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}}, b.committed)
	})
}

func TestAdmission(t *testing.T) {
	runInBubble(t, "is refused while too many requests wait", func(t *testing.T) {
		b := newHarness(func(c *config) { c.MaxWaiting = 2 })
		b.submit(t.Context(), "z", "a", "b")
		require.ErrorIs(t, b.submit(t.Context(), "c")[0].err, batch.ErrFull)
		close(b.gate)
		synctest.Wait()
		require.NoError(t, b.submit(t.Context(), "c")[0].err)
	})
	runInBubble(t, "sees the waiting requests by lane and key", func(t *testing.T) {
		errNo := errors.New("no")
		var seen []batch.Queue
		var ofKey []int
		b := newHarness(byLetter, func(c *config) {
			c.Lane, c.Weight = func(r string) int { return len(r) }, func(r string) int { return 10 * len(r) }
			c.Admit = func(r string, w batch.Waiting[int]) error {
				seen, ofKey = append(seen, w.Lane(2)), append(ofKey, w.Key(r[:1]))
				if r == "no" {
					return errNo
				}
				return nil
			}
		})
		begun := time.Now()
		b.submit(t.Context(), "a1") // runs at once
		time.Sleep(time.Second)
		b.submit(t.Context(), "a2")
		time.Sleep(time.Second)
		b.submit(t.Context(), "a3", "b")
		require.ErrorIs(t, b.submit(t.Context(), "no")[0].err, errNo)
		second := begun.Add(time.Second)
		require.Equal(t, []batch.Queue{
			{}, {}, {Requests: 1, Weight: 20, Since: second}, {Requests: 2, Weight: 40, Since: second}, {Requests: 2, Weight: 40, Since: second},
		}, seen)
		require.Equal(t, []int{0, 0, 1, 0, 0}, ofKey)
		close(b.gate)
		synctest.Wait()
		b.Look(func(w batch.Waiting[int]) {
			require.Zero(t, w.Lane(2))
			require.Zero(t, w.Key("a"))
		})
	})
}

func TestClose(t *testing.T) {
	runInBubble(t, "fails waiting requests, ends running commits, and refuses new requests", func(t *testing.T) {
		b := newHarness(byLetter)
		runs := b.submit(t.Context(), "z")
		waits := b.submit(t.Context(), "a", "z2")
		b.Close()
		synctest.Wait()
		require.ErrorIs(t, runs[0].err, context.Canceled)
		require.ErrorIs(t, runs[0].err, batch.ErrClosed)
		for _, a := range waits {
			require.ErrorIs(t, a.err, batch.ErrClosed)
		}
		_, err := b.Do(t.Context(), "b")
		require.ErrorIs(t, err, batch.ErrClosed)
		b.Close()
	})
	runInBubble(t, "splits no batch whose commit it ended", func(t *testing.T) {
		b := newHarness(func(c *config) { c.Detached = true })
		b.submit(t.Context(), "z")
		all := b.submit(t.Context(), "a", "b")
		b.gate <- struct{}{}
		synctest.Wait()
		b.Close()
		synctest.Wait()
		for _, a := range all {
			require.ErrorIs(t, a.err, context.Canceled)
		}
		require.Len(t, b.outcomes, 2)
	})
}
