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

// BenchmarkUpdateOfOneRouteAmong5000 changes one route after the other, 20 a second, of a table
// of 5,000 routes and 20,000 instances while clients ask for all of them: p50-ms and p99-ms of an
// update are from the agent's having it to its being told that it is served; requests and
// p99 of a request while there are updates are ratios to those of the seconds before.
//
// heap_MiB is what the table adds to the process's heap, garbage aside, once the gateway serves
// all of it; heap_MiB-before the same when its routes have had requests, so that there are series
// of all, and heap_MiB-after when there were updates, too. rss_MiB is all that the process has then,
// which is agent, instances and clients, too.
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
				// The first of them is another process in every second generation.
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
	seen.since(before) // connections are made
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

// BenchmarkRequests is a request with a few fields and its answer, on connections that are kept, by
// each engine. Client and instance are part of it.
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

// heapMiB is the heap of the process without garbage.
func heapMiB() float64 {
	runtime.GC()
	runtime.GC() // what pools keep is gone after the second
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// rssMiB is what memory the process has; only Linux tells.
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

// load is what clients see.
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

// since is what is seen in the time that comes.
func (l *load) since(d time.Duration) figures {
	l.begin()
	<-time.After(d)
	return l.end(d)
}
