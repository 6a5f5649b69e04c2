package conns

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait(t *testing.T) {
	const one, two, proxy = "192.0.2.1", "192.0.2.2", "192.0.2.9"
	table := func() (*Table, func(host string) *Entry) {
		of := New(Limits{Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr(proxy) }})
		port := 0
		return of, func(host string) *Entry {
			port++
			e, ok := of.Add(at(host, port), func() {})
			require.True(t, ok)
			return e
		}
	}
	refuse := func(e *Entry, caller string, n int) {
		for range n {
			e.Refused(caller)
		}
	}
	// waited returns how long a stream of the connection waits.
	waited := func(t *testing.T, e *Entry) time.Duration {
		begin := time.Now()
		inLoop := e.Wait(t.Context())
		require.Equal(t, inLoop, time.Since(begin) > 0)
		return time.Since(begin)
	}
	for name, test := range map[string]func(t *testing.T){
		"a caller with few refused streams does not wait": func(t *testing.T) {
			_, add := table()
			e := add(one)
			for range 10 {
				refuse(e, "key", mostFaults)
				require.Zero(t, waited(t, e))
				time.Sleep(faultWindow)
			}
		},
		"the wait grows with each refused stream": func(t *testing.T) {
			_, add := table()
			e := add(one)
			refuse(e, "key", mostFaults+freeRefusals)
			require.Zero(t, waited(t, e))
			for _, seconds := range []float64{1, 2, 4, 8, 16, 20, 20} {
				refuse(e, "key", 1)
				took := waited(t, e).Seconds()
				require.GreaterOrEqual(t, took, seconds/2)
				require.Less(t, took, seconds)
			}
			time.Sleep(refusalsFor + 1)
			require.Zero(t, waited(t, e))
		},
		"other callers and connections of the address do not wait": func(t *testing.T) {
			_, add := table()
			refuse(add(one), "key", 10*mostFaults)
			other, same := add(one), add(one)
			refuse(other, "another", mostFaults)
			require.Zero(t, waited(t, other))
			require.Zero(t, waited(t, same), "a connection without a refused stream")
			refuse(same, "key", 1)
			require.Zero(t, waited(t, same), "a connection with few refused streams")
			refuse(same, "key", freeRefusals)
			require.NotZero(t, waited(t, same))
		},
		"a caller that is not known counts by its address": func(t *testing.T) {
			_, add := table()
			refuse(add(one), "", mostFaults)
			e, elsewhere := add(one), add(two)
			refuse(e, "", freeRefusals+1)
			refuse(elsewhere, "", freeRefusals+1)
			require.Zero(t, waited(t, elsewhere))
			require.NotZero(t, waited(t, e))
		},
		"streams on a connection of a proxy do not wait": func(t *testing.T) {
			_, add := table()
			e := add(proxy)
			refuse(e, "key", 10*mostFaults)
			require.Zero(t, waited(t, e))
		},
		"a caller that leaves does not wait": func(t *testing.T) {
			_, add := table()
			e := add(one)
			refuse(e, "key", 10*mostFaults)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			begin := time.Now()
			require.True(t, e.Wait(ctx))
			require.Equal(t, time.Millisecond, time.Since(begin))
		},
		"a bounded number of streams waits": func(t *testing.T) {
			of, add := table()
			e := add(one)
			refuse(e, "key", 10*mostFaults)
			of.waiting.Store(mostWaiting - 2)
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() { e.Wait(t.Context()) })
			}
			synctest.Wait()
			begin := time.Now()
			require.True(t, e.Wait(t.Context()))
			require.Zero(t, time.Since(begin))
			all.Wait()
			require.GreaterOrEqual(t, time.Since(begin), longestWait/2)
			require.EqualValues(t, mostWaiting-2, of.waiting.Load())
		},
		"a connection without limits does not wait": func(t *testing.T) {
			var e *Entry
			refuse(e, "key", 10*mostFaults)
			require.Zero(t, waited(t, e))
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}
