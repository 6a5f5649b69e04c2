package admission

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBuckets_EachKeyHasItsOwn(t *testing.T) {
	b := NewBuckets(PerMinute(60))
	for range 60 {
		require.Zero(t, b.Take("a", 0))
	}
	require.Equal(t, time.Second, b.Take("a", 0))
	require.Zero(t, b.Take("b", 0))
	require.Zero(t, b.Take("a", time.Second.Microseconds()))
	b.Return("a", time.Second.Microseconds())
	require.Zero(t, b.Take("a", time.Second.Microseconds()))
	require.Zero(t, NewBuckets(Rate{}).Take("a", 0), "no limit")
}

func TestBuckets_HaveBoundedMemory(t *testing.T) {
	b := NewBuckets(PerMinute(2))
	b.most = 100
	for i := range 1000 {
		b.Take(fmt.Sprint(i), 0)
	}
	require.LessOrEqual(t, len(b.fullAt), 101)
	require.Positive(t, b.Take("another", 0), "a key without room uses the shared bucket")
	require.Zero(t, b.Take("another", time.Hour.Microseconds()), "full buckets are forgotten")
	require.Len(t, b.fullAt, 1)
	b.Return("another", time.Hour.Microseconds())
	require.Empty(t, b.fullAt)
}

func TestClientKey_IsTheNetworkForIPv6(t *testing.T) {
	for _, c := range []struct{ a, b string }{
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff::9"}, {"192.0.2.1", "::ffff:192.0.2.1"},
	} {
		require.Equal(t, ClientKey(netip.MustParseAddr(c.a)), ClientKey(netip.MustParseAddr(c.b)))
	}
	require.NotEqual(t, ClientKey(netip.MustParseAddr("2001:db8:1:2::1")), ClientKey(netip.MustParseAddr("2001:db8:1:3::1")))
	require.NotEqual(t, ClientKey(netip.MustParseAddr("192.0.2.1")), ClientKey(netip.MustParseAddr("192.0.2.2")))
}
