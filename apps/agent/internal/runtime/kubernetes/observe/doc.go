// Package observe turns what the informers hold into what the agent reports:
// pods into instances, nodes into capacity. It calls nothing and reads no clock.
//
//	pods of one workload --.
//	its Deployment --------+--> Memory.Instances --> []runtime.Instance
//	Warning events (Journal)|
//	nodes -----------------'
//	all nodes, all pods --------> Fleet -----------> *agentv1.Capacity
//
// A verdict on a pod is taken from the first of these that has something to say,
// because each makes the ones below it stale:
//
//	deletion        DRAINING, and why: replaced, preempted, evicted, on a lost node
//	a final phase   TERMINATED: the pod is left behind, another takes its place
//	the scheduler   PENDING until it has a node
//	its mark        DRAINING once it runs: it is to go, and gateways finish with it
//	the node        NodeLost: what the pod last said of itself is old news
//	init containers in their order
//	the container   waiting, ended or running; its last end while it is not ready
//
// An instance is its pod's UID, so that an address, a name or an ordinal that a
// later pod gets says nothing about the one before. READY needs the pod's Ready
// condition, no deletion and a node that answers; nothing else makes it.
//
// Events only explain. They are dropped by API servers after an hour, merged and
// delayed, so that no status depends on one: without them a verdict has the same
// status and a vaguer message. An event speaks of the run that it was told in; an
// older one is ignored.
//
// Memory holds the little that pods do not tell: the ordinal of each, and which
// of its runs was ready. It starts empty after a restart of the agent and is
// filled from conditions and from the pods' order, with the same ordinals for
// pods that were never replaced.
package observe
