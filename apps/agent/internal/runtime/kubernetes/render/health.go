package render

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

// HealthCommand is the first argument of the agent's program when it makes an app's health check.
const HealthCommand = "__health"

const (
	// healthMargin is the time for the call from the kubelet to the container, in seconds.
	healthMargin = 1
	// healthCPUMillicores and healthMemoryMiB are more than a check needs. The limit of memory
	// includes the pages of the program's file, which the kernel drops first.
	healthCPUMillicores = 10
	healthMemoryMiB     = 64
	// healthUser is an unprivileged user. Any user may run the program, so the image's user
	// does not matter.
	healthUser = 65532
)

// isChecked reports whether the pod has a health check. Ranks above 0 have none, because engines
// serve HTTP only on the leader, and the leader is not healthy without the other ranks. These ranks
// count as ready while they run.
func (r *rendering) isChecked() bool { return r.hostCount() == 1 || r.a.Unit.Rank == 0 }

// healthContainer returns the container that makes a health check that the kubelet cannot make. It
// runs the agent's own program. It calls the pod's address, as a kubelet does, because some servers
// listen only there. It does not get the app's variables and volumes, and the spec's security
// exceptions do not apply to it.
func (r *rendering) healthContainer() *coreac.ContainerApplyConfiguration {
	memory := corev1.ResourceList{corev1.ResourceMemory: mebibytesOf(healthMemoryMiB)}
	requests := memory.DeepCopy()
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(healthCPUMillicores, resource.DecimalSI)
	c := coreac.Container().
		WithName(HealthContainerName).WithImage(r.cfg.HealthImage).WithImagePullPolicy(corev1.PullIfNotPresent).
		WithArgs(HealthCommand, "--address=$("+podIP+")", fmt.Sprintf("--port=%d", r.health.asked), fmt.Sprintf("--target-port=%d", r.health.port),
			"--method="+r.health.method, "--path="+escapeWord(r.health.path), fmt.Sprintf("--margin=%ds", healthMargin)).
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
