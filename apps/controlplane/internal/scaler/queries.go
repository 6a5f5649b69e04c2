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

// Measurer queries Prometheus. Its queries and the queries of checks of rollouts share the workspace's slots.
// It returns one measurement for each measure, in the same order.
type Measurer interface {
	Measure(ctx context.Context, due []plan.Measure) []plan.Measurement
}

const (
	// askEvery is the time between two queries of a metric. askAgain is the time if the metric has no result, or its
	// result is too old.
	askEvery = 15 * time.Second
	askAgain = time.Minute
	// freshFor is how long a result counts: two intervals between queries, and the time that the queries take.
	freshFor = 45 * time.Second
	// leastWindow is the shortest {{window}}, because rates need several scrapes.
	leastWindow = time.Minute
	// maxProblem is the maximum size of a problem in bytes. An error about a query repeats the query.
	maxProblem = 500
)

// result is the newest answer to a query.
type result struct {
	value float64
	// at is when value was measured; zero: never.
	at time.Time
	// problem says why there is no newer value, empty for none.
	problem string
	// next is the time of the next query.
	next time.Time
}

// isRecent reports whether the value is new enough.
func (r result) isRecent(now time.Time) bool { return !r.at.IsZero() && now.Sub(r.at) < freshFor }

// metricQuery is the query of a metric, with its window. Roles of a pool may have the same query with different windows,
// and then each role has its own result.
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

// runQueries runs the queries of all metrics that are due, until ctx ends. The queries of a workspace do not wait for those
// of other workspaces.
func (s *Service) runQueries(ctx context.Context, holds func(regionID string) bool) {
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
		for workspace, due := range s.dueQueries(time.Now(), holds) {
			asking.Go(func() {
				measures := make([]plan.Measure, len(due))
				for i, q := range due {
					measures[i] = q.Measure
				}
				s.noteAnswers(workspace, due, s.cfg.Metrics.Measure(ctx, measures), time.Now())
			})
		}
	}
}

// dueQueries returns the queries to ask now, by workspace, and adds their workspaces to s.asking.
func (s *Service) dueQueries(now time.Time, holds func(regionID string) bool) map[string][]query {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]query{}
	for at, t := range s.targets {
		a := s.apps[at.app]
		if a == nil || !a.scalesIn(at.region) || s.asking[a.WorkspaceID] || !holds(at.region) {
			continue
		}
		for key := range a.queriesIn(at.region) {
			if now.Before(t.results[key].next) {
				continue
			}
			q, err := queryOf(a, at, key)
			if err != nil {
				// The API checks queries. A query with other variables can only come from a newer release.
				t.keepResult(key, result{problem: err.Error(), next: now.Add(askAgain)})
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

// queriesIn returns the set of queries for the app's metrics in the region.
func (a *app) queriesIn(regionID string) map[metricQuery]bool {
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

// noteAnswers stores the answers. A query without an answer keeps its last result until that is too old.
func (s *Service) noteAnswers(workspace string, queries []query, answers []plan.Measurement, now time.Time) {
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
		if r.isRecent(now) {
			r.next = now.Add(askEvery) // even after a failure, so that one failed query does not make the metric missing
		}
		t.keepResult(q.metricQuery, r)
	}
}

// problemOf says why the figure is not a valid value of a metric, empty if it is valid. A missing value never counts
// as 0.
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

func (t *target) keepResult(key metricQuery, r result) {
	if t.results == nil {
		t.results = map[metricQuery]result{}
	}
	t.results[key] = r
}

// forgetResults drops the results of queries that are not in wanted.
func (t *target) forgetResults(wanted map[metricQuery]bool) {
	maps.DeleteFunc(t.results, func(key metricQuery, _ result) bool { return !wanted[key] })
}

// freshResults returns the policy's results that are new enough, by query.
func (t *target) freshResults(p *scaling.Policy, now time.Time) map[string]float64 {
	out := map[string]float64{}
	for _, m := range p.Metrics {
		if r := t.results[metricQueryOf(p, m.Query)]; m.Type == scaling.Prometheus && r.isRecent(now) {
			out[m.Query] = r.value
		}
	}
	return out
}

// addProblems adds to the shown decision why metrics of the policy are missing.
func (t *target) addProblems(shown *windlassv1.RegionScaling, a *app, p *scaling.Policy, wants []scaling.Want) {
	for i, want := range wants {
		switch {
		case !want.Missing:
		case want.Metric.Type == scaling.Prometheus:
			shown.Wants[i].Problem = t.results[metricQueryOf(p, want.Metric.Query)].problem
		case scaling.LacksSignal(want.Metric.Type, a.EngineMetrics):
			// After a rollback, an engine may lack metrics of a policy that was made for the engine of a later version.
			shown.Wants[i].Problem = fmt.Sprintf("no preset names a metric for it in the engine of v%d", a.Version)
		default:
			shown.Wants[i].Problem = t.problems[string(want.Metric.Type)]
		}
	}
}
