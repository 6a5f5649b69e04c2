package conns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHoldback(t *testing.T) {
	t.Parallel()
	var (
		address = netip.MustParseAddrPort("192.0.2.1:0")
		other   = netip.MustParseAddrPort("192.0.2.2:0")
		start   = time.Unix(1_000_000, 0)
	)
	// overflow charges faults until chargeFault returns true, and returns how many faults it charged.
	overflow := func(h holdback[netip.AddrPort], now time.Time) (n int) {
		n = 1
		for !h.chargeFault(address, now) {
			n++
		}
		return n
	}

	t.Run("faults up to the limit are forgiven with time", func(t *testing.T) {
		t.Parallel()
		h := holdback[netip.AddrPort]{}
		for now := start; now.Before(start.Add(time.Hour)); now = now.Add(faultWindow / mostFaults) {
			require.False(t, h.chargeFault(address, now))
		}
		require.False(t, h.isHeldBack(address, start.Add(time.Hour)))
	})
	t.Run("an address above the limit is held back, for a longer time each time", func(t *testing.T) {
		t.Parallel()
		h := holdback[netip.AddrPort]{}
		now := start
		for _, hold := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, longestHold, longestHold} {
			require.Equal(t, mostFaults+1, overflow(h, now))
			for range 10 * mostFaults { // faults of its other connections, which end meanwhile
				require.True(t, h.chargeFault(address, now))
			}
			require.False(t, h.isHeldBack(other, now))
			require.True(t, h.isHeldBack(address, now.Add(hold-1)))
			now = now.Add(hold)
			require.False(t, h.isHeldBack(address, now))
		}
		now = now.Add(longestHold + 1)
		overflow(h, now)
		require.False(t, h.isHeldBack(address, now.Add(firstHold)), "its earlier faults are forgotten")
	})
	t.Run("it keeps a bounded number of addresses", func(t *testing.T) {
		t.Parallel()
		h := holdback[netip.AddrPort]{}
		overflow(h, start)
		for i := range mostAtFault + 10 {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 0)
			h.chargeFault(at, start.Add(time.Duration(i)))
		}
		require.Len(t, h, mostAtFault)
		require.False(t, h.chargeFault(address, start.Add(3*longestHold)))
		h.forgetOld(start.Add(3 * longestHold))
		require.Len(t, h, 1)
	})
}

// Faults of all connections of an address count together. For an exempt address, each connection counts separately.
func TestFaults(t *testing.T) {
	t.Parallel()
	const one, proxy = "192.0.2.1", "192.0.2.9"
	table := New(Limits{Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr(proxy) }})
	fault := func(host string, port, n int) (tooMany bool) {
		e, ok := table.Add(at(host, port), func() {})
		require.True(t, ok)
		for range n {
			tooMany = e.Fault()
		}
		return tooMany
	}
	require.False(t, fault(one, 1, mostFaults/2))
	require.True(t, fault(one, 2, mostFaults/2+1))
	require.True(t, table.Refuses(at(one, 3)))
	require.False(t, fault(proxy, 1, mostFaults))
	require.True(t, fault(proxy, 2, mostFaults+1))
	require.False(t, table.Refuses(at(proxy, 3)))
	_, refused, _ := table.Figures()
	require.Equal(t, int64(1), refused)

	var none *Table
	require.False(t, none.Refuses(at(one, 1)))
	var unlimited *Entry
	require.False(t, unlimited.Fault())
}
