// Package analysis determines what a check of a rollout's analysis has to query, and judges the
// answers. It is pure: it sends no requests, and answers are arguments.
//
// A measurement passes, fails or is inconclusive. It passes or fails only by a figure, or by the
// verdict of a webhook. A figure that is missing, is not a finite number or has too few samples
// is inconclusive. So is a missing or invalid verdict.
package analysis

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Defaults for fields that a check leaves out. A share or a percentile of fewer than ten requests
// says little. Five minutes are twenty scrapes at Prometheus' usual interval of 15 s.
const (
	defaultInterval    = time.Minute
	defaultWindow      = 5 * time.Minute
	defaultMinRequests = 10
	defaultMinValues   = 1
)

// WithDefaults sets the name and the minimum of samples that the check leaves out.
func WithDefaults(c *windlassv1.AnalysisCheck) {
	c.Name = cmp.Or(c.GetName(), Name(c))
	if c.GetMinSamples() == 0 {
		c.MinSamples = templates[c.GetTemplate()].minSamples
	}
}

// Name returns the name of the check, by default that of its template.
func Name(c *windlassv1.AnalysisCheck) string {
	if c.GetName() != "" || c.GetTemplate() == windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED {
		return c.GetName()
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(c.GetTemplate().String(), "TEMPLATE_")), "_", "-")
}

// Interval returns the time between two measurements.
func Interval(c *windlassv1.AnalysisCheck) time.Duration {
	if c.GetInterval() == nil {
		return defaultInterval
	}
	return c.GetInterval().AsDuration()
}

// Window returns the longest time that a measurement looks back on.
func Window(c *windlassv1.AnalysisCheck) time.Duration {
	if c.GetWindow() == nil {
		return defaultWindow
	}
	return c.GetWindow().AsDuration()
}

// Absolute reports whether the check can judge the new version without the old one.
func Absolute(c *windlassv1.AnalysisCheck) bool {
	return c.Max != nil || c.Min != nil || c.GetWebhook() != nil
}

// Compares reports whether the check compares the new version's figure with the old version's.
func Compares(c *windlassv1.AnalysisCheck) bool {
	v := c.GetVersusOld()
	return v != nil && (v.MaxRatio != nil || v.MinRatio != nil || v.MaxDifference != nil || v.MinDifference != nil)
}

// NeedsRequests reports whether the check is inconclusive without requests.
func NeedsRequests(c *windlassv1.AnalysisCheck) bool {
	return templates[c.GetTemplate()].minSamples == defaultMinRequests
}

// Subject is what a measurement is about: one version of an app, in one region, over one window.
type Subject struct {
	App, AppID, Deployment string
	Version                int32
	Region                 string
	Window                 time.Duration
	// MadeFor are the deployments from which this version has taken instances over. Metrics of an
	// instance have the label of the deployment that it was created for.
	MadeFor []string
}

// Variables returns the names of the variables of a query, in the order of the documentation.
func Variables() []string {
	return []string{"app", "app_id", "deployment", "version", "region", "window", "selector"}
}

// valueOf returns the value of a variable, and false if there is no such variable.
func (s Subject) valueOf(variable string) (string, bool) {
	switch variable {
	case "app":
		return s.App, true
	case "app_id":
		return s.AppID, true
	case "deployment":
		return s.Deployment, true
	case "version":
		return strconv.Itoa(int(s.Version)), true
	case "region":
		return s.Region, true
	case "window":
		// Seconds are easier to read. Milliseconds are used only where seconds would be rounded.
		if s.Window%time.Second == 0 {
			return strconv.FormatInt(int64(s.Window/time.Second), 10) + "s", true
		}
		return strconv.FormatInt(s.Window.Milliseconds(), 10) + "ms", true
	case "selector":
		matcher := fmt.Sprintf("=%q", s.Deployment)
		if len(s.MadeFor) > 0 {
			matcher = fmt.Sprintf("=~%q", strings.Join(s.deploymentIDs(), "|"))
		}
		return fmt.Sprintf("windlass_deployment%s,windlass_region=%q", matcher, s.Region), true
	}
	return "", false
}

// Expand replaces the variables of a query. An unknown variable is an error.
func Expand(query string, s Subject) (string, error) {
	var b strings.Builder
	for rest := query; ; {
		at := strings.Index(rest, "{{")
		if at < 0 {
			return b.String() + rest, nil
		}
		// In "up{{{selector}}}" the first brace belongs to PromQL.
		for strings.HasPrefix(rest[at+2:], "{") {
			at++
		}
		b.WriteString(rest[:at])
		after := rest[at+2:]
		name, left, closed := strings.Cut(after, "}}")
		if !closed {
			return "", fmt.Errorf("%q is not closed by }}", "{{"+after)
		}
		value, ok := s.valueOf(strings.TrimSpace(name))
		if !ok {
			return "", fmt.Errorf("{{%s}} is not a variable", strings.TrimSpace(name))
		}
		b.WriteString(value)
		rest = left
	}
}

// NamesVersion reports whether the expanded query is different for different versions.
func NamesVersion(query string) bool {
	one, _ := Expand(query, Subject{Deployment: "a", Version: 1})
	other, _ := Expand(query, Subject{Deployment: "b", Version: 2})
	return one != other
}

// Queries are the PromQL queries of a measurement: the figure of each version and the number of its
// samples. Empty queries are not sent.
type Queries struct {
	New, NewSamples, Old, OldSamples string
	// Within are the ids of the deployments whose series the queries may read.
	Within []string
}

