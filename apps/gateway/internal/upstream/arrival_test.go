package upstream

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

func TestArrival_IsUnprovenFromReadyToReached(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var arrived []Arrival
	told := 0
	r := New(Config{
		Now: func() time.Time { return now }, Random: func() uint64 { return 0 },
		Ejected: func(Ejection) {}, Drained: func(string) {},
		Arrived: func(a Arrival) { arrived = append(arrived, a) }, Proven: func() { told++ },
	})
	put := func(state State, address string) {
		t.Helper()
		arrived = nil
		require.NoError(t, r.Update(Spec{AppID: "app", Hosts: []string{"a.test"}, Policy: DefaultPolicy(), Targets: []TargetSpec{{
			DeploymentID: "dep", Weight: 1, Instances: []InstanceSpec{{ID: "ins", Address: address, State: state}},
		}}}))
	}
	unproven := []Health{{InstanceID: "ins", Unproven: true}}

	put(NotReady, "1.1.1.1:1")
	require.Empty(t, arrived)
	require.Empty(t, r.Health())
	put(Ready, "1.1.1.1:1")
	require.Len(t, arrived, 1)
	require.Equal(t, "1.1.1.1:1", arrived[0].Address)
	require.Equal(t, unproven, r.Health())
	first := arrived[0]
	put(Ready, "1.1.1.1:1")
	require.Empty(t, arrived, "the first arrival is still being tried")

	// An instance that attempts cannot reach is ejected, as if requests could not connect to it.
	first.Unreached()
	require.Equal(t, []Health{{InstanceID: "ins", Unproven: true, Reason: "ConnectError"}}, r.Health())
	require.Equal(t, 1, told)
	first.Unreached()
	require.Equal(t, []Health{{InstanceID: "ins", Unproven: true, Ejected: true, Reason: "ConnectError"}}, r.Health())
	first.Reached()
	require.Empty(t, r.Health(), "the cause of the ejection is over")
	require.Equal(t, 2, told)
	require.False(t, first.Wanted())
	require.Empty(t, arrived)

	// An instance to which requests cannot connect is unproven until an attempt reaches it.
	lease, err := r.Acquire(t.Context(), &Want{Host: "a.test"})
	require.NoError(t, err)
	lease.RecordOutcome(health.Refusal)
	require.Empty(t, arrived)
	lease.RecordOutcome(health.Refusal)
	lease.End()
	require.Len(t, arrived, 1)
	require.Equal(t, []Health{{InstanceID: "ins", Unproven: true, Ejected: true, Reason: "ConnectError"}}, r.Health())
	arrived[0].Reached()
	require.Empty(t, r.Health())

	// An instance that becomes ready again is tried again. The result of the first arrival is ignored then.
	put(NotReady, "1.1.1.1:1")
	put(Ready, "1.1.1.1:1")
	require.Equal(t, unproven, r.Health())
	first.Reached()
	require.Equal(t, unproven, r.Health())
	second := arrived[0]
	require.True(t, second.Wanted())
	put(Draining, "1.1.1.1:1")
	require.False(t, second.Wanted())
	require.Empty(t, r.Health())

	// Another address is another process. An instance that is not listed any more is not wanted.
	put(Ready, "1.1.1.1:1")
	third := arrived[0]
	put(Ready, "1.1.1.1:2")
	require.Len(t, arrived, 1)
	require.False(t, third.Wanted())
	r.Remove()
	require.False(t, arrived[0].Wanted())
}

func TestArrival_FailedCheckIsNotReached(t *testing.T) {
	var arrived []Arrival
	told := 0
	r := New(Config{
		Now: func() time.Time { return time.Unix(1_800_000_000, 0) }, Random: func() uint64 { return 0 },
		Ejected: func(Ejection) {}, Drained: func(string) {},
		Arrived: func(a Arrival) { arrived = append(arrived, a) }, Proven: func() { told++ },
	})
	put := func(state State, check *healthcheck.Check, other bool) {
		t.Helper()
		require.NoError(t, r.Update(Spec{AppID: "app", Hosts: []string{"a.test"}, Policy: DefaultPolicy(), Targets: []TargetSpec{{
			DeploymentID: "dep", Weight: 1, Instances: []InstanceSpec{{ID: "ins", Address: "1.1.1.1:1", State: state, Check: check, OtherVersion: other}},
		}}}))
	}
	mine, next := &healthcheck.Check{Path: "/mine"}, &healthcheck.Check{Path: "/next"}
	put(Ready, mine, false)
	a := arrived[0]
	require.Same(t, mine, a.Check())
	put(Ready, next, true)
	require.Same(t, mine, a.Check(), "next is the check of another version")
	put(Ready, next, false)
	require.Same(t, next, a.Check())

	long := strings.Repeat("x", 127) + "é"
	for range DefaultPolicy().Health.Failures - 1 {
		a.Failed(long)
	}
	require.Equal(t, []Health{{InstanceID: "ins", Unproven: true, Reason: long[:127]}}, r.Health())
	require.Equal(t, 1, told, "the same reason is no news")
	a.Failed("GET /next answered 503")
	require.Equal(t, []Health{{InstanceID: "ins", Unproven: true, Ejected: true, Reason: "GET /next answered 503"}}, r.Health())
	require.Equal(t, 2, told)
	a.Reached()
	require.Empty(t, r.Health(), "the cause of the ejection is over")
	a.Failed("late")
	require.Empty(t, r.Health())
}
