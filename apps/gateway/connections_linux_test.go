package gateway_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// runAlone runs the test in a separate process. It returns true in that process. In this process it returns false
// after the test has passed there.
func runAlone(t *testing.T) bool {
	t.Helper()
	const name = "WINDLASS_TEST_ALONE"
	if os.Getenv(name) == t.Name() {
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), name+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// takeDescriptors takes all descriptors of this process until the returned function is called. It also takes
// descriptors that are closed meanwhile.
func takeDescriptors(t *testing.T) (giveBack func()) {
	t.Helper()
	lowest, err := os.Open(os.DevNull)
	require.NoError(t, err)
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	limit := before
	limit.Cur = uint64(lowest.Fd()) + 1
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	taken := []*os.File{lowest}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.Tick(time.Millisecond); ; {
			for file, err := os.Open(os.DevNull); err == nil; file, err = os.Open(os.DevNull) {
				taken = append(taken, file)
			}
			select {
			case <-stop:
				return
			case <-tick:
			}
		}
	}()
	giveBack = sync.OnceFunc(func() {
		close(stop)
		<-stopped
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
		for _, file := range taken {
			require.NoError(t, file.Close())
		}
	})
	t.Cleanup(giveBack)
	return giveBack
}

// A gateway that has run out of descriptors answers with its own error, and does not eject an instance for it.
func TestDescriptors_LackIsNoFaultOfInstances(t *testing.T) {
	if !runAlone(t) { // because other tests open and close descriptors
		return
	}
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close") // each request needs a new connection
		})))
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
		open := func(n float64) {
			require.Eventually(t, func() bool { return r.gauge(t, "windlass_gateway_connections") == n }, patience, time.Millisecond)
		}
		const requests = 3 // one more than the number of refusals that eject an instance
		refused, unanswered := 0, 0
		var giveBack func()
		for end := time.Now().Add(patience); refused < requests; {
			require.True(t, time.Now().Before(end), "%d requests found no descriptor", refused)
			if conn == nil {
				conn, in = r.dial(t)
				open(1)
				giveBack = takeDescriptors(t)
			}
			res, err := ask()
			if err != nil { // the gateway closed this idle connection to get a descriptor
				unanswered++
				giveBack()
				require.NoError(t, conn.Close())
				open(0)
				conn = nil
				continue
			}
			if res.StatusCode == http.StatusOK { // the gateway closed another connection to get a descriptor
				continue
			}
			refused++
			require.Equal(t, "gateway_exhausted", res.Header.Get("Windlass-Error"))
			require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
			require.Equal(t, "1", res.Header.Get("Retry-After"))
		}
		giveBack()
		res, err := ask()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
		// A connection may be closed while its request is refused. Such a refusal is counted, and its answer is lost.
		require.Eventually(t, func() bool {
			n := int(r.series(t)["windlass_gateway_requests_total app=echo,app_id=app_1,code=503,version=,windlass_deployment="])
			return n >= requests && n <= requests+unanswered
		}, patience, 5*time.Millisecond)
	})
}
