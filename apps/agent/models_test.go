package agent

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServerClient_LimitsTheCostOfAServer(t *testing.T) {
	transport, ok := serverClient().Transport.(*http.Transport)
	require.True(t, ok)
	require.Greater(t, transport.IdleConnTimeout, 10*time.Second, "a connection lasts from one question to the next")
	require.LessOrEqual(t, transport.IdleConnTimeout, time.Minute)
	require.Positive(t, transport.MaxConnsPerHost)
	require.Positive(t, transport.MaxResponseHeaderBytes)
}
