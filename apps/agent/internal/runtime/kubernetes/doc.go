// Package kubernetes is the runtime of a region that is a Kubernetes cluster, or a part of one. It creates
// native objects only, so that Kubernetes keeps the region healthy while its agent is away.
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
// An object belongs to this agent when it carries the labels managed-by=windlass and
// windlass.run/region=ours. The agent writes and deletes no other object. If an object without these labels
// has a name that the agent needs, the agent reports a conflict. Fields that we do not set belong to the
// client that sets them. If another client has set another number of replicas, the agent leaves that number
// alone.
//
// # Why being killed leaves nothing behind
//
// The first write for a deployment is the workload without replicas. (The namespace is written before it, and
// is removed when it is empty.) The workload owns all other objects of the deployment from the start, so that
// deleting it deletes them even without an agent. The last write is the complete workload with a hash of its
// content:
//
//	Namespace -> Deployment, 0 replicas -> ServiceAccount, Secrets, claim,
//	NetworkPolicy, Service, PodDisruptionBudget (owned) -> Deployment + hash
//
// A workload with another hash than its assignment is incomplete. The next Apply, of this agent or another,
// continues from what it finds. It compares each object by its own hash, and each write is idempotent. Names
// are functions of the assignment, so that no write creates a second object. Changes are safe in the same
// way. Secrets of variables are immutable, and each content has its own name. They are written before the
// template that names them, and removed when no pod refers to them any more.
//
// Removal is one foreground deletion. Kubernetes deletes the pods, then the workload, then the objects that
// it owned. Evicted or refused pods stay until the agent removes them (see replacement.EndedPods).
//
// Scaling down has two steps. The agent marks the pods that will go as draining, and lowers the number of
// replicas when gateways have released them (see replacement/drain.go). A new template is rolled out in
// steps. In each step the agent sets how many pods may have it, and Kubernetes replaces them (see
// replacement/replace.go). The agent trusts the count of pods only when Kubernetes can create no more for
// earlier requests (see replacement/settle.go).
//
// # Several roles
//
// A deployment with several roles is one such workload for each instance. Package groups decides about all of
// them, and each is then applied, drained and repaired like the workload of a deployment with one role (see
// roles.go).
//
// # How few calls are made
//
// The agent decides whether a write is needed from its caches and from the server's answers to its own
// writes, which the caches may not show yet. An assignment that is in place costs no call. An idle agent
// keeps its watches open and renews its lease. During an outage, single calls probe whether the server is
// back, however many deployments wait (see access).
//
// # What is watched
//
// The agent watches objects of its kinds that have its labels. It also watches the ReplicaSets of its
// workloads, and keeps their counts. It watches nodes. It keeps the resources that other clients' pods use on
// nodes, and one line of each Warning event of a pod. It does not watch Secrets, because the right to list
// Secrets by a label is the right to read all Secrets of the cluster. It puts a removed Secret back when a
// pod needs it.
package kubernetes
