// Package result is the result of a scenario: for people as a table, for programs as one line of JSON.
//
// Figures are at the top level of the object, under the names in the project's benchmark table, next to
// "scenario", "seed", "sizes", "parts", "rounds", "machine", "commit" and "error".
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// Result is the result of one scenario. Only one goroutine may set it.
type Result struct {
	Scenario string
	Seed     uint64
	Commit   string
	Started  time.Time
	Machine  measure.Machine
	// Sizes are the requested sizes of the scenario.
	Sizes map[string]any
	// Parts are the costs of the parts in the measured window, by name.
	Parts map[string]measure.Part
	// Rounds are the results of a scenario that measures the same at several sizes.
	Rounds []map[string]any
	// Details are further values, by name.
	Details map[string]any
	// Error is why there are no figures, or why they do not count.
	Error string

	names   []string
	figures map[string]figure
}

type figure struct {
	value float64
	unit  string
}

// New returns an empty result of a scenario.
func New(scenario string, seed uint64) *Result {
	return &Result{
		Scenario: scenario, Seed: seed, Commit: measure.Commit(), Started: time.Now(), Machine: measure.ThisMachine(),
		Sizes: map[string]any{}, Parts: map[string]measure.Part{}, figures: map[string]figure{},
	}
}

// Figure sets a figure. unit is for people.
func (r *Result) Figure(name string, value float64, unit string) {
	if _, ok := r.figures[name]; !ok {
		r.names = append(r.names, name)
	}
	r.figures[name] = figure{value, unit}
}

// Value returns a figure, or 0 without one.
func (r *Result) Value(name string) float64 { return r.figures[name].value }

// MarshalJSON writes figures next to the other fields.
func (r *Result) MarshalJSON() ([]byte, error) {
	out := map[string]any{
		"scenario": r.Scenario, "ok": r.Error == "", "seed": r.Seed, "commit": r.Commit,
		"started": r.Started.UTC().Format(time.RFC3339), "sizes": r.Sizes, "parts": r.Parts, "machine": r.Machine,
	}
	if len(r.Rounds) > 0 {
		out["rounds"] = r.Rounds
	}
	if r.Error != "" {
		out["error"] = r.Error
	}
	for name, detail := range r.Details {
		out["detail_"+name] = detail
	}
	for name, f := range r.figures {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			f.value = 0
		}
		// The figures are not more exact than four digits after the point.
		out[name] = math.Round(f.value*1e4) / 1e4
	}
	return json.Marshal(out)
}

// Table writes the result for a person.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s\tseed %d, commit %s, %d cores, load %.1f, %.0f%% stolen\n",
		r.Scenario, r.Seed, r.Commit, r.Machine.Cores, r.Machine.Load, 100*r.Machine.Stolen)
	for _, name := range slices.Sorted(maps.Keys(r.Sizes)) {
		_, _ = fmt.Fprintf(t, "  %s\t%v\n", name, r.Sizes[name])
	}
	for _, name := range r.names {
		f := r.figures[name]
		_, _ = fmt.Fprintf(t, "  %s\t%s %s\n", name, numberText(f.value), f.unit)
	}
	for _, round := range r.Rounds {
		_, _ = fmt.Fprint(t, "  round\t")
		for _, name := range slices.Sorted(maps.Keys(round)) {
			if v, ok := round[name].(float64); ok {
				_, _ = fmt.Fprintf(t, "%s %s  ", name, numberText(v))
			} else {
				_, _ = fmt.Fprintf(t, "%s %v  ", name, round[name])
			}
		}
		_, _ = fmt.Fprintln(t)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parts)) {
		p := r.Parts[name]
		_, _ = fmt.Fprintf(t, "  %s\t%.2f s CPU, %.0f%% of a core (peak %.0f%%), %.0f MiB (peak %.0f)\n",
			name, p.CPUSeconds, p.CPUPercent, p.PeakCPUPercent, p.RSSMiB, p.PeakRSSMiB)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Details)) {
		text, err := json.MarshalIndent(r.Details[name], "  ", "  ")
		if err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
		_, _ = fmt.Fprintf(t, "  %s %s\n", name, text)
	}
	if r.Error != "" {
		_, _ = fmt.Fprintf(t, "  FAILED\t%s\n", r.Error)
	}
	return t.Flush()
}

func numberText(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
