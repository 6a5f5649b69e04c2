// Package observe converts the objects in the informers to the agent's reports: pods to instances,
// and nodes to capacity. It is pure: it makes no calls and reads no clock.
//
//	pods of one workload --.
//	its Deployment --------+--> Memory.Instances --> []runtime.Instance
//	Warning events (Journal)|
//	nodes -----------------'
//	all nodes, all pods --------> Fleet -----------> *agentv1.Capacity
//
// The verdict on a pod comes from the first line below that applies, because each line makes the
// lines after it outdated:
//
//	deletion        DRAINING, with the cause: replaced, preempted, evicted, or on a lost node
//	a final phase   TERMINATED: the pod is left behind, and another one takes its place
//	the scheduler   PENDING until it has a node
//	its mark        DRAINING if it runs: it will be stopped, and gateways drain it
//	the node        NodeLost: the status of the pod is outdated
//	init containers in their order
//	the container   waiting, ended or running; its last end while it is not ready
//
// The UID of its pod identifies an instance, because a later pod may get the same address, name or
// ordinal. An instance is READY exactly if its pod has the Ready condition, is not being deleted
// and has no mark, and if its node answers.
//
// No status depends on events, because API servers delay and merge events, and drop them after an
// hour. Without events, a verdict has the same status, but a less exact reason and message. An
// event explains only the run in which it was sent.
//
// Memory holds facts that the pods do not contain: the ordinal of each pod, and which of its runs
// was ready. After a restart of the agent, it is rebuilt from conditions and from the order of the
// pods. Pods that were never replaced get the same ordinals again.
package observe
