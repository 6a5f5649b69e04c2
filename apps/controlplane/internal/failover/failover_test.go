package failover

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

var errGone = errors.New("connection refused")

func TestChooseAddress_FollowsHealthAndPreference(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	up := health{upSince: now.Add(-time.Hour)}
	fresh := health{upSince: now.Add(-settleTime + 1)}
	down := health{failures: failuresUntilDown, err: errGone}
	shaky := health{failures: failuresUntilDown - 1, upSince: up.upSince, err: errGone}
	for name, c := range map[string]struct {
		all     []health
		current int
		next    int
		reason  string
	}{
		"nothing is known":                          {[]health{{}, {}, {}}, 0, 0, ""},
		"the first is up":                           {[]health{up, up}, 0, 0, ""},
		"a failed check is no reason":               {[]health{shaky, up}, 0, 0, ""},
		"the first is down":                         {[]health{down, up, up}, 0, 1, reasonDown},
		"the first that is up is used":              {[]health{down, down, up}, 1, 2, reasonDown},
		"a server that is down is left for a fresh": {[]health{fresh, down}, 1, 0, reasonDown},
		"all are down":                              {[]health{down, down}, 1, 1, ""},
		"unknown addresses are not used":            {[]health{down, {}}, 0, 0, ""},
		"the first is up again, but not for long":   {[]health{fresh, up}, 1, 1, ""},
		"the first is up again":                     {[]health{up, up}, 1, 0, reasonPreferred},
	} {
		next, reason := chooseAddress(c.all, c.current, func(int) bool { return true }, now)
		require.Equal(t, c.next, next, name)
		require.Equal(t, c.reason, reason, name)
	}
}

// servers are fake servers with one error each.
type servers struct {
	mu   sync.Mutex
	errs []error
	// switches are the arguments of Switched.
	switches [][2]int
}

func (s *servers) set(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs[i] = err
}

func (s *servers) check(_ context.Context, i int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errs[i]
}

func (s *servers) open(t *testing.T, metrics *Metrics) *Set {
	set, err := New(Config{
		Service: "database", Addresses: []string{"a:1", "b:1", "c:1"}[:len(s.errs)], Check: s.check, Metrics: metrics,
		Switched: func(from, to int, _ bool) { s.switches = append(s.switches, [2]int{from, to}) },
	})
	require.NoError(t, err)
	return set
}

func TestSet_LeavesAServerThatIsDownAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, metrics := &servers{errs: make([]error, 3)}, NewMetrics()
		set := fake.open(t, metrics)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- set.Run(ctx) }()

		time.Sleep(checkEvery + time.Millisecond)
		require.Zero(t, set.CurrentIndex())
		fake.set(0, errGone)
		time.Sleep(failuresUntilDown * checkEvery)
		require.Equal(t, 1, set.CurrentIndex())
		require.Equal(t, []Status{{Address: "a:1", Error: errGone}, {Address: "b:1", Up: true, InUse: true}, {Address: "c:1", Up: true}}, set.ListStatus())
		fake.set(0, nil)
		time.Sleep(settleTime)
		require.Equal(t, 1, set.CurrentIndex(), "it has not been up for long enough")
		time.Sleep(2 * checkEvery)
		require.Zero(t, set.CurrentIndex())
		require.Equal(t, [][2]int{{0, 1}, {1, 0}}, fake.switches)
		require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP windlass_failover_address_in_use 1 for the address of the service that calls go to, 0 for the others.
# TYPE windlass_failover_address_in_use gauge
windlass_failover_address_in_use{address="a:1",service="database"} 1
windlass_failover_address_in_use{address="b:1",service="database"} 0
windlass_failover_address_in_use{address="c:1",service="database"} 0
# HELP windlass_failover_switches_total Switches to another address of the service, by reason: down, or preferred if an earlier address of the list is up again.
# TYPE windlass_failover_switches_total counter
windlass_failover_switches_total{reason="down",service="database"} 1
windlass_failover_switches_total{reason="preferred",service="database"} 1
`), "windlass_failover_address_in_use", "windlass_failover_switches_total"))
		stop()
		require.NoError(t, <-done)
		set.Close()
		require.Zero(t, testutil.CollectAndCount(metrics, "windlass_failover_address_up"))
	})
}

// A former primary may lack what was written since.
func TestChooseAddress_ReturnsOnlyWhereItMay(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	up := health{upSince: now.Add(-time.Hour)}
	next, reason := chooseAddress([]health{up, up, up}, 2, func(i int) bool { return i == 1 }, now)
	require.Equal(t, 1, next)
	require.Equal(t, reasonPreferred, reason)
	next, reason = chooseAddress([]health{up, up}, 1, func(int) bool { return false }, now)
	require.Equal(t, 1, next)
	require.Empty(t, reason)
	down := health{failures: failuresUntilDown, err: errGone}
	next, reason = chooseAddress([]health{up, down}, 1, func(int) bool { return false }, now)
	require.Zero(t, next)
	require.Equal(t, reasonDown, reason)
}

func TestSet_BeginsWithAnAddressThatIsUp(t *testing.T) {
	fake := &servers{errs: []error{errGone, nil}}
	set := fake.open(t, nil)
	set.CheckAll(t.Context())
	require.Equal(t, 1, set.CurrentIndex())
}

func TestSet_ACheckThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := New(Config{Addresses: []string{"a", "b"}, Check: func(ctx context.Context, i int) error {
			if i == 0 {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		require.NoError(t, err)
		set.CheckAll(t.Context())
		require.Equal(t, 1, set.CurrentIndex())
	})
}

func TestTryEach_GoesOnOnlyAfterFailuresOfTheServer(t *testing.T) {
	fake := &servers{errs: make([]error, 3)}
	set := fake.open(t, nil)
	set.CheckAll(t.Context())
	var calls []int
	call := func(errs ...error) error {
		calls = nil
		return set.TryEach(t.Context(), func(i int) error {
			calls = append(calls, i)
			return errs[i]
		})
	}
	refused := errors.New("the server refuses the call")
	require.ErrorIs(t, call(refused, nil, nil), refused)
	require.Equal(t, []int{0}, calls)
	require.NoError(t, call(TryNext(errGone), TryNext(errGone), nil))
	require.Equal(t, []int{0, 1, 2}, calls)
	require.NoError(t, call(nil, nil, nil))
	require.Equal(t, []int{2}, calls, "the next call begins with the address that worked")
	require.ErrorIs(t, call(nil, nil, TryNext(errGone)), errGone)
	require.Equal(t, []int{2}, calls, "no other address is known to be up")
}

func TestTryEach_TheCallersDeadlineIsNoFailureOfTheServer(t *testing.T) {
	fake := &servers{errs: make([]error, 2)}
	set := fake.open(t, nil)
	set.CheckAll(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	err := set.TryEach(ctx, func(int) error {
		cancel()
		return TryNext(ctx.Err())
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, set.CurrentIndex())
}

func TestNew_NamesWhatIsWrong(t *testing.T) {
	check := func(context.Context, int) error { return nil }
	_, err := New(Config{Check: check})
	require.ErrorContains(t, err, "required")
	_, err = New(Config{Check: check, Addresses: []string{"a", "b", "a"}})
	require.ErrorContains(t, err, "a is listed twice")
	_, err = New(Config{Check: check, Addresses: []string{"a", ""}})
	require.ErrorContains(t, err, "address 2 of 2 is empty")
}
