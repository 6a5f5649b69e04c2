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

// query is a query that is due.
type query struct {
	at   place
	text string
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
		for text, window := range a.queries(at.region) {
			if now.Before(t.results[text].next) {
				continue
			}
			q, err := queryOf(a, at, text, window)
			if err != nil {
				// The API checks queries. Only a newer release can have written one with other variables.
				t.keep(text, result{problem: err.Error(), next: now.Add(askAgain)})
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

// queries returns the queries by which the app scales in the region, each with its window. A query of several roles
// has the longest of the roles' windows.
func (a *app) queries(regionID string) map[string]time.Duration {
	out := map[string]time.Duration{}
	add := func(p *scaling.Policy) {
		for _, m := range p.Metrics {
			if m.Type == scaling.Prometheus {
				out[m.Query] = max(out[m.Query], p.Up.Window)
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

func queryOf(a *app, at place, text string, window time.Duration) (query, error) {
	region := a.Regions[at.region]
	if len(region.MadeFor) == 0 {
		return query{}, fmt.Errorf("no deployment of the app is in region %s", region.Name)
	}
	expanded, err := analysis.Expand(text, analysis.Subject{
		App: a.Name, AppID: a.AppID, Deployment: region.MadeFor[0], MadeFor: region.MadeFor[1:], Version: a.Version,
		Region: region.Name, Window: max(window, leastWindow),
	})
	return query{at: at, text: text, Measure: plan.Measure{
		WorkspaceID: a.WorkspaceID, RegionID: at.region, Check: "scaling", Queries: analysis.Queries{New: expanded, Within: region.MadeFor},
	}}, err
}

// answered notes the answers. A query without an answer keeps its last result until that is too old.
func (s *Service) answered(workspace string, asked []query, answers []plan.Measurement, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, workspace)
	for i, q := range asked {
		t := s.targets[q.at]
		if t == nil {
			continue
		}
		var f analysis.Figures
		if i < len(answers) {
			f = answers[i].Figures
		}
		r := t.results[q.text]
		if r.problem = problemOf(f); r.problem == "" {
			r.value, r.at = *f.New, now
		}
		r.next = now.Add(askAgain)
		if r.counts(now) {
			r.next = now.Add(askEvery) // so that one failed query does not make the metric missing
		}
		t.keep(q.text, r)
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

func (t *target) keep(query string, r result) {
	if t.results == nil {
		t.results = map[string]result{}
	}
	t.results[query] = r
}

// fresh returns the results that count, by query. It forgets the queries that are not among asked.
func (t *target) fresh(asked map[string]time.Duration, now time.Time) map[string]float64 {
	maps.DeleteFunc(t.results, func(query string, _ result) bool { _, has := asked[query]; return !has })
	out := map[string]float64{}
	for query, r := range t.results {
		if r.counts(now) {
			out[query] = r.value
		}
	}
	return out
}
