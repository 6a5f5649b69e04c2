// Package portguard keeps instances of one environment from the ports of others on the same host, by programs in the
// kernel (eBPF). One tags each socket with the group of the process that makes it. The others look, when an instance
// connects or sends to an address of the host, for the socket that would receive, and refuse it to another group. They
// stay in force while no agent runs. Processes that are not instances are not affected.
package portguard
