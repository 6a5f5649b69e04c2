// Package desired decides which objects must be put into a cluster so that it runs what an assignment asks
// for. It makes no calls, has no state and reads no clock.
//
//	New     the workload as it should be when nothing has to wait
//	Decide  the objects to put, in order, with what other clients have changed in each
//
// The objects come from render. The plan compares them with the cluster's objects, which it reads through
// Seen. It completes the parts that depend on the cluster:
//
//	owners of objects
//	the pod template, as it was sent before (template.go)
//	claims and namespaces that several assignments share (shared.go)
//	the number of replicas, which another client may have set
//
// It does not decide when pods go. The caller says whether the workload keeps its template for now, and
// changes the workload while its pods are replaced.
package desired