// deploymentIDs returns the ids of the deployments that instances of the subject were created for.
func (s Subject) deploymentIDs() []string { return append([]string{s.Deployment}, s.MadeFor...) }

// Ask returns the queries of the check for the new version, and for the old one if it compares them.
// old is nil if the old version does not serve.
func Ask(c *windlassv1.AnalysisCheck, fresh Subject, old *Subject) (q Queries, err error) {
	figure, samples := c.GetQuery(), c.GetSamplesQuery()
	if t, ok := templates[c.GetTemplate()]; ok && figure == "" {
		figure, samples = t.query, t.samples
	}
	if c.GetMinSamples() == 0 {
		samples = ""
	}
	q.Within = fresh.deploymentIDs()
	if q.New, err = Expand(figure, fresh); err != nil {
		return q, err
	}
	if q.NewSamples, err = Expand(samples, fresh); err != nil {
		return q, err
	}
	if old == nil || !Compares(c) {
		return q, nil
	}
	q.Within = append(q.Within, old.deploymentIDs()...)
	if q.Old, err = Expand(figure, *old); err != nil {
		return q, err
	}
	q.OldSamples, err = Expand(samples, *old)
	return q, err
}

// Figures are the answers to Queries. They are nil if the query was not sent or has no result.
type Figures struct {
	New, NewSamples, Old, OldSamples *float64
	// Answer of the webhook; nil: none. Its figure is in New.
	Answer *Answer
	// Problem says why there are no figures; empty: no problem.
	Problem string
}

// Verdict is the result of a measurement.
type Verdict int

// Verdicts of a measurement.
const (
	Inconclusive Verdict = iota
	Passed
	Failed
)

// Judge returns the verdict on the figures, with an explanation for people. All bounds of the check
// have to hold. oldServes: the old version serves next to the new one.
func Judge(c *windlassv1.AnalysisCheck, f Figures, oldServes bool) (Verdict, string) {
	compares := oldServes && Compares(c)
	if f.Problem != "" {
		return Inconclusive, f.Problem
	}
	if c.GetWebhook() != nil {
		return judgeWebHook(f)
	}
	if text := unusableReason(c, "the new version", f.New, f.NewSamples); text != "" {
		return Inconclusive, text
	}
	if compares {
		if text := unusableReason(c, "the old version", f.Old, f.OldSamples); text != "" {
			return Inconclusive, text
		}
	}
	text := numberText(*f.New)
	if f.NewSamples != nil {
		text += fmt.Sprintf(" on %s samples", numberText(math.Round(*f.NewSamples)))
	}
	if compares {
		text += ", the old version's is " + numberText(*f.Old)
		if f.OldSamples != nil {
			text += fmt.Sprintf(" on %s", numberText(math.Round(*f.OldSamples)))
		}
	}
	var broken, kept []string
	for _, b := range boundsOf(c, f, compares) {
		if b.isMax && b.value > b.limit || !b.isMax && b.value < b.limit {
			broken = append(broken, b.String())
		} else {
			kept = append(kept, b.String())
		}
	}
	switch {
	case len(broken) > 0:
		return Failed, text + ": " + strings.Join(broken, ", ")
	case len(kept) == 0:
		return Inconclusive, text + ": no bound of the check applies here"
	}
	return Passed, text
}

// bound is a limit, and the value that is compared with it.
type bound struct {
	what         string // figure, ratio or difference
	value, limit float64
	isMax        bool // else limit is a minimum
}

func (b bound) String() string {
	word := "least"
	if b.isMax {
		word = "most"
	}
	value, limit := numberText(b.value), numberText(b.limit)
	if value == limit && b.value != b.limit {
		value, limit = strconv.FormatFloat(b.value, 'g', -1, 64), strconv.FormatFloat(b.limit, 'g', -1, 64)
	}
	return fmt.Sprintf("%s %s, at %s %s", b.what, value, word, limit)
}

// boundsOf returns the bounds of the check with the values of f.
func boundsOf(c *windlassv1.AnalysisCheck, f Figures, compares bool) (out []bound) {
	add := func(what string, value float64, upper, lower *float64) {
		if upper != nil {
			out = append(out, bound{what, value, *upper, true})
		}
		if lower != nil {
			out = append(out, bound{what, value, *lower, false})
		}
	}
	add("figure", *f.New, c.Max, c.Min)
	if !compares {
		return out
	}
	ratio := *f.New / *f.Old
	if *f.New == 0 && *f.Old == 0 {
		ratio = 1
	}
	v := c.GetVersusOld()
	add("ratio", ratio, v.MaxRatio, v.MinRatio)
	add("difference", *f.New-*f.Old, v.MaxDifference, v.MinDifference)
	return out
}

// unusableReason returns why the figure of a version cannot be judged, or "" if it can.
func unusableReason(c *windlassv1.AnalysisCheck, version string, figure, samples *float64) string {
	if c.GetMinSamples() > 0 {
		have := 0.0
		if samples != nil && !math.IsNaN(*samples) {
			have = *samples
		}
		// Rounded, because Prometheus extrapolates: 9.97 can stand for 10 requests.
		if math.Round(have) < float64(c.GetMinSamples()) {
			return fmt.Sprintf("%s has %s samples of the %d that it takes", version, numberText(math.Round(have)), c.GetMinSamples())
		}
	}
	switch {
	case figure == nil:
		return "there is no figure of " + version
	case math.IsNaN(*figure) || math.IsInf(*figure, 0):
		return "the figure of " + version + " is not a finite number"
	}
	return ""
}

// numberText formats v with six significant digits.
func numberText(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
