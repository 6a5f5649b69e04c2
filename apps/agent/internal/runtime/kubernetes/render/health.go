package render

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

// HealthCommand is the first argument that turns the agent's program into who makes an
// app's health check.
const HealthCommand = "__health"

const (
	// healthMargin in seconds is for what the container and the kubelet tell each other.
	healthMargin = 1
	// healthCPUMillicores and healthMemoryMiB: a check costs a millisecond. The program has
	// 8 MiB of its own, and 45 of its file, which the kernel drops before it kills.
	healthCPUMillicores = 10
	healthMemoryMiB     = 64
	// healthUser is of who needs nothing from the image but one program, which any user may
	// run; so it does not matter whom the image names.
	healthUser = 65532
)

// healthContainer makes the health check where the kubelet cannot, by the agent's own
// program. It asks at the pod's address, as a kubelet does: some servers listen there only.
// It has nothing of the app's, and no exception that the spec makes is for it.
func (r *rendering) healthContainer() *coreac.ContainerApplyConfiguration {
	memory := corev1.ResourceList{corev1.ResourceMemory: mebibytes(healthMemoryMiB)}
	requests := memory.DeepCopy()
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(healthCPUMillicores, resource.DecimalSI)
	c := coreac.Container().
		WithName(HealthContainerName).WithImage(r.cfg.HealthImage).WithImagePullPolicy(corev1.PullIfNotPresent).
		WithArgs(HealthCommand, "--address=$("+podIP+")", fmt.Sprintf("--port=%d", r.health.asked), fmt.Sprintf("--target-port=%d", r.health.port),
			"--method="+r.health.method, "--path="+literal(r.health.path), fmt.Sprintf("--margin=%ds", healthMargin)).
		WithEnv(fieldEnv(podIP, "status.podIP")).
		WithResources(coreac.ResourceRequirements().WithLimits(memory).WithRequests(requests)).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(coreac.SecurityContext().
			WithRunAsNonRoot(true).WithRunAsUser(healthUser).WithReadOnlyRootFilesystem(true).WithAllowPrivilegeEscalation(false).
			WithCapabilities(coreac.Capabilities().WithDrop("ALL")).
			WithSeccompProfile(coreac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault)))
	for _, code := range r.health.codes {
		c.WithArgs("--code=" + code)
	}
	return c
}
