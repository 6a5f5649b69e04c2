// Package portguard keeps instances of one environment from the ports of other environments on the
// same host, with programs in the kernel (eBPF). One program tags each socket with the group of the
// process that makes it. The other programs act when an instance connects or sends to an address of
// the host. They find the socket that would receive, and refuse the connection or packet if the
// socket belongs to another group. Instances cannot share UDP ports. The programs stay in force while
// no agent runs. Processes that are not instances are not affected.
package portguard
