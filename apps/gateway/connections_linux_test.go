package gateway_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// noDescriptors has this process get no more descriptors until the returned function is called.
func noDescriptors(t *testing.T) (again func()) {
	t.Helper()
	lowest, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer lowest.Close()
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	limit := before
	limit.Cur = uint64(lowest.Fd())
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	return func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }
}

// A gateway that has run out of descriptors says so, and blames no instance for it.
func TestLackOfDescriptorsIsTheGateways(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(instance(t, named("a"))))
		r.until(t, func() bool { return len(r.health) == 0 })
		var conn net.Conn
		var in *bufio.Reader
		ask := func() (*http.Response, error) {
			if _, err := io.WriteString(conn, get+"\r\n"); err != nil {
				return nil, err
			}
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				return nil, err
			}
			_, err = io.Copy(io.Discard, res.Body)
			return res, errors.Join(err, res.Body.Close())
		}
		var again func()
		var res *http.Response
		for err := error(syscall.EMFILE); err != nil; {
			// The listener may find that there are none before it waits, and close idle connections.
			if again != nil {
				again()
				require.NoError(t, conn.Close())
			}
			open := func(n float64) {
				require.Eventually(t, func() bool { return r.gauge(t, "windlass_gateway_connections") == n }, patience, time.Millisecond)
			}
			open(0)
			conn, in = r.dial(t)
			open(1)
			again = noDescriptors(t)
			res, err = ask()
		}
		defer again()
		const requests = 3 // one more than the refusals that eject
		for n := range requests {
			if n > 0 {
				var err error
				res, err = ask()
				require.NoError(t, err)
			}
			require.Equal(t, "gateway_exhausted", res.Header.Get("Windlass-Error"))
			require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
			require.Equal(t, "1", res.Header.Get("Retry-After"))
		}
		again()
		res, err := ask()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=503,version=,windlass_deployment=", requests)
	})
}
