package measure

import (
	"slices"
	"time"
)

// Durations summarises measured durations. It is not safe for concurrent use.
type Durations struct {
	values []time.Duration
	sorted bool
}

// Add adds one measurement.
func (d *Durations) Add(v time.Duration) {
	d.values, d.sorted = append(d.values, v), false
}

// Len returns the number of measurements.
func (d *Durations) Len() int { return len(d.values) }

// Quantile returns the smallest measurement v for which at least the share q of all measurements is v or less. It
// returns 0 without measurements.
func (d *Durations) Quantile(q float64) time.Duration {
	if len(d.values) == 0 {
		return 0
	}
	if !d.sorted {
		slices.Sort(d.values)
		d.sorted = true
	}
	i := int(q*float64(len(d.values))+0.999999) - 1
	return d.values[min(max(i, 0), len(d.values)-1)]
}

// Millis returns a duration in milliseconds, as results show it.
func Millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
