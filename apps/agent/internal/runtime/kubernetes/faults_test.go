package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// proxy is between an agent and the API server. It counts requests, and can inject faults.
type proxy struct {
	forward *httputil.ReverseProxy
	url     string

	mu sync.Mutex
	// fault answers a request and returns true, or returns false to let it pass. If fault is nil, all
	// requests pass.
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
	seen  int
	calls map[string]int
	// cut ends the watches that are open.
	cut     context.CancelFunc
	watches context.Context
}

func newProxy(t *testing.T, to *rest.Config) *proxy {
	t.Helper()
	target, err := url.Parse(to.Host)
	require.NoError(t, err)
	transport, err := rest.TransportFor(to)
	require.NoError(t, err)
	p := &proxy{calls: map[string]int{}, forward: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	p.watches, p.cut = context.WithCancel(context.Background())
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.cutWatches()
		server.Close()
	})
	p.url = server.URL
	return p
}

func (p *proxy) client() *rest.Config { return &rest.Config{Host: p.url} }

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.calls[callOf(r)]++
	p.seen++
	fault, n, watches := p.fault, p.seen, p.watches
	p.mu.Unlock()
	if fault != nil && fault(w, r, n) {
		return
	}
	if isWatch(r) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		forget := context.AfterFunc(watches, cancel)
		defer forget()
		r = r.WithContext(ctx)
	}
	p.forward.ServeHTTP(w, r)
}

func (p *proxy) cutWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.watches, p.cut = context.WithCancel(context.Background())
}

// set injects the fault from now on, or none if it is nil.
func (p *proxy) set(fault func(http.ResponseWriter, *http.Request, int) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// count returns the calls since the last count. changes are the calls that change objects other
// than events. reads are the calls that read objects, open watches or fill caches.
func (p *proxy) count() (changes, reads int, all map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, p.calls = p.calls, map[string]int{}
	for call, n := range all {
		if strings.HasPrefix(call, "GET") {
			reads += n
		} else if !strings.Contains(call, "events") {
			changes += n
		}
	}
	return changes, reads, all
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, header ...string) bool {
	for i := 0; i+1 < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: "the proxy says so",
	})
	return true
}

func changes(r *http.Request) bool { return r.Method != http.MethodGet }

// faults are faults of the API server while five deployments get another template. most is the
// maximum number of changing calls until all deployments are as they should be. Without a fault,
// each deployment needs seven calls. maxReads is the maximum number of reads.
var faults = []struct {
	name string
	// lasts is the duration of the fault.
	lasts time.Duration
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
	// cuts reports whether watches are cut repeatedly during the fault.
	cuts bool
	most int
}{
	{name: "none", most: 40},
	{name: "down for a minute", lasts: time.Minute, cuts: true, most: 75, fault: func(http.ResponseWriter, *http.Request, int) bool {
		panic(http.ErrAbortHandler)
	}},
	{name: "a second for each call", lasts: 20 * time.Second, most: 40, fault: func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		select {
		case <-time.After(time.Second):
		case <-r.Context().Done():
		}
		return false
	}},
	{name: "conflict, each second change", lasts: 6 * time.Second, most: 80, fault: func(w http.ResponseWriter, r *http.Request, n int) bool {
		return changes(r) && n%2 == 0 && refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	}},
	{name: "too many requests", lasts: 8 * time.Second, most: 75, fault: func(w http.ResponseWriter, r *http.Request, _ int) bool {
		return changes(r) && refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Retry-After", "2")
	}},
	{name: "internal errors, two in three", lasts: 8 * time.Second, most: 90, fault: func(w http.ResponseWriter, _ *http.Request, n int) bool {
		return n%3 != 0 && refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	}},
	{name: "watches cut", lasts: 8 * time.Second, cuts: true, most: 40},
	{name: "watches expired", lasts: 8 * time.Second, cuts: true, most: 40, fault: func(w http.ResponseWriter, r *http.Request, _ int) bool {
		return isWatch(r) && refuse(w, http.StatusGone, metav1.StatusReasonExpired)
	}},
}

