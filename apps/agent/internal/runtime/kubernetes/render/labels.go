package render

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Domain is the prefix of every label and annotation that is Windlass's own.
const Domain = "windlass.run/"

// Labels that Kubernetes recommends.
const (
	recommended = "app.kubernetes.io/"

	LabelName      = recommended + "name"       // the app's name
	LabelInstance  = recommended + "instance"   // the workload's name
	LabelVersion   = recommended + "version"    // "v7"; not on pods
	LabelComponent = recommended + "component"  // the role
	LabelPartOf    = recommended + "part-of"    // the project's name; not on pods
	LabelManagedBy = recommended + "managed-by" // ManagedBy

	// ManagedBy is the value of LabelManagedBy on all objects of Windlass.
	ManagedBy = "windlass"
)

// Windlass's own labels. Their values are ids, except LabelRegion, which is the
// region's name. The agent of a region changes only objects with the values of Ours in
// LabelManagedBy and LabelRegion.
const (
	LabelRegion      = Domain + "region"
	LabelWorkspace   = Domain + "workspace"
	LabelProject     = Domain + "project"
	LabelEnvironment = Domain + "environment"
	LabelApp         = Domain + "app"
	// LabelDeployment is the deployment that has the workload now. Pods lack it, because
	// a newer deployment may adopt them unchanged.
	LabelDeployment = Domain + "deployment"
	// LabelMadeFor is the deployment for which a pod was made; only on pods. It stays when
	// another deployment adopts the pod, and metrics of the pod are under it.
	LabelMadeFor = Domain + "made-for"
	// LabelWorkload is the workload's key, and the only label in selectors.
	LabelWorkload = Domain + "workload"
	// LabelUnitOf is on objects of one instance of a deployment with several roles: the key that all of these
	// instances have. LabelWorkload is then the instance's own key, see UnitKey. LabelGroup and LabelSlot are its
	// place.
	LabelUnitOf = Domain + "unit-of"
	LabelGroup  = Domain + "group"
	LabelSlot   = Domain + "slot"
	// LabelRank is on objects of one rank of an instance of several hosts.
	LabelRank = Domain + "rank"
)

// Annotations.
const (
	// AnnotationGeneration is the generation of the assignment; on the workload.
	AnnotationGeneration = Domain + "generation"
	// AnnotationTemplateHash is runtime.Assignment.TemplateHash; on the workload and
	// on pods.
	AnnotationTemplateHash = Domain + "template-hash"
	// AnnotationSecretHash is a hash of values of variables and secrets. On a pod, these
	// are the values with which it was made. On the workload, it includes pull secrets.
	AnnotationSecretHash = Domain + "secret-hash"
	// AnnotationDraining is on pods that will be stopped: the time since which gateways drain them.
	AnnotationDraining = Domain + "draining-since"
	// Annotations of a deployment with several roles, on the workload of each instance: what each role should be, as
	// JSON; for which roles its first start waits; and whether it will be removed.
	AnnotationRoles  = Domain + "roles"
	AnnotationWaits  = Domain + "waits"
	AnnotationLeaves = Domain + "leaves"
	// Annotations of an instance of several hosts. On the workload of each rank: how many ranks there are. On pods: the
	// epoch of the instance, and a name of the pods of all ranks that were ready together with the pod.
	AnnotationHosts     = Domain + "hosts"
	AnnotationUnitEpoch = Domain + "unit-epoch"
	AnnotationJoined    = Domain + "joined"
	// AnnotationPeers is on pods: a hash of their file of peers as it was last written. A change of a pod makes its
	// node look at the file at once.
	AnnotationPeers = Domain + "peers"
	// AnnotationPaused is "true" when a person wants the agent to change nothing.
	AnnotationPaused = Domain + "paused"
	// AnnotationCreatedBy is on namespaces that the agent made. It is set only when the
	// agent makes a namespace, and never added to one that exists.
	AnnotationCreatedBy = Domain + "created-by"
	// AnnotationRetention is on claims: RetainKeep or RetainDelete.
	AnnotationRetention = Domain + "retention"
	// AnnotationSecurityException says why the pod does not pass "restricted".
	AnnotationSecurityException = Domain + "security-exception"
	// Texts of people about the version; on the workload.
	AnnotationVersionLabel = Domain + "version-label"
	AnnotationMessage      = Domain + "message"
	AnnotationSourceCommit = Domain + "source-commit"

	RetainKeep   = "keep"
	RetainDelete = "delete"
)

// True is the value of an annotation that is set.
const True = "true"

// ContainerName is the app's container. HealthContainerName is the container that makes the
// health check, in pods where the kubelet cannot. Webhooks may add other containers, so
// annotationDefaultContainer names the app's container for kubectl and other tools.
const (
	ContainerName              = "main"
	HealthContainerName        = "windlass-health"
	annotationDefaultContainer = "kubectl.kubernetes.io/default-container"
)

// Ours selects the objects that this region's agent may change.
func Ours(region string) labels.Set {
	return labels.Set{LabelManagedBy: ManagedBy, LabelRegion: region}
}

// OfWorkload selects the pods, and all objects but the claim, of one workload.
func OfWorkload(region, key string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelWorkload: key})
}

// OfUnits selects the pods and objects of all instances of a deployment with several roles.
func OfUnits(region, key string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelUnitOf: key})
}

// OfDeployment selects the objects that a deployment has now. Pods are found
// through their workload.
func OfDeployment(region, id string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelDeployment: id})
}

// InstanceID returns the instance's id of a pod. It keeps the dashes of the UID, because
// Kubernetes puts the UID into a variable unchanged, and the program must get the same
// id as everything else.
func InstanceID(uid types.UID) string { return instancePrefix + string(uid) }

// UIDOf returns the UID of the pod for an instance's id.
func UIDOf(instanceID string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(instanceID, instancePrefix)
	return types.UID(uid), ok && uid != ""
}

const instancePrefix = "ins_"

// Drains reports whether gateways drain the pod before it is stopped.
func Drains(p *corev1.Pod) bool { return p.Annotations[AnnotationDraining] != "" }

// GPUTolerations returns the tolerations of every instance with devices of that
// resource. A taint that is named like the resource often keeps other pods away from
// nodes with GPUs.
func GPUTolerations(resourceName string) []corev1.Toleration {
	keys := []string{resourceName}
	switch vendor, _, _ := strings.Cut(resourceName, "/"); vendor {
	case vendorNVIDIA, vendorAMD:
		// Nodes with parts of GPUs have the same taint as nodes with whole GPUs.
		if whole := vendor + "/gpu"; whole != resourceName {
			keys = []string{whole, resourceName}
		}
	}
	var out []corev1.Toleration
	for _, k := range keys {
		// Only NoSchedule, because an operator who drains GPU nodes by NoExecute wants instances to go.
		out = append(out, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return out
}

// Vendors whose node labels are known.
const (
	vendorNVIDIA = "nvidia.com"
	vendorAMD    = "amd.com"
)
