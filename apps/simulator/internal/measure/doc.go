// Package measure reads what a run costs: processor time and memory of each part from /proc, counters from
// /metrics, and profiles from /debug/pprof. It also summarises durations.
package measure
