package webhook_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/webhook"
)

func TestOnlyPublicAddressesAreCalledUnlessOthersAreAllowed(t *testing.T) {
	c := setup(t, func(cfg *webhook.Config) { cfg.Allow = nil })
	for _, text := range []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "100.100.100.200", "192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "fec0::1", "ff02::1", "100::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1",
		"2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "3fff::1",
	} {
		require.False(t, c.Allows(netip.MustParseAddr(text)), text)
	}
	require.False(t, c.Allows(netip.Addr{}))
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "223.255.255.255", "::ffff:8.8.8.8", "2606:4700::1111", "2a00:1450::1"} {
		require.True(t, c.Allows(netip.MustParseAddr(text)), text)
	}

	allow, err := webhook.ParseAllowed([]string{"10.1.0.0/16", " ::1/128", "169.254.169.254/32"})
	require.NoError(t, err)
	c = setup(t, func(cfg *webhook.Config) { cfg.Allow = allow })
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "::1": true, "127.0.0.1": false,
		"169.254.169.254": true, "169.254.169.253": false, "8.8.8.8": true,
	} {
		require.Equal(t, want, c.Allows(netip.MustParseAddr(text)), text)
	}
}

func TestANetworkThatIsNoneIsToldWithOneThatIs(t *testing.T) {
	for _, text := range []string{"", "10.0.0.1", "10.0.0.1/8", "localhost", "10.0.0.0/33", "::ffff:10.0.0.0/104", "*"} {
		_, err := webhook.ParseAllowed([]string{"192.168.0.0/16", text})
		require.ErrorContains(t, err, "write for example 10.0.0.0/8", text)
	}
	none, err := webhook.ParseAllowed(nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
