package render

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

const (
	// LoaderCommand is the first argument of the agent's program when it fetches files of models in the pod of a server.
	LoaderCommand = "__loader"
	// LoaderContainerName is the container that does this.
	LoaderContainerName = "windlass-loader"
	// LoaderKeyEnv is the variable with the loader's key, in hexadecimal.
	LoaderKeyEnv = "LOADER_KEY"

	loaderVolume = "windlass-models"
	// DefaultModelsMount is where the volume is mounted, in both containers.
	DefaultModelsMount = "/var/run/windlass-models"
	// modelRepositoryEnv is the variable with the directory in which a server finds its models, each in a directory of its
	// name.
	modelRepositoryEnv = "WINDLASS_MODEL_REPOSITORY"
	podUID             = "WINDLASS_POD_UID"

	// firstLoader is the first port to try for the loader, as firstAsked for health checks.
	firstLoader = 17740
	// A download needs more memory with more parts at once. The limit of memory includes the pages of files, which the
	// kernel drops first.
	loaderCPUMillicores = 50
	loaderMemoryMiB     = 256
	loaderKeyField      = "key"
)

// hasLoader reports whether the pod has a loader: it is a server of models, and the agent has an image for it.
func (r *rendering) hasLoader() bool {
	return r.cfg.HasLoaders() && r.spec.GetModels() != nil && r.hostCount() == 1
}

// HasLoaders reports whether pods of servers of models have loaders.
func (c Config) HasLoaders() bool { return c.LoaderImage != "" && c.NameKey != nil }

// modelsMount returns where the volume with files of models is mounted.
func (c Config) modelsMount() string {
	if c.ModelsMount != "" {
		return c.ModelsMount
	}
	return DefaultModelsMount
}

// LoaderKey returns the key that the agent and the loaders of a workload share. name is the workload's name.
func LoaderKey(nameKey []byte, namespace, name string) []byte {
	mac := hmac.New(sha256.New, nameKey)
	_, _ = fmt.Fprintf(mac, "loader\x00%s\x00%s", namespace, name) // a hash returns no error
	return mac.Sum(nil)
}

// loaderSecret returns the Secret with the loader's key. Only the loader's container gets it.
func (r *rendering) loaderSecret() *coreac.SecretApplyConfiguration {
	return coreac.Secret(loaderName(r.name), r.namespace).WithLabels(r.objectLabels()).WithType(corev1.SecretTypeOpaque).
		WithData(map[string][]byte{loaderKeyField: []byte(hex.EncodeToString(LoaderKey(r.cfg.NameKey, r.namespace, r.name)))})
}

// loaderPort returns a port that the app leaves free.
func (r *rendering) loaderPort() int32 {
	n := int32(firstLoader)
	for slices.ContainsFunc(r.ports, func(p port) bool { return p.number == n }) {
		n++
	}
	return n
}

// loaderContainer returns the container that fetches files of models. It starts before the server and ends after it. It has
// none of the app's variables and volumes but the one for models, and the spec's security exceptions do not apply to it.
func (r *rendering) loaderContainer() *coreac.ContainerApplyConfiguration {
	limits := corev1.ResourceList{corev1.ResourceMemory: mebibytesOf(loaderMemoryMiB)}
	requests := limits.DeepCopy()
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(loaderCPUMillicores, resource.DecimalSI)
	port := r.loaderPort()
	c := coreac.Container().
		WithName(LoaderContainerName).WithImage(r.cfg.LoaderImage).WithImagePullPolicy(corev1.PullIfNotPresent).
		WithRestartPolicy(corev1.ContainerRestartPolicyAlways).
		WithArgs(LoaderCommand, "--address=$("+podIP+")", fmt.Sprintf("--port=%d", port), "--dir="+r.cfg.modelsMount(), "--pod=$("+podUID+")").
		WithPorts(coreac.ContainerPort().WithName("loader").WithContainerPort(port).WithProtocol(corev1.ProtocolTCP)).
		WithEnv(
			fieldEnv(podUID, "metadata.uid"), fieldEnv(podIP, "status.podIP"),
			coreac.EnvVar().WithName(LoaderKeyEnv).WithValueFrom(coreac.EnvVarSource().WithSecretKeyRef(
				coreac.SecretKeySelector().WithName(loaderName(r.name)).WithKey(loaderKeyField))),
		).
		WithVolumeMounts(coreac.VolumeMount().WithName(loaderVolume).WithMountPath(r.cfg.modelsMount())).
		WithResources(coreac.ResourceRequirements().WithLimits(limits).WithRequests(requests)).
		WithStartupProbe(coreac.Probe().WithPeriodSeconds(1).WithFailureThreshold(60).
			WithHTTPGet(coreac.HTTPGetAction().WithPath(runtime.LoaderReadyPath).WithPort(intstr.FromInt32(port)))).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(coreac.SecurityContext().
			WithRunAsNonRoot(true).WithRunAsUser(healthUser).WithReadOnlyRootFilesystem(true).WithAllowPrivilegeEscalation(false).
			WithCapabilities(coreac.Capabilities().WithDrop("ALL")).
			WithSeccompProfile(coreac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault)))
	if n := r.role.resources.GetEphemeralStorageMib(); n > 0 {
		c.WithArgs(fmt.Sprintf("--disk-mib=%d", n))
	}
	for _, network := range r.cfg.ModelAllow {
		c.WithArgs("--allow=" + network)
	}
	return c
}

// loaderMount returns the mount of the server's container.
func (r *rendering) loaderMount() *coreac.VolumeMountApplyConfiguration {
	return coreac.VolumeMount().WithName(loaderVolume).WithMountPath(r.cfg.modelsMount()).WithReadOnly(true)
}

// loaderPodVolume returns the volume with files of models. It ends with the pod.
func (r *rendering) loaderPodVolume() *coreac.VolumeApplyConfiguration {
	dir := coreac.EmptyDirVolumeSource()
	if n := r.role.resources.GetEphemeralStorageMib(); n > 0 {
		dir.WithSizeLimit(mebibytesOf(n))
	}
	return coreac.Volume().WithName(loaderVolume).WithEmptyDir(dir)
}
