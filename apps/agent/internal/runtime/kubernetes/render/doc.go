// Package render turns an assignment into the Kubernetes objects that run it, with
// their names, labels and annotations. It is pure: it has no clock, client or state, and
// the same assignment gives the same bytes.
//
//	environment   Namespace
//	app           `-- PersistentVolumeClaim        shared by the app's versions
//	workload      `-- Deployment --> ReplicaSet --> Pods
//	              |-- ServiceAccount               without a token
//	              |-- Secret -env-<hash>           variables, secrets: immutable
//	              |-- Secret -identity             what changes while pods stay
//	              |-- Secret -pull-<hash>          for the image, one a registry
//	              |-- Service, PodDisruptionBudget, NetworkPolicy
//
// # What replaces instances, and what does not
//
// A Deployment replaces its pods only when their template changes. So the template has
// only what must replace instances when it changes:
//
//   - Values of variables and secrets are in an immutable Secret that is named by a hash of
//     its contents. Other values mean another Secret with another name, so the template
//     changes. Pods with the old name restart with the old values.
//   - The deployment's id and version and the number of replicas are in a Secret that
//     changes, because a newer deployment may adopt the pods, and scaling must not
//     restart them. An instance gets the values at its start.
//   - Pods have only labels that adoption and renaming do not change. The workload has
//     the other labels. Selectors use only the workload's key.
//   - The name of a Secret with a registry's password does not depend on the password.
//
// A change of this package may change templates, too, and so replace instances. The golden
// files show it.
//
// # Ownership of objects and fields
//
// Each object has the labels of Ours. The rendered configurations name the fields
// that are ours; fields that they leave out belong to the client that sets them: an
// autoscaler, a webhook, a person.
//
// # Refusing
//
// Render refuses an assignment that would not run as its spec says, with a
// *runtime.Rejection that names the field. The API of the control plane refuses most of
// these earlier. Render refuses what an older or newer API accepts, and what only the
// region can check, such as pools and labels of nodes. Labels, annotations and tolerations
// in the spec are added to those of this package, and never replace them.
//
// # Limits of pods
//
// An HTTP probe sends GET and accepts 200 to 399. A health check with another method or with
// codes is made by a second container, which the kubelet asks in place of the app. Without an
// image for that container, it is refused. Times are whole seconds, rounded up. Pods of a
// Deployment have no order, so WINDLASS_GROUP exists only if there is one replica. One role with
// several instances is not supported and refused.
//
// # Several roles
//
// Each instance of a deployment with several roles is a Deployment of one pod, so that it has a
// group, a role and a slot for life, and any of them can be removed. Assignment.Unit names it. It
// has the objects above but no Service and no PodDisruptionBudget. The instances of a group share
// a Secret with their addresses.
package render
