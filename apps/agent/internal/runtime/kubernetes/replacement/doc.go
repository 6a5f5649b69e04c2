// Package replacement decides which pods of a workload go and when, and how to make Kubernetes take these
// pods. It does no I/O: a decision is a function of what is known at one moment.
//
//	DrainOf      which pods are told to leave before there are fewer, or before others take their place
//	IsUnsettled  whether pods may come to be that are not wanted any more
//	EndedPods    which pods that are over are removed
//	LostFor      which pods of lost nodes are removed without the node's word
//	History      how long the next repair of a workload has to wait
//
// The runtime reads the caches for it and carries out its decisions. It asks again when something has changed
// (DrainMoved, ReplicaSetMoved, ReplicaSetSettles) or when a wait is over.
package replacement
