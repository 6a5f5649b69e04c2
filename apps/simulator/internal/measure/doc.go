// Package measure reads what a run costs: processor time and memory of each part
// from /proc, counters from /metrics, profiles from /debug/pprof; and sums up what
// was timed.
package measure
