package observability

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	root  = "../.."
	files = root + "/deployments/observability"
)

var update = flag.Bool("update", false, "write the dashboards")

func knownSeries(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/reference/metrics.md")
	require.NoError(t, err)
	known := documented(string(page))
	require.True(t, known["windlass_gateway_request_seconds_bucket"] && known["windlass_regions"])
	return known
}

func rules(t *testing.T, path string) []rulefmt.RuleGroup {
	t.Helper()
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation)
	require.Empty(t, errs)
	return groups.Groups
}

// recorded adds the names of recording rules to known.
func recorded(known map[string]bool, groups []rulefmt.RuleGroup) {
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				known[r.Record] = true
			}
		}
	}
}

func TestRules(t *testing.T) {
	groups := rules(t, files+"/rules/windlass.yaml")
	known := knownSeries(t)
	recorded(known, groups)
	page, err := os.ReadFile(root + "/docs/guides/alerts.md")
	require.NoError(t, err)
	tested := map[string]bool{}
	for _, f := range testFiles(t) {
		for _, test := range f.Tests {
			for _, a := range test.Alerts {
				tested[a.Alert] = tested[a.Alert] || len(a.Want) > 0
			}
		}
	}
	var alerts []string
	for _, g := range groups {
		for _, r := range g.Rules {
			names, err := metricsOf(r.Expr)
			require.NoError(t, err)
			for _, name := range names {
				require.True(t, known[name], "%s%s reads %s, which docs/reference/metrics.md does not have", r.Record, r.Alert, name)
			}
			if r.Alert == "" {
				continue
			}
			alerts = append(alerts, r.Alert)
			require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["description"], r.Alert)
			require.True(t, tested[r.Alert], "no test makes %s fire", r.Alert)
		}
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(Windlass\\w+)` \\| (page|ticket) \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, m[1])
	}
	require.ElementsMatch(t, alerts, rows, "docs/guides/alerts.md has each alert once")
}

func testFiles(t *testing.T) map[string]File {
	t.Helper()
	paths, err := filepath.Glob(files + "/tests/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	out := map[string]File{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var f File
		require.NoError(t, yaml.Unmarshal(text, &f), path)
		out[path] = f
	}
	return out
}

func TestAlerts(t *testing.T) {
	for path, f := range testFiles(t) {
		var groups []rulefmt.RuleGroup
		for _, name := range f.RuleFiles {
			groups = append(groups, rules(t, filepath.Join(filepath.Dir(path), name))...)
		}
		for _, test := range f.Tests {
			t.Run(test.Name, func(t *testing.T) { runTest(t, groups, f, test) })
		}
	}
}

func runTest(t *testing.T, groups []rulefmt.RuleGroup, f File, test Test) {
	e, err := newEvaluator(groups, test)
	require.NoError(t, err)
	end := horizon(test)
	for at := time.Duration(0); at <= end; at += time.Duration(f.EvaluationInterval) {
		firing, err := e.step(t.Context(), start.Add(at))
		require.NoError(t, err)
		for _, want := range test.Alerts {
			if time.Duration(want.At) != at {
				continue
			}
			got := firing[want.Alert]
			require.Len(t, got, len(want.Want), "%s at %s: %v", want.Alert, at, got)
			for i, w := range want.Want {
				require.Equal(t, w, got[i], "%s at %s", want.Alert, at)
			}
		}
	}
}

func TestDashboards(t *testing.T) {
	known := knownSeries(t)
	recorded(known, rules(t, files+"/rules/windlass.yaml"))
	var names []string
	for _, d := range dashboards {
		names = append(names, d.Name+".json")
		path := filepath.Join(files, "dashboards", d.Name+".json")
		want, err := renderJSON(d)
		require.NoError(t, err)
		require.True(t, json.Valid(want))
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, want, 0o644))
		}
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "run: go test ./.ci/observability -run Dashboards -update")
		for _, p := range d.Panels {
			require.NotEmpty(t, p.Queries, p.Title)
			for _, q := range p.Queries {
				// Grafana replaces its variables before Prometheus sees the query.
				reads, err := metricsOf(strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"))
				require.NoError(t, err, p.Title)
				require.NotEmpty(t, reads, p.Title)
				for _, name := range reads {
					require.True(t, known[name], "%s, %s reads %s, which docs/reference/metrics.md does not have", d.Title, p.Title, name)
				}
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(files, "dashboards"))
	require.NoError(t, err)
	var present []string
	for _, e := range entries {
		present = append(present, e.Name())
	}
	slices.Sort(names)
	require.Equal(t, names, present)
}
