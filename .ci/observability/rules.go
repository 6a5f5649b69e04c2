// Package observability checks the rules and dashboards that Windlass has for Prometheus and
// Grafana. It runs the unit tests of rules with Prometheus' own engine, checks that the metrics of
// rules and dashboards exist, and makes the dashboards.
package observability

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// File is a file of promtool's unit tests, with the fields that the tests here use.
type File struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []Test         `yaml:"tests"`
}

// Test is one test: series, and the alerts that they must raise and must not raise.
type Test struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		At    model.Duration `yaml:"eval_time"`
		Alert string         `yaml:"alertname"`
		Want  []Alert        `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

// Alert is an alert that fires.
type Alert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

// evaluator evaluates rules over the series of one test, from the time start on.
type evaluator struct {
	engine *promql.Engine
	groups []rulefmt.RuleGroup
	series memory
	// since has the time at which each pending or firing alert of a rule began.
	since map[*rulefmt.Rule]map[uint64]time.Time
}

// start is the time of a test's first sample.
var start = time.Unix(0, 0).UTC()

func newEvaluator(groups []rulefmt.RuleGroup, test Test) (*evaluator, error) {
	e := &evaluator{
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 10_000_000, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true,
			NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		}),
		groups: groups, series: memory{}, since: map[*rulefmt.Rule]map[uint64]time.Time{},
	}
	for _, s := range test.Series {
		name, values, err := parser.ParseSeriesDesc(s.Series + " " + s.Values)
		if err != nil {
			return nil, fmt.Errorf("series %s: %w", s.Series, err)
		}
		for i, v := range values {
			if !v.Omitted {
				e.series.append(name, start.Add(time.Duration(i)*time.Duration(test.Interval)), v.Value)
			}
		}
	}
	return e, nil
}

// step evaluates every rule at a time, in order, and returns the alerts that fire, by name.
func (e *evaluator) step(ctx context.Context, at time.Time) (map[string][]Alert, error) {
	firing := map[string][]Alert{}
	for i := range e.groups {
		for j := range e.groups[i].Rules {
			rule := &e.groups[i].Rules[j]
			vector, err := e.query(ctx, rule.Expr, at)
			if err != nil {
				return nil, fmt.Errorf("%s%s at %s: %w", rule.Record, rule.Alert, at.Sub(start), err)
			}
			if rule.Record != "" {
				for _, s := range vector {
					e.series.append(labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, rule.Record).Labels(), at, s.F)
				}
				continue
			}
			alerts, err := e.alerts(ctx, rule, vector, at)
			if err != nil {
				return nil, err
			}
			firing[rule.Alert] = append(firing[rule.Alert], alerts...)
		}
	}
	return firing, nil
}

func (e *evaluator) query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	q, err := e.engine.NewInstantQuery(ctx, &e.series, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	switch v := result.Value.(type) {
	case promql.Vector:
		return slices.Clone(v), nil
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V}}, nil
	}
	return nil, fmt.Errorf("%s has the type %s: a rule needs a vector", expr, result.Value.Type())
}

// alerts returns the alerts of a rule that have lasted for the duration that the rule requires.
func (e *evaluator) alerts(ctx context.Context, rule *rulefmt.Rule, vector promql.Vector, at time.Time) ([]Alert, error) {
	began := map[uint64]time.Time{}
	var firing []Alert
	for _, s := range vector {
		alert, err := e.render(ctx, rule, s, at)
		if err != nil {
			return nil, err
		}
		id := labels.FromMap(alert.Labels).Hash()
		began[id] = at
		if earlier, ok := e.since[rule][id]; ok {
			began[id] = earlier
		}
		if at.Sub(began[id]) >= time.Duration(rule.For) {
			firing = append(firing, alert)
		}
	}
	e.since[rule] = began
	return firing, nil
}

// render returns an alert with labels and annotations, as Prometheus makes them.
func (e *evaluator) render(ctx context.Context, rule *rulefmt.Rule, s promql.Sample, at time.Time) (Alert, error) {
	data := template.AlertTemplateData(s.Metric.Map(), nil, "", s)
	expand := func(text string) (string, error) {
		prefix := "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
		return template.NewTemplateExpander(ctx, prefix+text, rule.Alert, data, model.TimeFromUnixNano(at.UnixNano()),
			template.QueryFunc(e.query), nil, nil).Expand()
	}
	alert := Alert{Labels: map[string]string{}, Annotations: map[string]string{}}
	for name, value := range s.Metric.Map() {
		if name != model.MetricNameLabel {
			alert.Labels[name] = value
		}
	}
	for _, to := range []struct{ from, into map[string]string }{{rule.Labels, alert.Labels}, {rule.Annotations, alert.Annotations}} {
		for name, value := range to.from {
			text, err := expand(value)
			if err != nil {
				return Alert{}, fmt.Errorf("%s of %s: %w", name, rule.Alert, err)
			}
			to.into[name] = text
		}
	}
	return alert, nil
}

// memory is a storage of floats.
type memory struct {
	all []*stored
}

type stored struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func (m *memory) append(name labels.Labels, at time.Time, value float64) {
	i := slices.IndexFunc(m.all, func(s *stored) bool { return labels.Equal(s.labels, name) })
	if i < 0 {
		i = len(m.all)
		m.all = append(m.all, &stored{labels: name})
	}
	m.all[i].samples = append(m.all[i].samples, sample{at.UnixMilli(), value})
}

// Querier implements storage.Queryable.
func (m *memory) Querier(from, to int64) (storage.Querier, error) {
	return &querier{m: m, from: from, to: to}, nil
}

type querier struct {
	m        *memory
	from, to int64
}

// Select implements storage.Querier.
func (q *querier) Select(_ context.Context, sorted bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, s := range q.m.all {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			within := slices.DeleteFunc(slices.Clone(s.samples), func(x chunks.Sample) bool { return x.T() < q.from || x.T() > q.to })
			found = append(found, storage.NewListSeries(s.labels, within))
		}
	}
	if sorted {
		slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	}
	return &set{found: found, at: -1}
}

// LabelValues implements storage.Querier. No query calls it.
func (*querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements storage.Querier. No query calls it.
func (*querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close implements storage.Querier.
func (*querier) Close() error { return nil }

type set struct {
	found []storage.Series
	at    int
}

// Next implements storage.SeriesSet.
func (s *set) Next() bool { s.at++; return s.at < len(s.found) }

// At implements storage.SeriesSet.
func (s *set) At() storage.Series { return s.found[s.at] }

// Err implements storage.SeriesSet.
func (*set) Err() error { return nil }

// Warnings implements storage.SeriesSet.
func (*set) Warnings() annotations.Annotations { return nil }

// sample is a float and its time.
type sample struct {
	t int64
	f float64
}

// T implements chunks.Sample, together with the methods below.
func (s sample) T() int64                      { return s.t }
func (s sample) F() float64                    { return s.f }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// metricsOf returns the names of metrics that an expression reads.
func metricsOf(expr string) ([]string, error) {
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var names []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if v, ok := node.(*parser.VectorSelector); ok {
			names = append(names, v.Name)
		}
		return nil
	})
	return names, nil
}

// series returns the names of a metric's series in queries. A histogram has three.
func series(kind, name string) []string {
	if kind == "histogram" {
		return []string{name + "_bucket", name + "_sum", name + "_count"}
	}
	return []string{name}
}

// documented returns the names of the series of all metrics in docs/reference/metrics.md.
func documented(page string) map[string]bool {
	known := map[string]bool{}
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, name := range series(strings.TrimSpace(cells[2]), strings.Trim(cells[1], " `")) {
			known[name] = true
		}
	}
	return known
}

// horizon returns the latest time that a test needs.
func horizon(t Test) time.Duration {
	latest := time.Duration(math.MinInt64)
	for _, a := range t.Alerts {
		latest = max(latest, time.Duration(a.At))
	}
	return latest
}
