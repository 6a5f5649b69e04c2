// Package replacement decides which pods of a workload go and when, and how to make Kubernetes
// remove these pods. It does no I/O: a decision is a function of the state at one moment.
//
//	DrainOf      which pods are drained before the workload shrinks, or before other pods replace them
//	IsUnsettled  whether Kubernetes may still create pods that are no longer wanted
//	EndedPods    which ended pods are removed
//	LostFor      which pods of lost nodes are removed before the node confirms their end
//	History      how long the next repair of a workload must wait
//
// The runtime passes the state of its caches to the package, and carries out the decisions. It asks
// again when the state has changed (DrainMoved, ReplicaSetMoved, ReplicaSetSettles) or when a wait
// is over.
package replacement
