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

	// ManagedBy is what LabelManagedBy says of all that is ours.
	ManagedBy = "windlass"
)

// Labels of our own. All hold ids but the region's, which is its name. What
// carries LabelManagedBy and LabelRegion, both as ours, is this region's agent's
// to change; nothing else is.
const (
	LabelRegion      = Domain + "region"
	LabelWorkspace   = Domain + "workspace"
	LabelProject     = Domain + "project"
	LabelEnvironment = Domain + "environment"
	LabelApp         = Domain + "app"
	// LabelDeployment is the deployment that has the workload now. Pods lack it: a
	// newer deployment may adopt them as they are.
	LabelDeployment = Domain + "deployment"
	// LabelMadeFor is, on pods alone, the deployment that they were made for. One that
	// adopts them as they are leaves it: it is what their metrics are of.
	LabelMadeFor = Domain + "made-for"
	// LabelWorkload is the workload's key, and all that selectors go by.
	LabelWorkload = Domain + "workload"
)

// Annotations.
const (
	// AnnotationGeneration is the generation of the assignment; on the workload.
	AnnotationGeneration = Domain + "generation"
	// AnnotationTemplateHash is runtime.Assignment.TemplateHash; on the workload and
	// on pods.
	AnnotationTemplateHash = Domain + "template-hash"
	// AnnotationSecretHash tells values of variables and secrets apart. On pods it
	// is of what they were made with; on the workload, of pull secrets, too.
	AnnotationSecretHash = Domain + "secret-hash"
	// AnnotationDraining is on pods that are to go: since when gateways finish with them.
	AnnotationDraining = Domain + "draining-since"
	// AnnotationPaused is "true" when a person wants the agent to keep its hands off.
	AnnotationPaused = Domain + "paused"
	// AnnotationCreatedBy is on namespaces that the agent made. It is set only when a
	// namespace is made: an agent that finds the namespace there must not add it.
	AnnotationCreatedBy = Domain + "created-by"
	// AnnotationRetention is on claims: RetainKeep or RetainDelete.
	AnnotationRetention = Domain + "retention"
	// AnnotationSecurityException says why the pod does not pass "restricted".
	AnnotationSecurityException = Domain + "security-exception"
	// What people wrote about the version; on the workload.
	AnnotationVersionLabel = Domain + "version-label"
	AnnotationMessage      = Domain + "message"
	AnnotationSourceCommit = Domain + "source-commit"

	RetainKeep   = "keep"
	RetainDelete = "delete"
)

// True is how an annotation says yes.
const True = "true"

// ContainerName is the app's container. HealthContainerName makes its health check, in pods
// where the kubelet cannot. A webhook may add more; the annotation tells kubectl and others
// which one is meant.
const (
	ContainerName              = "main"
	HealthContainerName        = "windlass-health"
	annotationDefaultContainer = "kubectl.kubernetes.io/default-container"
)

// Ours selects what this region's agent may change.
func Ours(region string) labels.Set {
	return labels.Set{LabelManagedBy: ManagedBy, LabelRegion: region}
}

// OfWorkload selects the pods, and all objects but the claim, of one workload.
func OfWorkload(region, key string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelWorkload: key})
}

// OfDeployment selects the objects that a deployment has now. Pods are found
// through their workload.
func OfDeployment(region, id string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelDeployment: id})
}

// InstanceID is the id of the instance that a pod is. It keeps the dashes of the
// UID: Kubernetes can put the UID into a variable and has no means to change it
// on the way, and the program must find the very id that everyone else sees.
func InstanceID(uid types.UID) string { return instancePrefix + string(uid) }

// UIDOf is the pod that InstanceID named.
func UIDOf(instanceID string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(instanceID, instancePrefix)
	return types.UID(uid), ok && uid != ""
}

const instancePrefix = "ins_"

// Drains reports whether the pod is to go, and gateways finish with it first.
func Drains(p *corev1.Pod) bool { return p.Annotations[AnnotationDraining] != "" }

// GPUTolerations are the tolerations of every instance with devices of that
// resource: nodes with GPUs are often closed to all others by a taint that is
// named like the resource.
func GPUTolerations(resourceName string) []corev1.Toleration {
	keys := []string{resourceName}
	switch vendor, _, _ := strings.Cut(resourceName, "/"); vendor {
	case vendorNVIDIA, vendorAMD:
		// Parts of GPUs sit on nodes that are tainted as the whole ones are.
		if whole := vendor + "/gpu"; whole != resourceName {
			keys = []string{whole, resourceName}
		}
	}
	var out []corev1.Toleration
	for _, k := range keys {
		// NoSchedule only: an operator who drains GPU nodes by NoExecute means us.
		out = append(out, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return out
}

// Vendors that label their nodes in ways that we know.
const (
	vendorNVIDIA = "nvidia.com"
	vendorAMD    = "amd.com"
)
