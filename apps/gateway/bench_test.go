package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// BenchmarkUpdateOfOneRouteAmong5000 changes 20 routes a second, one after the other, in a table of 5,000
// routes and 20,000 instances, while clients send requests to all routes.
//
// p50-ms and p99-ms are the time from an update at the agent to its acknowledgement by the gateway.
// requests-ratio and request-p99-ratio compare the requests during the updates with the seconds before.
//
// The heap metrics have no garbage. heap_MiB is the memory that the table adds to the process's heap.
// heap_MiB-before includes the series of all routes, after all routes had requests. heap_MiB-after is the
// same after the updates. rss_MiB is the memory of the whole process, with agent, instances and clients.
func BenchmarkUpdateOfOneRouteAmong5000(b *testing.B) {
	const (
		routes, perRoute, clients = 5000, 4, 4
		pace                      = 50 * time.Millisecond
	)
	r := start(b, nil)
	r.client.Transport.(*http.Transport).MaxIdleConnsPerHost = clients
	backends := []string{instance(b, named("a")), instance(b, named("b"))}
	apps := make([]*gatewayv1.AppRoutes, routes)
	appOf := func(n, generation int) *gatewayv1.AppRoutes {
		app := echo()
		app.AppId, app.Hosts, app.Generation = fmt.Sprint("app_", n), []string{host(n)}, int64(generation)
		for i := range perRoute {
			app.Targets[0].Instances = append(app.Targets[0].Instances, &gatewayv1.Instance{
				InstanceId: fmt.Sprintf("ins_%d_%d", n, i), State: gatewayv1.Instance_STATE_READY,
				// In every second generation, the first instance is another process.
				Address: backends[(i+generation*(1-min(i, 1)))%2],
			})
		}
		app.Targets[0].DeploymentId = fmt.Sprint("dep_", n)
		return app
	}
	for n := range apps {
		apps[n] = appOf(n, 1)
	}
	empty := heapMiB()
	last := r.set(apps...)
	r.until(b, func() bool { return r.served[apps[routes-1].AppId] == last && len(r.health) == 0 })

	full := heapMiB()

	var seen load
	stop := make(chan struct{})
	var loading sync.WaitGroup
	for range clients {
		loading.Go(func() { seen.ask(b, r, stop) })
	}
	stopped := sync.OnceFunc(func() {
		close(stop)
		loading.Wait()
	})
	defer stopped()
	const before = 3 * time.Second
	seen.since(before) // time for the clients to connect
	quiet := seen.since(before)
	asked := heapMiB()
	took := make([]time.Duration, 0, b.N)
	seen.begin()
	begin := time.Now()
	for n := 0; b.Loop(); n++ {
		app := appOf(n%routes, 2+n/routes)
		at := time.Now()
		r.put(b, app)
		took = append(took, time.Since(at))
		<-time.After(pace)
	}
	busy := seen.end(time.Since(begin))
	stopped()
	b.ReportMetric(full-empty, "heap_MiB")
	b.ReportMetric(asked-empty, "heap_MiB-before")
	b.ReportMetric(heapMiB()-empty, "heap_MiB-after")
	if rss, ok := rssMiB(); ok {
		b.ReportMetric(rss, "rss_MiB")
	}
	slices.Sort(took)
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(millis(took[len(took)/2]), "p50-ms")
	b.ReportMetric(millis(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(quiet.rate, "requests/s-before")
	b.ReportMetric(busy.rate/quiet.rate, "requests-ratio")
	b.ReportMetric(float64(busy.p99)/float64(quiet.p99), "request-p99-ratio")
}

// BenchmarkRequests measures a request with a few fields and its answer, on connections that are kept, with
// each engine. The time includes the client and the instance.
func BenchmarkRequests(b *testing.B) {
	for _, name := range engines {
		b.Run(name, func(b *testing.B) {
			r := start(b, nil)
			r.put(b, echo(instance(b, named("answer"))))
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				for pb.Next() {
					if _, err := io.WriteString(conn, post+"User-Agent: bench\r\nAccept: */*\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
						b.Error(err)
						return
					}
					res, err := http.ReadResponse(in, nil)
					if err != nil || res.StatusCode != http.StatusOK {
						b.Error(res, err)
						return
					}
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			})
		})
	}
}

// heapMiB returns the size of the process's heap without garbage, in MiB.
func heapMiB() float64 {
	runtime.GC()
	runtime.GC() // the second collection empties pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// rssMiB returns the memory of the process in MiB. It returns false on systems other than Linux.
func rssMiB() (float64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib := 0.0
	_, err = fmt.Sscanf(rest, "%f kB", &kib)
	return kib / 1024, err == nil
}

func host(n int) string { return fmt.Sprintf("app-%d.local", n) }

// load records how long the clients' requests take.
type load struct {
	mu    sync.Mutex
	times []time.Duration
	on    atomic.Bool
}

type figures struct {
	rate float64
	p99  time.Duration
}

func (l *load) ask(tb testing.TB, r *harness, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		req, err := http.NewRequest(http.MethodGet, r.url, nil)
		if err != nil {
			tb.Error(err)
			return
		}
		req.Host = host(rand.IntN(5000))
		at := time.Now()
		res, err := r.client.Do(req)
		if err != nil {
			tb.Error(err)
			return
		}
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			tb.Errorf("status %d: %v", res.StatusCode, err)
			return
		}
		if l.on.Load() {
			l.mu.Lock()
			l.times = append(l.times, time.Since(at))
			l.mu.Unlock()
		}
	}
}

func (l *load) begin() { l.on.Store(true) }

func (l *load) end(took time.Duration) figures {
	l.on.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.times)
	f := figures{rate: float64(len(l.times)) / took.Seconds()}
	if len(l.times) > 0 {
		f.p99 = l.times[len(l.times)*99/100]
	}
	l.times = nil
	return f
}

// since records requests for the time d, and returns their figures.
func (l *load) since(d time.Duration) figures {
	l.begin()
	<-time.After(d)
	return l.end(d)
}
