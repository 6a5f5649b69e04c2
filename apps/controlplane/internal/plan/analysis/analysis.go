// Package analysis says, purely, what a check of a rollout's policy asks for, and what an
// answer means. It sends no requests itself: an answer comes in as an argument.
//
// A measurement passes, fails or is inconclusive, and nothing else. It passes only on
// figures, or on the word of a web-hook: whatever is missing, too little, no number or no
// such word is inconclusive.
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

// Defaults of what a check does not say. Requests vary: ten are the fewest of which a
// share or a percentile says anything. Five minutes are twenty scrapes at the usual 15 s.
const (
	defaultInterval    = time.Minute
	defaultWindow      = 5 * time.Minute
	defaultMinRequests = 10
	defaultMinValues   = 1
)

// WithDefaults fills in what the check leaves out.
func WithDefaults(c *windlassv1.AnalysisCheck) {
	c.Name = cmp.Or(c.GetName(), Name(c))
	if c.GetMinSamples() == 0 {
		c.MinSamples = templates[c.GetTemplate()].minSamples
	}
}

// Name of the check.
func Name(c *windlassv1.AnalysisCheck) string {
	if c.GetName() != "" || c.GetTemplate() == windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED {
		return c.GetName()
	}
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(c.GetTemplate().String(), "TEMPLATE_")), "_", "-")
}

// Interval between two measurements.
func Interval(c *windlassv1.AnalysisCheck) time.Duration {
	if c.GetInterval() == nil {
		return defaultInterval
	}
	return c.GetInterval().AsDuration()
}

// Window that a measurement looks back on at most.
func Window(c *windlassv1.AnalysisCheck) time.Duration {
	if c.GetWindow() == nil {
		return defaultWindow
	}
	return c.GetWindow().AsDuration()
}

// Absolute reports whether the check says something of the new version by itself.
func Absolute(c *windlassv1.AnalysisCheck) bool {
	return c.Max != nil || c.Min != nil || c.GetWebhook() != nil
}

// Compares reports whether the check bounds it by the old version's.
func Compares(c *windlassv1.AnalysisCheck) bool {
	v := c.GetVersusOld()
	return v != nil && (v.MaxRatio != nil || v.MinRatio != nil || v.MaxDifference != nil || v.MinDifference != nil)
}

// OfRequests reports whether the check says nothing where there are no requests.
func OfRequests(c *windlassv1.AnalysisCheck) bool {
	return templates[c.GetTemplate()].minSamples == defaultMinRequests
}

// Subject is one version of an app in one region, over one window.
type Subject struct {
	App, AppID, Deployment string
	Version                int32
	Region                 string
	Window                 time.Duration
	// MadeFor are other versions whose instances it goes on with: figures that instances
	// give are of the version that they were made for.
	MadeFor []string
}

// Variables of a query, in the order in which they are documented.
func Variables() []string {
	return []string{"app", "app_id", "deployment", "version", "region", "window", "selector"}
}

func (s Subject) value(variable string) (string, bool) {
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
		// Prometheus reads milliseconds, and people read seconds.
		if s.Window%time.Second == 0 {
			return strconv.FormatInt(int64(s.Window/time.Second), 10) + "s", true
		}
		return strconv.FormatInt(s.Window.Milliseconds(), 10) + "ms", true
	case "selector":
		of := fmt.Sprintf("=%q", s.Deployment)
		if len(s.MadeFor) > 0 {
			of = fmt.Sprintf("=~%q", strings.Join(s.within(), "|"))
		}
		return fmt.Sprintf("windlass_deployment%s,windlass_region=%q", of, s.Region), true
	}
	return "", false
}

// Expand replaces the variables of a query. It fails on one that there is not.
func Expand(query string, s Subject) (string, error) {
	var b strings.Builder
	for rest := query; ; {
		at := strings.Index(rest, "{{")
		if at < 0 {
			return b.String() + rest, nil
		}
		// Of "up{{{selector}}}" the first brace is PromQL's.
		for strings.HasPrefix(rest[at+2:], "{") {
			at++
		}
		b.WriteString(rest[:at])
		after := rest[at+2:]
		name, left, closed := strings.Cut(after, "}}")
		if !closed {
			return "", fmt.Errorf("%q is not closed by }}", "{{"+after)
		}
		value, ok := s.value(strings.TrimSpace(name))
		if !ok {
			return "", fmt.Errorf("{{%s}} is no variable", strings.TrimSpace(name))
		}
		b.WriteString(value)
		rest = left
	}
}

// NamesVersion reports whether the query differs from version to version.
func NamesVersion(query string) bool {
	one, _ := Expand(query, Subject{Deployment: "a", Version: 1})
	other, _ := Expand(query, Subject{Deployment: "b", Version: 2})
	return one != other
}

