package scaler

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Measurer queries Prometheus. These queries and those for the checks of rollouts share the workspace's slots.
// It returns one measurement for each measure, in the same order.
type Measurer interface {
	Measure(ctx context.Context, due []plan.Measure) []plan.Measurement
}

const (
	// askEvery is the time between two queries of a metric. It is askAgain for a metric whose result does not count
	// any more, or that had none.
	askEvery = 15 * time.Second
	askAgain = time.Minute
	// freshFor is how long a result counts: for two queries, and the time that they take.
	freshFor = 45 * time.Second
	// leastWindow is the shortest {{window}}: rates need several scrapes.
	leastWindow = time.Minute
	// maxProblem is how many bytes of a problem are kept. An error about a query repeats the query.
	maxProblem = 500
)

// result is the newest answer to a query.
type result struct {
	value float64
	// at is when value was measured; zero: never.
	at time.Time
	// problem says why there is no newer value, empty for none.
	problem string
	// next is when the query is asked again.
	next time.Time
}

// counts reports whether the value is new enough.
func (r result) counts(now time.Time) bool { return !r.at.IsZero() && now.Sub(r.at) < freshFor }

// metricQuery is the query of a metric with the window for it. Roles of a pool may have the same query with different windows,
// and then each has a result of its own.
type metricQuery struct {
	text   string
	window time.Duration
}

// metricQueryOf returns the query of a metric of the policy.
func metricQueryOf(p *scaling.Policy, text string) metricQuery {
	return metricQuery{text, max(p.Up.Window, leastWindow)}
}

// query is a query that is due.
type query struct {
	at appRegion
	metricQuery
	plan.Measure
}

// ask runs the queries of all metrics that are due, until ctx ends. The queries of a workspace do not wait for those
// of other workspaces.
func (s *Service) ask(ctx context.Context, holds func(regionID string) bool) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for workspace, due := range s.due(time.Now(), holds) {
			asking.Go(func() {
				measures := make([]plan.Measure, len(due))
				for i, q := range due {
					measures[i] = q.Measure
				}
				s.answered(workspace, due, s.cfg.Metrics.Measure(ctx, measures), time.Now())
			})
		}
	}
}

// due returns the queries to ask now, by workspace, and adds their workspaces to s.asking.
func (s *Service) due(now time.Time, holds func(regionID string) bool) map[string][]query {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]query{}
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil || !a.scales(at.region) || s.asking[a.WorkspaceID] || !holds(at.region) {
			continue
		}
		for key := range a.queries(at.region) {
			if now.Before(t.results[key].next) {
				continue
			}
			q, err := queryOf(a, at, key)
			if err != nil {
				// The API checks queries. Only a newer release can have written one with other variables.
				t.keep(key, result{problem: err.Error(), next: now.Add(askAgain)})
				continue
			}
			out[a.WorkspaceID] = append(out[a.WorkspaceID], q)
		}
	}
	for workspace := range out {
		s.asking[workspace] = true
	}
	return out
}

// queries returns the set of queries by which the app scales in the region.
func (a *app) queries(regionID string) map[metricQuery]bool {
	out := map[metricQuery]bool{}
	add := func(p *scaling.Policy) {
		for _, m := range p.Metrics {
			if m.Type == scaling.Prometheus {
				out[metricQueryOf(p, m.Query)] = true
			}
		}
	}
	if p := a.policies[regionID]; p != nil {
		add(p)
	}
	for i := range a.roles[regionID] {
		add(&a.roles[regionID][i].Policy)
	}
	return out
}

func queryOf(a *app, at appRegion, key metricQuery) (query, error) {
	region := a.Regions[at.region]
	if len(region.MadeFor) == 0 {
		return query{}, fmt.Errorf("no deployment of the app is in region %s", region.Name)
	}
	expanded, err := analysis.Expand(key.text, analysis.Subject{
		App: a.Name, AppID: a.AppID, Deployment: region.MadeFor[0], MadeFor: region.MadeFor[1:], Version: a.Version,
		Region: region.Name, Window: key.window,
	})
	return query{at: at, metricQuery: key, Measure: plan.Measure{
		WorkspaceID: a.WorkspaceID, RegionID: at.region, Check: "scaling", Queries: analysis.Queries{New: expanded, Within: region.MadeFor},
	}}, err
}

// answered notes the answers. A query without an answer keeps its last result until that is too old.
func (s *Service) answered(workspace string, queries []query, answers []plan.Measurement, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, workspace)
	for i, q := range queries {
		t := s.targets[q.at]
		if t == nil {
			continue
		}
		var f analysis.Figures
		if i < len(answers) {
			f = answers[i].Figures
		}
		r := t.results[q.metricQuery]
		if r.problem = problemOf(f); r.problem == "" {
			r.value, r.at = *f.New, now
		}
		r.next = now.Add(askAgain)
		if r.counts(now) {
			r.next = now.Add(askEvery) // so that one failed query does not make the metric missing
		}
		t.keep(q.metricQuery, r)
	}
}

// problemOf says why the figure is not a value of a metric, empty if it is one. A value that is missing is
// never 0.
func problemOf(f analysis.Figures) string {
	switch {
	case f.Problem != "":
		return strings.ToValidUTF8(f.Problem[:min(len(f.Problem), maxProblem)], "")
	case f.New == nil:
		return "the query has no result"
	case math.IsNaN(*f.New) || math.IsInf(*f.New, 0):
		return "the result is not a finite number"
	case *f.New < 0:
		return "the result is negative"
	}
	return ""
}

func (t *target) keep(key metricQuery, r result) {
	if t.results == nil {
		t.results = map[metricQuery]result{}
	}
	t.results[key] = r
}

// forgetResults drops the results of queries that are not among the wanted ones.
func (t *target) forgetResults(wanted map[metricQuery]bool) {
	maps.DeleteFunc(t.results, func(key metricQuery, _ result) bool { return !wanted[key] })
}

// fresh returns the results that count for the policy, by query.
func (t *target) fresh(p *scaling.Policy, now time.Time) map[string]float64 {
	out := map[string]float64{}
	for _, m := range p.Metrics {
		if r := t.results[metricQueryOf(p, m.Query)]; m.Type == scaling.Prometheus && r.counts(now) {
			out[m.Query] = r.value
		}
	}
	return out
}

// addProblems says in the shown decision of the policy why metrics are missing.
func (t *target) addProblems(shown *windlassv1.RegionScaling, a *app, p *scaling.Policy, wants []scaling.Want) {
	for i, want := range wants {
		switch {
		case !want.Missing:
		case want.Metric.Type == scaling.Prometheus:
			shown.Wants[i].Problem = t.results[metricQueryOf(p, want.Metric.Query)].problem
		case scaling.LacksSignal(want.Metric.Type, a.EngineMetrics):
			// A rollback may bring back another engine under a policy that fitted the engine of a later version.
			shown.Wants[i].Problem = fmt.Sprintf("no preset names a metric for it in the engine of v%d", a.Version)
		default:
			shown.Wants[i].Problem = t.problems[string(want.Metric.Type)]
		}
	}
}
