package gateway_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/pkg/conns"
)

// If the limit of connections is reached, the connection that has been idle for longest is closed. A connection
// with a request stays open, on the short and on the long way.
func TestConnections_HaveALimit(t *testing.T) {
	for name, limits := range map[string]conns.Limits{"in all": {Total: 3, PerAddress: -1}, "by address": {PerAddress: 3}} {
		t.Run(name, func(t *testing.T) {
			bothEngines(t, func(t *testing.T) {
				r := start(t, func(c *gateway.Config) {
					c.Connections = limits
				})
				r.client.Transport.(*http.Transport).DisableKeepAlives = true
				began, release := make(chan struct{}, 1), make(chan struct{})
				r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Path == "/wait" {
						began <- struct{}{}
						<-release
					}
					_, _ = io.WriteString(w, "done")
				})))
				busy, in := r.dial(t)
				_, err := io.WriteString(busy, "GET /wait HTTP/1.1\r\nHost: echo.local\r\n\r\n")
				require.NoError(t, err)
				<-began
				var idle []net.Conn
				for i := range 4 {
					conn, _ := r.dial(t)
					if i == 0 { // a connection with half a header counts as idle
						_, err := io.WriteString(conn, "GET /a HTT")
						require.NoError(t, err)
					}
					idle = append(idle, conn)
				}
				for i, conn := range idle[:2] {
					_, err := conn.Read(make([]byte, 1))
					require.Error(t, err, "connection %d is open", i)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
				}
				close(release)
				res, err := http.ReadResponse(in, nil)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.GreaterOrEqual(t, r.gauge(t, "windlass_gateway_connections_shed_total"), 2.0)
			})
		})
	}
}

// An HTTP/3 connection without a request ends, even if half of a request was sent and the client keeps the
// connection alive.
func TestConnection_OfHTTP3EndsAfterHalfARequest(t *testing.T) {
	dir := t.TempDir()
	roots := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.HTTP3 = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), true
		c.HeaderTimeout, c.Connections = 300*time.Millisecond, conns.Limits{Total: 3, PerAddress: -1}
	})
	address := r.gateway.Addresses()[1].String()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func() *quic.Conn {
		conn, err := quic.DialAddr(ctx, address, &tls.Config{RootCAs: roots, ServerName: "echo.local", NextProtos: []string{http3.NextProtoH3}}, &quic.Config{HandshakeIdleTimeout: patience, KeepAlivePeriod: 50 * time.Millisecond})
		require.NoError(t, err)
		return conn
	}
	conn := dial()
	stream, err := conn.OpenStream()
	require.NoError(t, err)
	_, err = stream.Write([]byte{0x01, 0x40, 0xff}) // the beginning of a HEADERS frame of 255 bytes
	require.NoError(t, err)
	<-conn.Context().Done()
	var app *quic.ApplicationError
	require.ErrorAs(t, context.Cause(conn.Context()), &app)
	require.Equal(t, quic.ApplicationErrorCode(http3.ErrCodeNoError), app.ErrorCode)

	// Connections of HTTP/3 count for the limit.
	var all []*quic.Conn
	for range 4 {
		all = append(all, dial())
	}
	<-all[0].Context().Done()
	require.ErrorAs(t, context.Cause(all[0].Context()), &app)
}
