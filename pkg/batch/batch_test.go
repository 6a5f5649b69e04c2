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

// newBench returns one whose commits answer each request with "did REQUEST", if change does not say otherwise.
func newBench(change ...func(*config)) *harness {
	b := &harness{gate: make(chan struct{})}
	cfg := config{
		Commit: func(_ context.Context, requests []string) ([]string, error) { return did(requests), nil },
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

func (b *harness) count(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running += n
}

// atOnce returns how many commits run.
func (b *harness) atOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running
}

func did(requests []string) (results []string) {
	for _, r := range requests {
		results = append(results, "did "+r)
	}
	return results
}

// answer is what Do returned, once it did.
type answer struct {
	result string
	err    error
	done   bool
}

// come calls Do for each request, one after the other, and returns while they wait.
func (b *harness) come(ctx context.Context, requests ...string) []*answer {
	var all []*answer
	for _, r := range requests {
		a := &answer{}
		all = append(all, a)
		go func() {
			a.result, a.err = b.Do(ctx, r)
			a.done = true
		}()
		synctest.Wait()
	}
	return all
}

func commits(n int) func(*config) {
	return func(c *config) {
		c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Commits: n, Patience: time.Second} }
	}
}

// byLetter gives requests that begin with the same letter the same key.
func byLetter(c *config) { c.Key = func(r string) string { return r[:1] } }

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestBatch(t *testing.T) {
	bubble(t, "takes what waits when a commit ends, in order", func(t *testing.T) {
		b := newBench()
		first := b.come(t.Context(), "a")
		rest := b.come(t.Context(), "b", "c", "d")
		require.Equal(t, 1, b.atOnce())
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
	bubble(t, "ends at its size", func(t *testing.T) {
		b := newBench(func(c *config) {
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 2, Patience: time.Hour} }
		})
		b.come(t.Context(), "a", "b", "c", "d")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"b", "c"}, {"d"}}, b.committed)
	})
	bubble(t, "ends with the request that reaches its weight", func(t *testing.T) {
		b := newBench(func(c *config) {
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Weight: 4, Patience: time.Hour} }
			c.Weight = func(r string) int { return len(r) }
		})
		b.come(t.Context(), "a", "bb", "c", "dddd", "eeeeeeee", "f")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}, {"bb", "c", "dddd"}, {"eeeeeeee"}, {"f"}}, b.committed)
	})
	bubble(t, "that lacks results fails", func(t *testing.T) {
		b := newBench(func(c *config) {
			c.Commit = func(context.Context, []string) ([]string, error) { return nil, nil }
		})
		close(b.gate)
		require.ErrorContains(t, b.come(t.Context(), "a")[0].err, "Commit returned 0 results for 1 requests")
	})
	t.Run("needs a commit and limits, and no keys where requests are committed apart", func(t *testing.T) {
		require.Panics(t, func() { batch.New(config{}) })
		require.Panics(t, func() { newBench(byLetter, func(c *config) { c.Split = batch.Apart }) })
	})
}

func TestPatience(t *testing.T) {
	bubble(t, "lets the next commit begin beside one that is late", func(t *testing.T) {
		b := newBench(commits(3))
		b.come(t.Context(), "a", "b")
		time.Sleep(time.Second - time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 1, b.atOnce())
		for n := range 4 { // and none of the next ends, either
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, min(n+2, 3), b.atOnce())
			b.come(t.Context(), fmt.Sprint(n))
			time.Sleep(time.Second - time.Nanosecond)
		}
		close(b.gate)
		synctest.Wait()
		require.Equal(t, 0, b.atOnce())
		require.Len(t, slices.Concat(b.committed...), 6)

		b.gate = make(chan struct{})
		b.come(t.Context(), "a", "b")
		require.Equal(t, 1, b.atOnce(), "one at a time again")
		close(b.gate)
	})
	bubble(t, "counts from the begin of a commit, also if the next request comes late", func(t *testing.T) {
		b := newBench(commits(0))
		b.come(t.Context(), "a")
		time.Sleep(time.Hour)
		b.come(t.Context(), "b")
		require.Equal(t, 2, b.atOnce())
		close(b.gate)
	})
	bubble(t, "of none lets as many run as may", func(t *testing.T) {
		b := newBench(func(c *config) { c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100, Commits: 2} } })
		b.come(t.Context(), "a", "b", "c", "d")
		require.Equal(t, 2, b.atOnce())
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"c", "d"}}, slices.DeleteFunc(b.committed, func(c []string) bool { return len(c) == 1 }))
	})
}

