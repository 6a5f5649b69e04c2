// Package render converts an assignment to the Kubernetes objects that run it, with their names,
// labels and annotations. It is pure: it has no clock, client or state, and the same assignment
// gives the same bytes.
//
//	environment   Namespace
//	app           `-- PersistentVolumeClaim        shared by the app's versions
//	workload      `-- Deployment --> ReplicaSet --> Pods
//	              |-- ServiceAccount               without a token
//	              |-- Secret -env-<hash>           variables, secrets: immutable
//	              |-- Secret -identity             values that change while pods stay
//	              |-- Secret -pull-<hash>          for the image, one per registry
//	              |-- Service, PodDisruptionBudget, NetworkPolicy
//
// # Which changes replace instances
//
// A Deployment replaces its pods only when their template changes. So a value is in the template
// only if its change must replace instances:
//
//   - Values of variables and secrets are in an immutable Secret. Its name has a hash of its
//     contents. So other values mean another Secret with another name, and the template changes.
//     Pods with the old name restart with the old values.
//   - The deployment's id and version and the number of replicas are in a Secret that changes. A
//     newer deployment may adopt the pods, and scaling must not restart them. An instance gets the
//     values at its start.
//   - Pods have only labels that adoption and renaming do not change. The workload has the other
//     labels. A Deployment's selector has only the workload's key.
//   - The name of a Secret with a registry's password does not depend on the password.
//
// A change of this package may also change templates, and so replace instances. The golden files
// show such a change.
//
// # Ownership of objects and fields
//
// Each object has the labels of Ours. The rendered configurations have the fields that the agent
// owns. All other fields belong to the client that sets them: an autoscaler, a webhook, a person.
//
// # Refusals
//
// Render refuses an assignment that would not run as its spec says, with a *runtime.Rejection that
// names the field. The API of the control plane refuses most of these assignments earlier. Render
// refuses the assignments that an older or newer API accepts, and those that only the region can
// check, for example because of pools and labels of nodes. Render adds the labels, annotations and
// tolerations of the spec to its own. They never replace its own.
//
// # Limits of pods
//
// An HTTP probe sends GET and accepts 200 to 399. A health check with another method or with codes
// is made by a second container, which the kubelet calls instead of the app. Without an image for
// that container, the check is refused. Times are whole seconds, rounded up. Pods of a Deployment
// have no order, so WINDLASS_GROUP exists only if there is one replica. One role with several
// instances is refused, because it is not supported.
//
// # Several roles
//
// Each instance of a deployment with several roles is a Deployment of one pod. So it keeps its
// group, role and slot, and any instance can be removed. Assignment.Unit names the instance. It has
// the objects above except PodDisruptionBudget, which all instances of the deployment share. It has
// a Service only in a stable slot, or for the ranks of an instance of several hosts. The instances
// of a group share a Secret with their addresses.
package render
