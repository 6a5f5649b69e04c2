// Package replacement decides which pods of a workload go, when, and how Kubernetes is made to take these. It
// does no I/O: a decision is a function of what is known at one moment.
//
//	DrainOf      which pods are told to leave before there are fewer, or before others take their place
//	IsUnsettled  whether pods may come to be that are not wanted any more
//	EndedPods    which pods that are over are removed
//	LostFor      which pods of lost nodes are removed without the node's word
//	History      how long the next repair of a workload has to wait
//
// The runtime reads the caches for it, carries out what it decides, and asks again when something has moved
// (DrainMoved, ReplicaSetMoved, ReplicaSetSettles) or the time has come.
package replacement