func TestKey(t *testing.T) {
	bubble(t, "is in a batch once, and the others of it follow", func(t *testing.T) {
		b := newBench(byLetter)
		b.come(t.Context(), "z", "a1", "b1", "a2", "c1", "a3")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"a1", "b1", "c1"}, {"a2"}, {"a3"}}, b.committed)
	})
	bubble(t, "is never committed twice at a time, in any lane", func(t *testing.T) {
		b := newBench(byLetter, func(c *config) {
			c.Lane = func(r string) int { return len(r) }
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 100} }
		})
		all := b.come(t.Context(), "a", "aa", "aaa", "b")
		require.Equal(t, 2, b.atOnce(), "one of a, one of b")
		for range 4 {
			b.gate <- struct{}{}
			synctest.Wait()
			require.LessOrEqual(t, b.atOnce(), 2)
		}
		for _, a := range all {
			require.True(t, a.done)
		}
	})
	bubble(t, "is none if empty", func(t *testing.T) {
		b := newBench(func(c *config) { c.Key = func(string) string { return "" } })
		b.come(t.Context(), "z", "a", "a")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"a", "a"}}, b.committed)
	})
}

func TestLane(t *testing.T) {
	byNumber := func(c *config) { c.Lane = func(r string) int { return int(r[0] - '0') } }
	bubble(t, "does not wait for another", func(t *testing.T) {
		b := newBench(byNumber)
		b.come(t.Context(), "1a", "1b", "2a", "2b")
		require.Equal(t, 2, b.atOnce())
		close(b.gate)
		synctest.Wait()
		require.ElementsMatch(t, [][]string{{"1a"}, {"1b"}, {"2a"}, {"2b"}}, b.committed)
	})
	bubble(t, "that is lower goes first where commits are bounded", func(t *testing.T) {
		b := newBench(byNumber, func(c *config) { c.MaxCommits = 1 })
		b.come(t.Context(), "5a", "7a", "3a", "5b", "7b")
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"5a"}, {"3a"}, {"5b"}, {"7a", "7b"}}, b.committed)
	})
}

