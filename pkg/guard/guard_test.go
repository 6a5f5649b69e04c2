package guard_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/guard"
)

func TestNetworks_Allow(t *testing.T) {
	t.Run("only public addresses by default", func(t *testing.T) {
		var none guard.Networks
		for _, text := range []string{
			"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
			"169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
			"::", "::1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "fec0::1", "ff02::1", "100::1",
			"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:168.63.129.16", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1",
			"2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "3fff::1",
		} {
			require.False(t, none.Allows(netip.MustParseAddr(text)), text)
		}
		require.False(t, none.Allows(netip.Addr{}))
		for _, text := range []string{"1.1.1.1", "8.8.8.8", "168.63.129.15", "172.32.0.1", "100.128.0.1", "223.255.255.255", "::ffff:8.8.8.8", "2606:4700::1111", "2a00:1450::1"} {
			require.True(t, none.Allows(netip.MustParseAddr(text)), text)
			require.False(t, none.Lists(netip.MustParseAddr(text)), text)
		}
	})
	t.Run("listed networks too", func(t *testing.T) {
		some, err := guard.Parse([]string{"10.1.0.0/16", " ::1/128", "169.254.169.254/32"})
		require.NoError(t, err)
		for text, want := range map[string]bool{
			"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "::1": true, "127.0.0.1": false,
			"169.254.169.254": true, "169.254.169.253": false,
		} {
			require.Equal(t, want, some.Allows(netip.MustParseAddr(text)), text)
			require.Equal(t, want, some.Lists(netip.MustParseAddr(text)), text)
		}
		require.True(t, some.Allows(netip.MustParseAddr("8.8.8.8")))
	})
}

func TestParse_NamesAnInvalidNetwork(t *testing.T) {
	for _, text := range []string{"", "10.0.0.1", "10.0.0.1/8", "localhost", "10.0.0.0/33", "::ffff:10.0.0.0/104", "*"} {
		_, err := guard.Parse([]string{"192.168.0.0/16", text})
		require.ErrorContains(t, err, "write for example 10.0.0.0/8", text)
	}
	none, err := guard.Parse(nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestTransport_ChecksTheAddressOfAName(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	t.Setenv("HTTP_PROXY", server.URL)
	t.Setenv("http_proxy", server.URL)
	loopback, err := guard.Parse([]string{"127.0.0.0/8", "::1/128"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		dialer *net.Dialer
		says   error
	}{
		"public only":        {guard.Networks(nil).Dialer(), guard.ErrRefused},
		"nothing listed":     {guard.Networks(nil).ListedDialer(), guard.ErrRefused},
		"loopback allowed":   {loopback.Dialer(), nil},
		"loopback is listed": {loopback.ListedDialer(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range []string{"127.0.0.1", "localhost"} {
				res, err := guard.Transport(c.dialer, time.Second).RoundTrip(httptest.NewRequest(http.MethodGet, "http://"+host+":"+port, nil).WithContext(t.Context()))
				require.ErrorIs(t, err, c.says, host)
				if err == nil {
					require.NoError(t, res.Body.Close())
				}
			}
		})
	}
}
