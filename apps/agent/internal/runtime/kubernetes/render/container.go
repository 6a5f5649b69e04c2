package render

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

const (
	defaultCPUMillicores = 500
	defaultMemoryMiB     = 512
	// defaultShmMiB is what tensor parallelism needs for what its ranks tell each
	// other; container runtimes give 64 MiB.
	defaultShmMiB = 1024
)

func (r *rendering) container(variables *coreac.SecretApplyConfiguration) (*coreac.ContainerApplyConfiguration, error) {
	resources, err := r.resources()
	if err != nil {
		return nil, err
	}
	c := coreac.Container().
		WithName(ContainerName).WithImage(r.role.image).
		// Images come by digest. Asking the registry again at each start would make it
		// a part of every restart.
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithResources(resources).
		// The last lines of a program that failed are the reason that people read.
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(r.containerSecurity())
	for i, word := range r.role.command {
		if word == "" || strings.ContainsRune(word, 0) {
			return nil, invalid("%scommand[%d]: it is empty or holds a zero byte", r.role.at, i)
		}
		c.WithCommand(literal(word))
	}
	for i, arg := range r.role.args {
		if strings.ContainsRune(arg, 0) {
			return nil, invalid("%sargs[%d]: it holds a zero byte", r.role.at, i)
		}
		c.WithArgs(argument(arg))
	}
	for _, p := range r.ports {
		c.WithPorts(coreac.ContainerPort().WithName(p.short).WithContainerPort(p.number).WithProtocol(corev1.ProtocolTCP))
	}
	// What comes later wins; env wins over both.
	if variables != nil {
		c.WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName(*variables.Name)))
	}
	c.WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName(identityName(r.name))))
	c.WithEnv(r.env()...)
	c.WithVolumeMounts(r.mounts()...)
	c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = r.health.probes()
	if r.health.drain > 0 {
		c.WithLifecycle(coreac.Lifecycle().WithPreStop(coreac.LifecycleHandler().
			WithSleep(coreac.SleepAction().WithSeconds(r.health.drain))))
	}
	return c, nil
}

// resources: memory is requested as it is limited, because a node that promised
// more than it has takes it back by killing. CPU is requested and not limited: a
// share is kept by weight when the node is full, and a limit would only let cores
// idle while a tokenizer waits for the next period.
func (r *rendering) resources() (*coreac.ResourceRequirementsApplyConfiguration, error) {
	res, at := r.role.resources, r.role.at+"resources."
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"cpu_millicores", res.GetCpuMillicores()},
		{"memory_mib", res.GetMemoryMib()},
		{"shm_mib", res.GetShmMib()},
		{"ephemeral_storage_mib", res.GetEphemeralStorageMib()},
	} {
		if f.value < 0 {
			return nil, invalid("%s%s: %d is negative", at, f.name, f.value)
		}
	}
	cpu, memory := res.GetCpuMillicores(), res.GetMemoryMib()
	if cpu == 0 {
		cpu = defaultCPUMillicores
	}
	if memory == 0 {
		memory = defaultMemoryMiB
	}
	limits := corev1.ResourceList{corev1.ResourceMemory: mebibytes(memory)}
	if n := res.GetEphemeralStorageMib(); n > 0 {
		limits[corev1.ResourceEphemeralStorage] = mebibytes(n)
	}
	if r.gpu.count > 0 {
		limits[corev1.ResourceName(r.gpu.resource)] = *resource.NewQuantity(int64(r.gpu.count), resource.DecimalSI)
	}
	requests := limits.DeepCopy()
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpu), resource.DecimalSI)
	return coreac.ResourceRequirements().WithLimits(limits).WithRequests(requests), nil
}

func mebibytes(n int32) resource.Quantity {
	return *resource.NewQuantity(int64(n)<<20, resource.BinarySI)
}

func gibibytes(n int32) resource.Quantity {
	return *resource.NewQuantity(int64(n)<<30, resource.BinarySI)
}

// podIP is the variable that has the pod's address.
const podIP = "WINDLASS_POD_IP"

// fieldEnv is a variable that has a field of the pod.
func fieldEnv(name, path string) *coreac.EnvVarApplyConfiguration {
	return coreac.EnvVar().WithName(name).WithValueFrom(coreac.EnvVarSource().
		WithFieldRef(coreac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath(path)))
}