func TestSplit(t *testing.T) {
	fails := map[string]func() ([]string, error){
		"an error":         func() ([]string, error) { return nil, errors.New("bad request") },
		"a panic":          func() ([]string, error) { panic("bad request") },
		"a goroutine less": func() ([]string, error) { runtime.Goexit(); return nil, nil },
	}
	for how, split := range map[string]batch.Split{"Halves": batch.Halves, "Singly": batch.Singly, "Apart": batch.Apart} {
		for why, fail := range fails {
			bubble(t, how+" lets a request fail alone after "+why, func(t *testing.T) {
				b := newBench(func(c *config) {
					c.Split = split
					c.Commit = func(_ context.Context, requests []string) ([]string, error) {
						if slices.Contains(requests, "bad") && (why != "a goroutine less" || len(requests) == 1) {
							return fail()
						}
						if len(requests) > 1 && slices.Contains(requests, "bad") {
							return nil, errors.New("in bad company")
						}
						return did(requests), nil
					}
				})
				b.come(t.Context(), "z")
				all := b.come(t.Context(), "a", "b", "bad", "c", "d")
				close(b.gate)
				synctest.Wait()
				for i, a := range all {
					require.True(t, a.done, i)
					p, panicked := errors.AsType[*batch.PanicError](a.err)
					switch {
					case i != 2 && why == "a goroutine less" && split != batch.Apart && i > 2:
						// The goroutine that would have committed it is gone.
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
				last := b.come(t.Context(), "e")
				require.NoError(t, last[0].err, "the group goes on")
			})
		}
	}
	bubble(t, "Apart delays no other batch", func(t *testing.T) {
		stuck := make(chan struct{})
		b := newBench(func(c *config) {
			c.Split = batch.Apart
			c.Commit = func(_ context.Context, requests []string) ([]string, error) {
				switch {
				case !slices.Contains(requests, "bad"):
				case len(requests) > 1:
					return nil, errors.New("no")
				default:
					<-stuck
				}
				return did(requests), nil
			}
		})
		b.come(t.Context(), "z")
		all := b.come(t.Context(), "bad", "a")
		close(b.gate)
		synctest.Wait()
		require.True(t, all[1].done)
		require.False(t, all[0].done)
		require.NoError(t, b.come(t.Context(), "b")[0].err)
		close(stuck)
		synctest.Wait()
		require.NoError(t, all[0].err)
	})
	bubble(t, "gives the parts the time of one commit", func(t *testing.T) {
		b := newBench(func(c *config) {
			c.Split, c.Timeout, c.Detached = batch.Singly, time.Minute, true
			c.Commit = func(ctx context.Context, requests []string) ([]string, error) {
				if slices.Contains(requests, "z") {
					return did(requests), nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		b.come(t.Context(), "z")
		all := b.come(t.Context(), "a", "b", "c")
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
	bubble(t, "makes batches smaller after one that failed, and larger after full ones", func(t *testing.T) {
		b := newBench(func(c *config) {
			c.Split, c.Adapt = batch.Apart, true
			c.Limits = func(int) batch.Limits { return batch.Limits{Size: 4, Patience: time.Hour} }
			c.Commit = func(_ context.Context, requests []string) ([]string, error) {
				if len(requests) > 1 && slices.Contains(requests, "bad") {
					return nil, errors.New("no")
				}
				return did(requests), nil
			}
		})
		b.come(t.Context(), "z", "a", "b", "c", "bad")
		close(b.gate)
		synctest.Wait()
		b.committed, b.gate = nil, make(chan struct{})
		for i := range 15 {
			b.come(t.Context(), fmt.Sprint(i))
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
	bubble(t, "that ends takes a waiting request out", func(t *testing.T) {
		b := newBench()
		b.come(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		gone := b.come(ctx, "a")
		b.come(t.Context(), "b")
		cancel()
		synctest.Wait()
		require.Equal(t, answer{err: context.Canceled, done: true}, *gone[0])
		close(b.gate)
		synctest.Wait()
		require.Equal(t, [][]string{{"z"}, {"b"}}, b.committed)
	})
	bubble(t, "that has ended keeps a request out of a batch", func(t *testing.T) {
		b := newBench()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.Do(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Empty(t, b.outcomes)
	})
	bubble(t, "of one does not end the commit of others, which is waited for", func(t *testing.T) {
		b := newBench()
		b.come(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		leaves, stays := b.come(ctx, "a"), b.come(t.Context(), "b")
		b.gate <- struct{}{}
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.False(t, leaves[0].done, "it may be durable")
		b.gate <- struct{}{}
		synctest.Wait()
		require.NoError(t, leaves[0].err)
		require.NoError(t, stays[0].err)
	})
	bubble(t, "of all ends the commit", func(t *testing.T) {
		b := newBench()
		b.come(t.Context(), "z")
		ctx, cancel := context.WithCancel(t.Context())
		later, cancelLater := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLater()
		all := append(b.come(ctx, "a"), b.come(later, "b")...)
		b.gate <- struct{}{}
		synctest.Wait()
		cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.ErrorIs(t, all[0].err, context.Canceled)
		require.Error(t, all[1].err)
		require.Equal(t, 0, b.atOnce())
	})
	bubble(t, "of a commit has the values of the first request's, and its timeout", func(t *testing.T) {
		var names []any
		b := newBench(func(c *config) {
			c.Timeout = time.Minute
			c.Commit = func(ctx context.Context, requests []string) ([]string, error) {
				names = append(names, ctx.Value(nameKey{}))
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		close(b.gate)
		all := b.come(context.WithValue(t.Context(), nameKey{}, "alone"), "a")
		all = append(all, b.come(context.WithValue(t.Context(), nameKey{}, "first"), "b")...)
		all = append(all, b.come(context.WithValue(t.Context(), nameKey{}, "second"), "c")...)
		begun := time.Now()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		for _, a := range all {
			require.ErrorContains(t, a.err, "context")
		}
		require.Equal(t, []any{"alone", "first", "first"}, names[:3])
		require.Equal(t, 4*time.Minute, time.Since(begun))
	})
	bubble(t, "of a detached request ends its wait and not its commit", func(t *testing.T) {
		b := newBench(func(c *config) { c.Detached = true })
		ctx, cancel := context.WithCancel(t.Context())
		gone := b.come(ctx, "a")
		cancel()
		synctest.Wait()
		require.Equal(t, answer{err: context.Canceled, done: true}, *gone[0])
		require.Equal(t, 1, b.atOnce())
		b.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, [][]string{{"a"}}, b.committed)
	})
}

func TestAdmission(t *testing.T) {
	bubble(t, "is refused while too many wait", func(t *testing.T) {
		b := newBench(func(c *config) { c.MaxWaiting = 2 })
		b.come(t.Context(), "z", "a", "b")
		require.ErrorIs(t, b.come(t.Context(), "c")[0].err, batch.ErrFull)
		close(b.gate)
		synctest.Wait()
		require.NoError(t, b.come(t.Context(), "c")[0].err)
	})
	bubble(t, "sees what waits, by lane and key", func(t *testing.T) {
		no := errors.New("no")
		var seen []batch.Queue
		var ofKey []int
		b := newBench(byLetter, func(c *config) {
			c.Lane, c.Weight = func(r string) int { return len(r) }, func(r string) int { return 10 * len(r) }
			c.Admit = func(r string, w batch.Waiting[int]) error {
				seen, ofKey = append(seen, w.Lane(2)), append(ofKey, w.Key(r[:1]))
				if r == "no" {
					return no
				}
				return nil
			}
		})
		begun := time.Now()
		b.come(t.Context(), "a1") // runs
		time.Sleep(time.Second)
		b.come(t.Context(), "a2")
		time.Sleep(time.Second)
		b.come(t.Context(), "a3", "b")
		require.ErrorIs(t, b.come(t.Context(), "no")[0].err, no)
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
	bubble(t, "fails what waits, ends what runs, and takes no more", func(t *testing.T) {
		b := newBench(byLetter)
		runs := b.come(t.Context(), "z")
		waits := b.come(t.Context(), "a", "z2")
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
	bubble(t, "parts no batch that it ended", func(t *testing.T) {
		b := newBench(func(c *config) { c.Detached = true })
		b.come(t.Context(), "z")
		all := b.come(t.Context(), "a", "b")
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
