package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGatewayURL_MustBeAnAddressOfGateways(t *testing.T) {
	for _, good := range []string{"", "http://10.0.0.1:8080", "https://us-east-1.example.com", "https://[2001:db8::1]:8443"} {
		require.NoError(t, checkGatewayURL(good), good)
	}
	for _, bad := range []string{"us-east-1.example.com", "https://", "https://a.example/", "https://a.example/path", "https://user@a.example", "ftp://a.example", "https://a.example?x", "http://:80", "http://a b"} {
		require.ErrorContains(t, checkGatewayURL(bad), "use http or https, a host and a port", bad)
	}
}
