// Package load measures the load of the apps that are scaled, for the control plane, which decides how many
// replicas they need.
//
//	gateways ---Report---> Demand ----.
//	runtime ----Usage-----------------+--> Collector --LoadReport--> report
//	engines ----GET /metrics----------'
//
// A value that is not known is left out of a report, and is never reported as 0. Causes are an instance that
// does not answer, a gateway of an earlier release, or a runtime that does not measure. While no app is
// scaled, nothing is measured and nothing is sent.
package load
