package rpc_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
)

// A call that is refused before its body is read ends its connection. The unread rest of the body must not be read
// as the next request.
func TestServer_UnreadBodiesAreNoRequests(t *testing.T) {
	calls := make(chan string, 10)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := rpc.NewServer(rpc.ServerConfig{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- r.URL.Path
		_ = r.Body.Close() // as Connect does
		w.WriteHeader(http.StatusUnauthorized)
	})})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	body := strings.Repeat("POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 10_000)
	go func() {
		_, _ = fmt.Fprintf(conn, "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}()
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
	require.True(t, res.Close, "the answer says that the connection ends")
	rest, _ := io.ReadAll(in)
	require.Empty(t, rest)
	require.Equal(t, "/first", <-calls)
	require.Empty(t, calls)
}
