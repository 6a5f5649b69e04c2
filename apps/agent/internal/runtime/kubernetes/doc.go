// Package kubernetes is the runtime of a region that is a Kubernetes cluster, or a part of one. It creates
// native objects only, so that Kubernetes keeps the region healthy while its agent is away.
//
//	Apply:  assignment --render--> objects --(differs?)--> server-side apply
//	        watches ----> caches --observe--> instances, capacity
//	                         |
//	                        '--> repairs: changes of other clients are undone
//
// This package joins packages that do not know each other:
//
//	render       an assignment -> its objects, names, labels
//	desired      wanted objects, existing objects -> objects to put
//	replacement  pods, wanted pods -> which pods go, and when
//	access       clients, caches, the lease: all calls of the API server
//	observe      pods, nodes -> instances, capacity
//	gatewayapi   routes of the region -> objects of the Gateway API
//
// # Which objects belong to the agent
//
// An object belongs to this agent if it has the labels managed-by=windlass and windlass.run/region
// with the agent's region. The agent writes and deletes no other object. If an object without these
// labels has a name that the agent needs, the agent reports a conflict. A field that the agent does
// not set belongs to the client that sets it. If another client has set the number of replicas, the
// agent keeps that number.
//
// # Why a killed agent leaves nothing behind
//
// The first write for a deployment is the workload without replicas. (The namespace is written
// before it, and is removed when it is empty.) The workload owns all other objects of the
// deployment from the start. So when the workload is deleted, Kubernetes deletes them even without
// an agent. The last write is the complete workload with a hash of its content:
//
//	Namespace -> Deployment, 0 replicas -> ServiceAccount, Secrets, claim,
//	NetworkPolicy, Service, PodDisruptionBudget (owned) -> Deployment + hash
//
// A workload whose hash differs from that of its assignment is incomplete. The next Apply, of this
// agent or another, continues from the objects that exist. It compares each object by its own hash,
// and each write is idempotent. Names are functions of the assignment, so no write creates a second
// object. Changes are safe for the same reasons. Secrets of variables are immutable, and each
// content has its own name. They are written before the template that names them, and are removed
// when no pod refers to them any more.
//
// Removal is one foreground deletion. Kubernetes deletes the pods, then the workload, then the objects that
// it owned. Evicted or refused pods stay until the agent removes them (see replacement.EndedPods).
//
// Scaling down has two steps. The agent first marks the pods that will go as draining. It lowers
// the number of replicas when gateways have released these pods (see replacement/drain.go). A new
// template is rolled out in steps. In each step, the agent sets how many pods may have it, and
// Kubernetes replaces them (see replacement/replace.go). The agent trusts the count of pods only
// when Kubernetes can create no more pods for earlier requests (see replacement/settle.go).
//
// # Several roles
//
// A deployment with several roles is one such workload for each instance. Package groups decides
// about all of these workloads. Each workload is then applied, drained and repaired like the
// workload of a deployment with one role (see roles.go). Package gang decides which of them may have
// pods, so that pods that need each other start all or nothing (see gangs.go). In a cluster
// with PodGroups, the scheduler decides instead.
//
// A deployment with one role is handled in the same way if its instances have several hosts or
// stable slots. In this package and in render, "a deployment with several roles" includes it.
//
// # Few calls
//
// To decide whether a write is needed, the agent uses its caches and the server's answers to its
// own writes, which the caches may not show yet. An assignment that is in place costs no call. An
// idle agent keeps its watches open and renews its lease. During an outage, single calls probe
// whether the server is back, however many deployments wait (see access).
//
// # Watches
//
// The agent watches objects of its kinds that have its labels. It also watches the ReplicaSets of
// its workloads, and stores their counts. It watches nodes. It stores the resources that other
// clients' pods use on nodes, and one line of each Warning event of a pod. It does not watch
// Secrets, because a client that may list Secrets by a label may read all Secrets of the cluster.
// It makes a removed Secret again when a pod needs it.
package kubernetes
