package proxy

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

func TestRequestFate(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]fate{
		"": plain, "X": plain, "X-Session": plain, "x.other": plain, "Idempotency-Key": plain, strings.Repeat("x", 100): plain,
		"Host": reserved, "AUTHORIZATION": reserved, "Content-Length": reserved,
		"Connection": hop, "te": hop, "Proxy-Authorization": hop,
		"X-Forwarded-For": own, "Forwarded": own, "X-Request-Id": own, "Windlass-Handed-Over": own, "Proxy": own,
		"X_Other": own, "X_Forwarded_For": own, "X.Forwarded.Port": own, "Content.Length": own, "X!Api!Key": own, "True.Client.IP": own,
		"X-Forwarded-Host": forwarding, "X-FORWARDED-ANY": forwarding, "X-Real-IP": forwarding,
	} {
		require.Equal(t, want, requestFate([]byte(name)), name)
	}
	require.False(t, forwarding.isDropped(true))
	for _, f := range []fate{hop, own, forwarding} {
		require.True(t, f.isDropped(false))
	}
	for _, f := range []fate{plain, reserved} {
		require.False(t, f.isDropped(false))
	}
}

func TestTrailers_InstancesCannotSetTheGatewaysFields(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"X": true, "Grpc-Status": true, ErrorHeader: false, RegionHeader: false, RequestIDHeader: false, "Content-Length": false, "Upgrade": false} {
		require.Equal(t, want, keepsTrailer(name), name)
	}
}

// The short way and the long way find the same app keys and affinity keys.
func TestAffinity_IsTheSameOnBothPaths(t *testing.T) {
	t.Parallel()
	const text = "GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer k\r\nx-session: one\r\nX-Session: two\r\nX-Real-Ip: 192.0.2.1\r\nCookie: a=b\r\nCookie: c=d; e=f\r\n\r\n"
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	require.NoError(t, err)
	for policy, want := range map[upstream.Policy]string{
		{}: "", {AffinityHeader: "X-Session"}: "one", {AffinityHeader: "x-SESSION"}: "one", {AffinityHeader: "X-None"}: "", {AffinityHeader: "X-Real-Ip"}: "",
		{AffinityHeader: "Authorization"}: "Bearer k", {AffinityCookie: "a"}: "b", {AffinityCookie: "e"}: "f", {AffinityCookie: "x"}: "",
	} {
		x := exchange{policy: &policy, key: appKey{name: "mobile", field: "Authorization", value: "Bearer k"}}
		out := req.Clone(t.Context())
		dropFields(out.Header, false)
		out.Header.Del(x.key.field)
		require.Equal(t, want, x.affinityKey(&trip{req: out, x: &x}), "%+v", policy)

		d := &direct{r: new(http1.Request)}
		_, verdict := http1.ParseRequest([]byte(text), d.r)
		require.Equal(t, http1.Whole, verdict)
		require.True(t, d.readFields())
		require.Equal(t, want, x.affinityKey(d), "%+v", policy)
	}
}
