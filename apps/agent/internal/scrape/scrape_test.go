package scrape_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/scrape"
)

var vllm = map[string]string{
	scrape.Queue: "vllm:num_requests_waiting", scrape.Running: "vllm:num_requests_running", scrape.Cache: "vllm:kv_cache_usage_perc",
}

func at(t *testing.T, handler http.HandlerFunc) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func serves(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, text) }
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want scrape.Signals
	}{
		"an engine": {
			"# HELP vllm:num_requests_waiting x\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 3.0\n" +
				"vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nother 1\n",
			scrape.Signals{scrape.Queue: 3, scrape.Running: 2, scrape.Cache: 0.5},
		},
		"several engines in one server": {
			"vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 1\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.4\n",
			scrape.Signals{scrape.Queue: 4, scrape.Cache: 0.30000000000000004},
		},
		"no valid figures":       {"vllm:num_requests_waiting NaN\nvllm:num_requests_running -1\nvllm:kv_cache_usage_perc +Inf\n", scrape.Signals{}},
		"no such metrics":        {"up 1\n", scrape.Signals{}},
		"nothing":                {"", scrape.Signals{}},
		"lines in other formats": {"{\"json\": true}\nvllm:num_requests_waiting 1\n", scrape.Signals{scrape.Queue: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := scrape.Parse(strings.NewReader(c.text), vllm)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	for name, text := range map[string]string{
		"a broken line":  "vllm:num_requests_waiting{ 1\n",
		"a long line":    "vllm:num_requests_waiting{a=\"" + strings.Repeat("x", 100<<10) + "\"} 1\n",
		"a large answer": strings.Repeat("other 1\n", 1<<20),
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			_, err := scrape.Parse(strings.NewReader(text), vllm)
			require.Error(t, err)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("vllm:num_requests_waiting{a=\"b\"} 1e3 5\n")
	f.Add("# TYPE vllm:kv_cache_usage_perc histogram\nvllm:kv_cache_usage_perc_bucket{le=\"1\"} 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := scrape.Parse(strings.NewReader(text), vllm)
		if err != nil {
			return
		}
		for signal, v := range got {
			if !(v >= 0) || math.IsInf(v, 0) {
				t.Fatalf("%s is %v", signal, v)
			}
		}
	})
}

func TestScrape(t *testing.T) {
	s := scrape.New(func() float64 { return 0 })
	one := func(address string) map[string]scrape.Signals {
		return s.Scrape(t.Context(), []scrape.Target{{InstanceID: "ins_1", Address: address, Path: "/metrics", Metrics: vllm}})
	}
	t.Run("reads the metrics of each instance", func(t *testing.T) {
		got := s.Scrape(t.Context(), []scrape.Target{
			{InstanceID: "ins_1", Address: at(t, serves("vllm:num_requests_waiting 1\n")), Path: "/metrics", Metrics: vllm},
			{InstanceID: "ins_2", Address: at(t, http.NotFound), Path: "/metrics", Metrics: vllm},
			{InstanceID: "ins_3", Address: at(t, serves("vllm:num_requests_waiting 3\n")), Path: "/metrics", Metrics: vllm},
		})
		require.Equal(t, map[string]scrape.Signals{"ins_1": {scrape.Queue: 1}, "ins_3": {scrape.Queue: 3}}, got)
	})
	t.Run("follows no redirect, uses no proxy and resolves no name", func(t *testing.T) {
		var asked atomic.Int32
		other := at(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			_, _ = fmt.Fprint(w, "vllm:num_requests_waiting 1\n")
		})
		require.Empty(t, one(at(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+other+"/metrics", http.StatusFound)
		})))
		t.Setenv("HTTP_PROXY", "http://"+other)
		require.Empty(t, one("192.0.2.1:0"))
		_, port, _ := strings.Cut(other, ":")
		require.Empty(t, one("localhost:"+port))
		mine := at(t, http.NotFound)
		for _, path := range []string{"@" + other + "/metrics", "//" + other + "/metrics", "http://" + other + "/metrics", "", "metrics"} {
			require.Empty(t, s.Scrape(t.Context(), []scrape.Target{{InstanceID: "ins_1", Address: mine, Path: path, Metrics: vllm}}), path)
		}
		require.Zero(t, asked.Load())
	})
	t.Run("connects to no address that an instance cannot have", func(t *testing.T) {
		for _, address := range []string{"169.254.169.254:80", "0.0.0.0:80", "[fe80::1]:80", "224.0.0.1:80", "", "nonsense"} {
			begin := time.Now()
			require.Empty(t, one(address), address)
			require.Less(t, time.Since(begin), time.Second, address)
		}
	})
	t.Run("stops reading an answer that does not end", func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		hangs := at(t, func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); <-release })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.Empty(t, s.Scrape(ctx, []scrape.Target{{InstanceID: "ins_1", Address: hangs, Path: "/metrics", Metrics: vllm}}))
	})
	t.Run("scrapes a limited number of instances at a time", func(t *testing.T) {
		var now, most atomic.Int32
		release := make(chan struct{})
		address := at(t, func(w http.ResponseWriter, _ *http.Request) {
			n := now.Add(1)
			for before := most.Load(); n > before; before = most.Load() {
				if most.CompareAndSwap(before, n) {
					break
				}
			}
			<-release
			now.Add(-1)
			_, _ = fmt.Fprint(w, "vllm:num_requests_waiting 1\n")
		})
		var targets []scrape.Target
		for n := range 100 {
			targets = append(targets, scrape.Target{InstanceID: fmt.Sprint(n), Address: address, Path: "/metrics", Metrics: vllm})
		}
		got := make(chan map[string]scrape.Signals, 1)
		go func() { got <- s.Scrape(t.Context(), targets) }()
		require.Eventually(t, func() bool { return now.Load() == 16 }, time.Minute, time.Millisecond)
		close(release)
		require.NotEmpty(t, <-got)
		require.EqualValues(t, 16, most.Load())
	})
}