// env is what the template itself says to an instance. Values have no dollar sign
// but the one that is meant: Kubernetes replaces $(NAME) in them.
func (r *rendering) env() []*coreac.EnvVarApplyConfiguration {
	value := func(name, v string) *coreac.EnvVarApplyConfiguration {
		return coreac.EnvVar().WithName(name).WithValue(v)
	}
	out := []*coreac.EnvVarApplyConfiguration{
		// Before the one that refers to it.
		fieldEnv("WINDLASS_POD_UID", "metadata.uid"),
		fieldEnv(podIP, "status.podIP"),
		value("WINDLASS_INSTANCE_ID", instancePrefix+"$(WINDLASS_POD_UID)"),
		value("WINDLASS_APP", r.d.GetAppName()),
		value("WINDLASS_REGION", r.cfg.Region),
		value("WINDLASS_ROLE", r.role.name),
		value("WINDLASS_SLOT", "0"),
	}
	for i, p := range r.ports {
		n := strconv.Itoa(int(p.number))
		if i == 0 {
			out = append(out, value("PORT", n))
		}
		out = append(out, value("PORT_"+strings.ToUpper(strings.ReplaceAll(p.name, "-", "_")), n))
	}
	// Without a GPU of its own it must not find those of its neighbours.
	if !strings.HasPrefix(r.gpu.resource, vendorNVIDIA+"/") {
		out = append(out, value(nvidiaVisible, "void"))
	}
	if r.gpu.count == 0 {
		out = append(out, value(cudaVisible, ""))
	}
	return out
}

// reference is what spec.proto gives a meaning to.
var reference = regexp.MustCompile(`\$\$\(|\$\([A-Za-z_][A-Za-z0-9_]*\)|\$`)

// argument writes an argument so that Kubernetes makes of it what spec.proto says.
// Both replace $(NAME), by all variables of the container wherever they come from,
// and leave it where there is no such variable. But Kubernetes takes $$ for one $
// everywhere, not only before a parenthesis, and anything between parentheses for
// a name; a dollar that means nothing to us is doubled, so that it means nothing
// there.
func argument(arg string) string {
	return reference.ReplaceAllStringFunc(arg, func(m string) string {
		if m == "$" {
			return "$$"
		}
		return m
	})
}

// literal writes a word that nothing is replaced in, as command has none.
func literal(word string) string { return strings.ReplaceAll(word, "$", "$$") }

// shmMiB is the size of /dev/shm; 0: the container runtime's own.
func (r *rendering) shmMiB() int32 {
	if n := r.role.resources.GetShmMib(); n > 0 || r.gpu.count == 0 {
		return n
	}
	return defaultShmMiB
}

const (
	shmVolume   = "shm"
	shmPath     = "/dev/shm"
	cacheVolume = "model-cache"
)

func (r *rendering) mounts() []*coreac.VolumeMountApplyConfiguration {
	var out []*coreac.VolumeMountApplyConfiguration
	if r.shmMiB() > 0 {
		out = append(out, coreac.VolumeMount().WithName(shmVolume).WithMountPath(shmPath))
	}
	if c := r.spec.GetModelCache(); c != nil {
		out = append(out, coreac.VolumeMount().WithName(cacheVolume).WithMountPath(c.GetMountPath()))
	}
	return out
}

func (r *rendering) volumes() []*coreac.VolumeApplyConfiguration {
	var out []*coreac.VolumeApplyConfiguration
	if n := r.shmMiB(); n > 0 {
		out = append(out, coreac.Volume().WithName(shmVolume).WithEmptyDir(coreac.EmptyDirVolumeSource().
			WithMedium(corev1.StorageMediumMemory).WithSizeLimit(mebibytes(n))))
	}
	switch c := r.spec.GetModelCache(); {
	case c == nil:
	case c.GetClaim() != nil:
		out = append(out, coreac.Volume().WithName(cacheVolume).WithPersistentVolumeClaim(
			coreac.PersistentVolumeClaimVolumeSource().WithClaimName(ClaimName(r.d.GetAppName(), r.d.GetAppId()))))
	default:
		out = append(out, coreac.Volume().WithName(cacheVolume).WithHostPath(coreac.HostPathVolumeSource().
			WithPath(c.GetHostPath()).WithType(corev1.HostPathDirectoryOrCreate)))
	}
	return out
}

// at names a field of a map for people.
func at(field, key string) string { return fmt.Sprintf("%s[%q]", field, key) }