// Queries are what a measurement asks Prometheus for; empty ones are not asked.
type Queries struct {
	New, NewSamples, Old, OldSamples string
	// Within are the deployments whose series the queries may read.
	Within []string
}

// within are the deployments that instances of the subject were made for.
func (s Subject) within() []string { return append([]string{s.Deployment}, s.MadeFor...) }

// Ask returns the queries of the check for the new version, and for the old one if that
// serves beside it.
func Ask(c *windlassv1.AnalysisCheck, fresh Subject, old *Subject) (q Queries, err error) {
	figure, samples := c.GetQuery(), c.GetSamplesQuery()
	if t, ok := templates[c.GetTemplate()]; ok && figure == "" {
		figure, samples = t.query, t.samples
	}
	if c.GetMinSamples() == 0 {
		samples = ""
	}
	q.Within = fresh.within()
	if q.New, err = Expand(figure, fresh); err != nil {
		return q, err
	}
	if q.NewSamples, err = Expand(samples, fresh); err != nil {
		return q, err
	}
	if old == nil || !Compares(c) {
		return q, nil
	}
	q.Within = append(q.Within, old.within()...)
	if q.Old, err = Expand(figure, *old); err != nil {
		return q, err
	}
	q.OldSamples, err = Expand(samples, *old)
	return q, err
}

// Figures are the answers; nil for what was not asked or is missing.
type Figures struct {
	New, NewSamples, Old, OldSamples *float64
	// Said is the web-hook's word, nil for none. New is the figure that came with it.
	Said *Said
	// Problem is why there are no figures, empty for none.
	Problem string
}

// Verdict on a measurement.
type Verdict int

// What a measurement comes to.
const (
	Inconclusive Verdict = iota
	Passed
	Failed
)

// Judge returns what the figures mean for the check, and says so. compares: the old
// version serves beside the new one. Every bound that there is has to hold.
func Judge(c *windlassv1.AnalysisCheck, f Figures, compares bool) (Verdict, string) {
	compares = compares && Compares(c)
	if f.Problem != "" {
		return Inconclusive, f.Problem
	}
	if c.GetWebhook() != nil {
		return judgeSaid(f)
	}
	if text := unusable(c, "the new version", f.New, f.NewSamples); text != "" {
		return Inconclusive, text
	}
	if compares {
		if text := unusable(c, "the old version", f.Old, f.OldSamples); text != "" {
			return Inconclusive, text
		}
	}
	text := number(*f.New)
	if f.NewSamples != nil {
		text += fmt.Sprintf(" on %s samples", number(math.Round(*f.NewSamples)))
	}
	if compares {
		text += ", the old version's is " + number(*f.Old)
		if f.OldSamples != nil {
			text += fmt.Sprintf(" on %s", number(math.Round(*f.OldSamples)))
		}
	}
	var broken, kept []string
	for _, b := range bounds(c, f, compares) {
		if b.value > b.limit && b.most || b.value < b.limit && !b.most {
			broken = append(broken, b.String())
		} else {
			kept = append(kept, b.String())
		}
	}
	switch {
	case len(broken) > 0:
		return Failed, text + ": " + strings.Join(broken, ", ")
	case len(kept) == 0:
		return Inconclusive, text + ": nothing bounds it here"
	}
	return Passed, text
}

// bound is a limit and what is held against it.
type bound struct {
	what         string
	value, limit float64
	most         bool
}

func (b bound) String() string {
	word := "least"
	if b.most {
		word = "most"
	}
	return fmt.Sprintf("%s %s, at %s %s", b.what, number(b.value), word, number(b.limit))
}

func bounds(c *windlassv1.AnalysisCheck, f Figures, compares bool) (out []bound) {
	add := func(what string, value float64, most, least *float64) {
		if most != nil {
			out = append(out, bound{what, value, *most, true})
		}
		if least != nil {
			out = append(out, bound{what, value, *least, false})
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

// unusable says why the figure of a version says nothing, empty if it does.
func unusable(c *windlassv1.AnalysisCheck, who string, figure, samples *float64) string {
	if c.GetMinSamples() > 0 {
		have := 0.0
		if samples != nil && !math.IsNaN(*samples) {
			have = *samples
		}
		// Prometheus extrapolates: 9.97 requests were 10.
		if math.Round(have) < float64(c.GetMinSamples()) {
			return fmt.Sprintf("%s has %s samples of the %d that it takes", who, number(math.Round(have)), c.GetMinSamples())
		}
	}
	switch {
	case figure == nil:
		return "nothing is known of " + who
	case math.IsNaN(*figure) || math.IsInf(*figure, 0):
		return "the figure of " + who + " is no number"
	}
	return ""
}

// number is short, and exact enough to see which side of a limit it is on.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
