// Package render turns an assignment into the Kubernetes objects that run it, and
// is where all of them get their names, labels and annotations. It does nothing
// else: no clock, no client, no state; the same assignment gives the same bytes.
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
// A Deployment replaces its pods when their template changes, and for nothing
// else. So the template holds what instances are made of, and all the rest is kept
// out of it:
//
//   - Values of variables and secrets are in a Secret that is named by its contents
//     and cannot change. Other values are another Secret, another name, another
//     template; pods that have the old name restart with the old values.
//   - The deployment's id and version and the number of replicas are in a Secret
//     that does change, because a newer deployment may adopt the pods and scaling
//     must not restart them. An instance has them as they were when it started.
//   - Labels of pods are those that adoption and renaming leave alone. The rest are
//     on the workload. Selectors go by the workload's key only.
//   - A registry's new password reaches a Secret whose name it does not change.
//
// Conversely, a change of what this package makes of an assignment changes templates: the
// golden files show it.
//
// # Whose objects they are
//
// Each object has the labels of Ours. The rendered configurations name the fields
// that are ours; fields that they leave out belong to the client that sets them: an
// autoscaler, a webhook, a person.
//
// # Refusing
//
// Render refuses what would not run as the spec says it should, with a
// *runtime.Rejection that names the field. The API of the control plane refuses
// most of it earlier; this is for what an older or newer one lets through, and for
// what only the region knows: its pools, and what nodes are labelled with.
// Configuration of pods that the spec brings itself is added to what is made here
// and never in its place.
//
// # What a pod cannot be told
//
// A probe asks by GET and passes by 200 to 399. A health check that says another method, or
// codes, is made by a second container, which the kubelet asks in place of the app; where no
// image is configured for that, it is refused. Times are whole seconds, rounded up. Pods of a
// Deployment have no order: WINDLASS_GROUP is there only when there is one replica. An
// instance of several roles, or of several pods, has no form here yet and is refused.
package render
