package render

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// Domain is the prefix of every label and annotation that is Windlass's own.
const Domain = "windlass.run/"

// These are labels that Kubernetes recommends.
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

// These are Windlass's own labels. Their values are ids, except LabelRegion, which has the region's
// name. The agent of a region changes only objects whose LabelManagedBy and LabelRegion have the
// values of Ours.
const (
	LabelRegion      = Domain + "region"
	LabelWorkspace   = Domain + "workspace"
	LabelProject     = Domain + "project"
	LabelEnvironment = Domain + "environment"
	LabelApp         = Domain + "app"
	// LabelDeployment is the deployment that has the workload now. Pods do not have this label,
	// because a newer deployment may adopt them unchanged.
	LabelDeployment = Domain + "deployment"
	// LabelMadeFor is the deployment for which a pod was made. Only pods have it. It stays when
	// another deployment adopts the pod. Metrics of the pod are under this deployment.
	LabelMadeFor = Domain + "made-for"
	// LabelWorkload is the workload's key. It is the only label in a Deployment's selector.
	LabelWorkload = Domain + "workload"
	// LabelUnitOf is on the objects of one instance of a deployment with several roles. It is the
	// key that all these instances have. LabelWorkload is then the instance's own key; see UnitKey.
	// LabelGroup and LabelSlot are the instance's place.
	LabelUnitOf = Domain + "unit-of"
	LabelGroup  = Domain + "group"
	LabelSlot   = Domain + "slot"
	// LabelRank is on the objects of one rank of an instance of several hosts.
	LabelRank = Domain + "rank"
)

// The annotations.
const (
	// AnnotationGeneration is the generation of the assignment. It is on the workload.
	AnnotationGeneration = Domain + "generation"
	// AnnotationTemplateHash is runtime.Assignment.TemplateHash. It is on the workload and on pods.
	AnnotationTemplateHash = Domain + "template-hash"
	// AnnotationSecretHash is a hash of the values of variables and secrets. On a pod, these are
	// the values with which it was made. On the workload, the hash includes pull secrets.
	AnnotationSecretHash = Domain + "secret-hash"
	// AnnotationDraining is on pods that will be stopped. It is the time since which gateways drain
	// them.
	AnnotationDraining = Domain + "draining-since"
	// These annotations are on the workload of each instance of a deployment with several roles.
	// AnnotationRoles says, as JSON, what each role should be. AnnotationWaits says why the instance
	// has no pod yet. AnnotationWaitsReason is the reason's code: runtime.ReasonWaitsForRole if it is
	// missing. AnnotationLeaves says whether the instance will be removed.
	AnnotationRoles       = Domain + "roles"
	AnnotationWaits       = Domain + "waits"
	AnnotationWaitsReason = Domain + "waits-reason"
	AnnotationLeaves      = Domain + "leaves"
	// AnnotationDomain is on pods of a gang that runs in one part of the region. It is the runtime.Domain
	// as JSON; see DomainText.
	AnnotationDomain = Domain + "domain"
	// These annotations belong to an instance of several hosts. AnnotationHosts is on the workload
	// of each rank, and is the number of ranks. The other two are on pods. AnnotationUnitEpoch is
	// the epoch of the instance. AnnotationJoined is a name of the pods of all ranks that were
	// ready together with the pod.
	AnnotationHosts     = Domain + "hosts"
	AnnotationUnitEpoch = Domain + "unit-epoch"
	AnnotationJoined    = Domain + "joined"
	// AnnotationPeers is on pods. It is a hash of their peers file as it was last written. When a
	// pod changes, its node reads the file at once.
	AnnotationPeers = Domain + "peers"
	// AnnotationPaused is "true" if a person wants the agent to change nothing.
	AnnotationPaused = Domain + "paused"
	// AnnotationCreatedBy is on namespaces that the agent made. It is set only when the agent makes
	// a namespace, and never added to an existing namespace.
	AnnotationCreatedBy = Domain + "created-by"
	// AnnotationRetention is on claims. Its value is RetainKeep or RetainDelete.
	AnnotationRetention = Domain + "retention"
	// AnnotationSecurityException says why the pod does not pass the "restricted" standard.
	AnnotationSecurityException = Domain + "security-exception"
	// These annotations are on the workload. They are texts that people wrote about the version.
	AnnotationVersionLabel = Domain + "version-label"
	AnnotationMessage      = Domain + "message"
	AnnotationSourceCommit = Domain + "source-commit"

	RetainKeep   = "keep"
	RetainDelete = "delete"
)

// True is the value of an annotation that is on.
const True = "true"

// ContainerName is the app's container. HealthContainerName is the container that makes the health
// check, in pods where the kubelet cannot make it. Webhooks may add other containers, so
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

// OfWorkload selects the pods of one workload, and all its objects except the claim.
func OfWorkload(region, key string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelWorkload: key})
}

// OfUnits selects the pods and objects of all instances of a deployment with several roles.
func OfUnits(region, key string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelUnitOf: key})
}

// OfDeployment selects the objects that belong to a deployment now. Pods are not among them: they
// are found through their workload.
func OfDeployment(region, id string) labels.Set {
	return labels.Merge(Ours(region), labels.Set{LabelDeployment: id})
}

// InstanceID returns the instance id of a pod. It keeps the dashes of the UID, because Kubernetes
// puts the UID into a variable unchanged, and the program must get the same id as all others.
func InstanceID(uid types.UID) string { return instancePrefix + string(uid) }

// UIDOf returns the UID of the pod for an instance's id.
func UIDOf(instanceID string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(instanceID, instancePrefix)
	return types.UID(uid), ok && uid != ""
}

const instancePrefix = "ins_"

// DomainText returns a domain in the form of AnnotationDomain, or "" for nil.
func DomainText(d *runtime.Domain) string {
	if d == nil {
		return ""
	}
	data, err := json.Marshal(d)
	if err != nil {
		return "" // a struct of texts can always be encoded
	}
	return string(data)
}

// DomainOf reads AnnotationDomain. It returns nil if there is none.
func DomainOf(annotations map[string]string) *runtime.Domain {
	text := annotations[AnnotationDomain]
	if text == "" {
		return nil
	}
	d := &runtime.Domain{}
	if json.Unmarshal([]byte(text), d) != nil {
		return nil // another client has changed it
	}
	return d
}

// Drains reports whether gateways drain the pod before it is stopped.
func Drains(p *corev1.Pod) bool { return p.Annotations[AnnotationDraining] != "" }

// GPUTolerations returns the tolerations of every instance with devices of this resource. Nodes
// with GPUs often have a taint with the name of the resource, which keeps other pods away.
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
		// The toleration is only for NoSchedule, because an operator who drains GPU nodes with
		// NoExecute wants instances to go.
		out = append(out, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return out
}

// Vendors whose node labels are known.
const (
	vendorNVIDIA = "nvidia.com"
	vendorAMD    = "amd.com"
)
