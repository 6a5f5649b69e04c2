// Package load measures the load of scaled apps, for the control plane. The control plane decides
// how many replicas these apps need.
//
//	gateways ---Report---> Demand ----.
//	runtime ----Usage-----------------+--> Collector --LoadReport--> report
//	engines ----GET /metrics----------'
//
// A value that is not known is left out of a report, and is never reported as 0. It is not known
// if, for example, an instance does not answer, a gateway has an earlier release, or the runtime
// does not measure it. While no app is scaled, nothing is measured and nothing is sent.
package load
