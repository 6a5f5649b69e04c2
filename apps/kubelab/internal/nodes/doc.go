// Package nodes makes the nodes of a kubelab and says which of them are alive.
//
//	groups (flags) ──Ensure──> Node objects
//	annotation kubelab.windlass.run/lost ──Keeper──> label kubelab.windlass.run/online
//	label online ──(KWOK's selector)──> heartbeats, or none
//
// The annotation is what people and tests set. KWOK selects by a label, because
// only the API server's own filter turns a node that no longer matches into a
// deletion, upon which KWOK lets its lease lapse; a selection by annotation would
// keep renewing it. From the lapsed lease on all is Kubernetes': the node
// lifecycle controller marks the node NotReady and taints it, and its pods are
// evicted.
package nodes

// What is written on nodes.
const (
	// LabelGroup is the name of the node's group; it marks nodes as kubelab's.
	LabelGroup = "kubelab.windlass.run/group"
	// LabelOnline is "true" on the nodes that have heartbeats.
	LabelOnline = "kubelab.windlass.run/online"
	// LabelSpot is "true" on nodes that the provider may take away.
	LabelSpot = "windlass.run/spot"
	// AnnotationLost is "true" on a node that is lost: no heartbeats, its pods do
	// not answer and cannot be ended.
	AnnotationLost = "kubelab.windlass.run/lost"
)
