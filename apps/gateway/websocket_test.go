package gateway_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

// websocket is a connection to an instance that sends back all bytes.
type websocket struct {
	net.Conn

	in *bufio.Reader
}

// echoes sends lines, and checks that each line comes back.
func (w websocket) echoes(t *testing.T) {
	t.Helper()
	for i := range 10 {
		_, err := fmt.Fprintf(w, "frame-%d\n", i)
		require.NoError(t, err)
		line, err := w.in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("frame-%d\n", i), line)
	}
}

// A websocket begins with an HTTP upgrade. Then bytes go in both directions, with and without TLS. While a gateway
// stops, the websocket may stay open until DrainTimeout, like other requests.
func TestWebsocket_CarriesBytesBothWaysUntilTheGatewayEnds(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		dir := t.TempDir()
		roots := certify(t, dir)
		for _, secure := range []bool{false, true} {
			open := func(t *testing.T, drain time.Duration) (*harness, websocket) {
				t.Helper()
				r := start(t, func(c *gateway.Config) {
					c.DrainTimeout = drain
					c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
				})
				r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
					if q.Header.Get("Upgrade") != "websocket" {
						w.WriteHeader(http.StatusBadRequest)
						return
					}
					conn, rw, err := http.NewResponseController(w).Hijack()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_ = rw.Flush()
					_, _ = io.Copy(conn, rw)
				})))
				at := r.gateway.Addresses()
				conn, err := net.Dial("tcp", at[0].String())
				if secure {
					conn, err = tls.Dial("tcp", at[1].String(), &tls.Config{RootCAs: roots, ServerName: "echo.local"})
				}
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
				_, err = io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: echo.local\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				require.NoError(t, err)
				w := websocket{conn, bufio.NewReader(conn)}
				res, err := http.ReadResponse(w.in, nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
				w.echoes(t)
				return r, w
			}
			leaves := func(t *testing.T, r *harness) {
				t.Helper()
				r.stop()
				r.until(t, func() bool {
					for _, leaving := range r.leaving {
						return leaving
					}
					return false
				})
			}
			t.Run(fmt.Sprintf("tls %v, ends by itself", secure), func(t *testing.T) {
				r, w := open(t, time.Hour)
				leaves(t, r)
				w.echoes(t)
				require.Empty(t, r.ended)
				require.NoError(t, w.Close())
				r.wait(t)
			})
			t.Run(fmt.Sprintf("tls %v, is cut", secure), func(t *testing.T) {
				r, w := open(t, time.Millisecond)
				leaves(t, r)
				_, err := w.in.ReadByte()
				require.Error(t, err)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				r.wait(t)
			})
		}
	})
}
