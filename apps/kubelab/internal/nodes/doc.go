// Package nodes creates the nodes of a kubelab and switches their heartbeats.
//
//	groups (flags) ──Ensure──> Node objects
//	annotation kubelab.windlass.run/lost ──Keeper──> label kubelab.windlass.run/online
//	label online ──(KWOK's selector)──> heartbeats, or none
//
// People and tests set the annotation. KWOK selects nodes by the label, because the API server reports a node
// that no longer matches as deleted. Then KWOK stops renewing its lease. With a selection by annotation it
// would not stop. When the lease has lapsed, Kubernetes' node lifecycle controller marks the node NotReady
// and taints it, and its pods are evicted.
package nodes

// Labels and annotations of nodes.
const (
	// LabelGroup is the name of the node's group. Only kubelab's nodes have it.
	LabelGroup = "kubelab.windlass.run/group"
	// LabelOnline is "true" on the nodes that have heartbeats.
	LabelOnline = "kubelab.windlass.run/online"
	// LabelSpot is "true" on nodes that the provider may take away.
	LabelSpot = "windlass.run/spot"
	// AnnotationLost is "true" on a lost node, which has no heartbeats. Its pods do not answer and cannot be
	// ended.
	AnnotationLost = "kubelab.windlass.run/lost"
)