// maxReads returns how many reads a fault of this length may cause. There are eleven watches. A
// watch that keeps ending is opened at most ten times in the first ten seconds. After that, the
// delays are random between 0.5 s and 3 or 4 s, which makes less than one read in 1.2 s.
func maxReads(lasts time.Duration) int {
	return 11 * (10 + int(max(0, lasts-10*time.Second)/(1200*time.Millisecond)))
}

//nolint:tparallel // there is one proxy, and it injects one fault at a time
func TestFaults_RegionConvergesWithFewCalls(t *testing.T) {
	t.Parallel()
	const n = 5
	h := newHarness(t)
	p := newProxy(t, h.cfg.Client)
	h.cfg.Client = p.client()
	rt := h.open(t)
	generation := int64(0)
	change := func(i int) runtime.Assignment {
		a := assignment(fmt.Sprintf("dep_faulty%d", i), 1, func(s *windlassv1.DeploymentSpec) {
			s.Env = map[string]string{"GENERATION": fmt.Sprint(generation)}
		})
		a.Generation, a.TemplateHash = generation, fmt.Sprint("template-", generation)
		return a
	}
	converge := func(t *testing.T) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				a := change(i)
				retry := backoff.Policy{Min: time.Second, Max: 4 * time.Second} // the reconciler retries like this in an outage, one deployment at a time
				for attempt := 0; rt.Apply(t.Context(), a) != nil; attempt++ {
					if backoff.Sleep(t.Context(), retry.Delay(attempt, nil)) != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		until(t, "all ready with the newest template", func() bool {
			seen, err := rt.Observe(t.Context())
			require.NoError(t, err)
			good := 0
			for _, d := range seen.Deployments {
				if len(d.Instances) == 1 && d.Instances[0].Status == ready && d.Instances[0].TemplateHash == fmt.Sprint("template-", generation) {
					good++
				}
			}
			return good == n
		})
		// Old variables are pruned last.
		until(t, "the removal of the last old Secret", func() bool {
			secrets := 0
			for _, o := range h.objects(t) {
				if o.Kind == "Secret" {
					secrets++
				}
				if o.Kind == "Deployment" && strings.Contains(o.Annotations["windlass.run/secrets"], ",") && strings.Count(o.Annotations["windlass.run/secrets"], ",") > 1 {
					return false
				}
			}
			return secrets == 2*n
		})
	}
	generation++
	converge(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			_, _, _ = p.count()
			generation++
			p.set(f.fault)
			if f.cuts {
				p.cutWatches()
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var wg sync.WaitGroup
			wg.Go(func() {
				defer p.set(nil)
				for end := time.Now().Add(f.lasts); time.Now().Before(end) && ctx.Err() == nil; {
					_ = backoff.Sleep(ctx, 300*time.Millisecond)
					if f.cuts {
						p.cutWatches()
					}
				}
			})
			converge(t)
			stop()
			wg.Wait()
			made, reads, all := p.count()
			t.Logf("%d changing calls, %d reads: %s", made, reads, described(all))
			require.LessOrEqual(t, made, f.most)
			require.LessOrEqual(t, reads, maxReads(f.lasts))
			h.sound(t)
		})
	}
	// When all deployments are as they should be and the last watch is open again, the agent makes
	// no call. A reflector that was cut off waits longer each time before it opens its watch.
	_, _, _ = p.count()
	for i := range n {
		require.NoError(t, rt.Apply(t.Context(), change(i)))
	}
	asked := time.Now()
	until(t, "three seconds without a call", func() bool {
		made, reads, all := p.count()
		require.Zero(t, made, described(all))
		if reads > 0 {
			asked = time.Now()
		}
		return time.Since(asked) > 3*time.Second
	})
}

func described(calls map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(calls)) {
		out = append(out, fmt.Sprintf("%s %d", k, calls[k]))
	}
	return strings.Join(out, ", ")
}
