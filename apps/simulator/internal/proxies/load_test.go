package proxies

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWrk_FiguresAreRead(t *testing.T) {
	const said = `Running 2s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.50ms    1.02ms  20.63ms   89.50%
    Req/Sec    42.91k     2.43k   46.76k    70.00%
  Latency Distribution
     50%    1.31ms
     75%    1.77ms
     90%    2.45ms
     99%    5.16ms
  85421 requests in 2.00s, 31.12MB read
Requests/sec:  42707.40
Transfer/sec:     15.56MB
`
	seen, err := readWrk([]byte(said))
	require.NoError(t, err)
	require.Equal(t, Seen{PerSecond: 42707.40, P99: 5160 * time.Microsecond}, seen)

	_, err = readWrk([]byte(said + "  Non-2xx or 3xx responses: 3\n"))
	require.ErrorContains(t, err, "requests failed: Non-2xx or 3xx responses: 3")
	_, err = readWrk([]byte("unable to connect"))
	require.ErrorContains(t, err, "no figures")
}

func TestStreams_AreComplete(t *testing.T) {
	at, stop, err := serveStreams(t.Context(), 100)
	require.NoError(t, err)
	defer func() { require.NoError(t, stop()) }()
	p := &Proxy{Streams: at}
	const window = 50 * time.Millisecond
	begin := time.Now()
	seen, err := p.Events(t.Context(), window, 4, 100)
	took := time.Since(begin)
	require.NoError(t, err)
	require.GreaterOrEqual(t, seen.Events, 4*100, "each client reads one stream or more")
	require.Zero(t, seen.Events%100, "each stream has all events")
	require.Less(t, seen.PerSecond, float64(seen.Events)/window.Seconds())
	require.GreaterOrEqual(t, seen.PerSecond, float64(seen.Events)/took.Seconds())
	require.Less(t, seen.P99, took)
	require.Positive(t, seen.P99)

	_, err = p.Events(t.Context(), window, 4, 101)
	require.ErrorContains(t, err, "a stream has 100 of 101 events")
}

func TestPace_IsKept(t *testing.T) {
	const window, perSecond = 500 * time.Millisecond, 200
	at, stop, err := serveStreams(t.Context(), 1)
	require.NoError(t, err)
	seen, err := (&Proxy{Address: at}).Paced(t.Context(), window, 7, perSecond)
	require.NoError(t, err)
	require.Positive(t, seen.P99)
	require.Positive(t, seen.PerSecond)
	require.LessOrEqual(t, seen.PerSecond, float64(perSecond)*1.1)
	require.NoError(t, stop())
	_, err = (&Proxy{Address: at}).Paced(t.Context(), window, 7, perSecond)
	require.Error(t, err)
}
