// Package desired finds out what has to be put into a cluster, so that it runs what an assignment asks for. It
// calls nothing, has no state and reads no clock.
//
//	New     the workload as it should be when nothing has to wait
//	Decide  the objects to put, in order, with what other clients have changed in each
//
// The objects come from render. The plan compares them with what is there, which it reads through Seen. What
// depends on that is completed here:
//
//	owners of objects
//	the pod template, as it was sent before (template.go)
//	claims and namespaces that several assignments share (shared.go)
//	the number of replicas, which another client may have set
//
// When pods go is not its subject: the caller says whether the workload keeps its template for now, and changes
// the workload while its pods are replaced.
package desired
