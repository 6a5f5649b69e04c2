// Package kubernetes is the runtime of a region that is a Kubernetes cluster, or a
// part of one. It makes native objects only, so that the region keeps healing
// itself while its agent is away.
//
//	Apply:  assignment --render--> objects --(differs?)--> server-side apply
//	        watches ----> caches --observe--> instances, capacity
//	                         |
//	                         '--> repairs: what somebody changed is put back
//
// This package joins packages that do not know each other:
//
//	render       an assignment -> its objects, names, labels
//	desired      objects, what is there -> what has to be put
//	replacement  pods, what is wanted -> which of them go, and when
//	access       clients, caches, the lease: all calls of the API server
//	observe      pods, nodes -> instances, capacity
//	gatewayapi   routes of the region -> objects of the Gateway API
//
// # What is ours
//
// An object is this agent's when it carries the labels managed-by=windlass and
// windlass.run/region=ours. Nothing else is written or deleted: a name that is
// taken by an object without them is a conflict, and said so. Fields that we do
// not set belong to the client that sets them. The number of replicas is left to another
// client that has set it to another value than ours.
//
// # Why being killed leaves nothing behind
//
// The first write for a deployment (after the namespace, which goes when it is
// empty) is the workload without replicas. All other objects of the deployment
// are owned by it from the start, so that deleting it deletes them even without an agent.
// The last write is the workload again, complete, with a hash of all that it should be:
//
//	Namespace -> Deployment, 0 replicas -> ServiceAccount, Secrets, claim,
//	NetworkPolicy, Service, PodDisruptionBudget (owned) -> Deployment + hash
//
// A workload whose hash is not that of the assignment is not done, and the next
// Apply, of this agent or another, goes on from what it finds: each object is
// compared by its own hash, and each write is idempotent. Names are functions of
// the assignment, so that no write makes a second object. The same holds for a
// change: Secrets of variables are immutable and have other names for other
// contents, so that they are there before the template that names them, and are
// removed when no pod refers to them any more.
//
// Removal is one deletion in the foreground: pods first, then the workload, then
// what it owned. Pods that were evicted or refused stay behind until the agent takes
// them away (see replacement.EndedPods).
//
// Fewer replicas come in two steps: pods that are to go are marked as draining, and the
// number is lowered when gateways are done with them (see replacement/drain.go). Pods of another template
// come in as many steps as they are replaced in: the agent says how many may be of it by now,
// and Kubernetes makes it so (see replacement/replace.go). The pods that there are count as all that
// there will be once Kubernetes can make no more of what was asked for before (see replacement/settle.go).
//
// # How few calls are made
//
// Whether a write is needed is decided from the caches and from what the server
// answered to our own writes, which the caches may not show yet. An assignment
// that is in place costs no call. An idle agent has its watches open and renews its
// lease. While the server answers nothing, one call in a while finds out whether
// it is back, however many deployments wait (see access).
//
// # What is watched
//
// Of our kinds of objects, those with our labels; the ReplicaSets that Kubernetes makes of
// them, of which the counts are kept; nodes; pods of others, of which only what they take of
// the nodes is kept; Warning events of pods, of which one line each is kept. Secrets are not
// watched, because a right to list the Secrets of a label is a right to read those of the
// whole cluster. A Secret that was removed is missed when a pod needs it, and put back then.
package kubernetes
