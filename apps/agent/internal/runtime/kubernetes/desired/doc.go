// Package desired decides which objects must be put into a cluster so that it runs an assignment.
// It makes no calls, has no state and reads no clock.
//
//	New     the workload as it should be in the end
//	Decide  the objects to put, in order, with the changes that other clients have made to each
//
// The objects come from render. The plan compares them with the cluster's objects, which it reads through
// Seen. It completes the parts that depend on the cluster:
//
//	the owners of objects
//	the pod template, as it was sent before (template.go)
//	claims and namespaces that several assignments share (shared.go)
//	the number of replicas, which another client may have set
//
// The package does not decide when pods go. The caller says whether the workload keeps its template
// for now, and changes the workload while its pods are replaced.
package desired
