package render

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

const (
	defaultCPUMillicores = 500
	defaultMemoryMiB     = 512
	// defaultShmMiB is enough for the communication between ranks in tensor parallelism. The
	// default of container runtimes, 64 MiB, is not.
	defaultShmMiB = 1024
)

func (r *rendering) mainContainer(variables *coreac.SecretApplyConfiguration) (*coreac.ContainerApplyConfiguration, error) {
	resources, err := r.resourceLimits()
	if err != nil {
		return nil, err
	}
	c := coreac.Container().
		WithName(ContainerName).WithImage(r.role.image).
		// Images have digests, so a pull at each start would find nothing new. With another policy,
		// every restart would depend on the registry.
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithResources(resources).
		// The last lines of a failed program's log become the message that people read.
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(r.containerSecurity())
	for i, word := range r.role.command {
		if word == "" || strings.ContainsRune(word, 0) {
			return nil, invalidError("%scommand[%d]: it is empty or contains a zero byte", r.role.at, i)
		}
		c.WithCommand(escapeWord(word))
	}
	for i, arg := range r.role.args {
		if strings.ContainsRune(arg, 0) {
			return nil, invalidError("%sargs[%d]: it contains a zero byte", r.role.at, i)
		}
		c.WithArgs(escapeArgument(arg))
	}
	for _, p := range r.ports {
		c.WithPorts(coreac.ContainerPort().WithName(p.short).WithContainerPort(p.number).WithProtocol(corev1.ProtocolTCP))
	}
	// The later source wins, and env wins over both.
	if variables != nil {
		c.WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName(*variables.Name)))
	}
	c.WithEnvFrom(coreac.EnvFromSource().WithSecretRef(coreac.SecretEnvSource().WithName(identityName(r.name))))
	c.WithEnv(r.containerEnv()...)
	c.WithVolumeMounts(r.volumeMounts()...)
	if r.isChecked() {
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = r.health.allProbes()
	}
	if r.health.drain > 0 {
		c.WithLifecycle(coreac.Lifecycle().WithPreStop(coreac.LifecycleHandler().
			WithSleep(coreac.SleepAction().WithSeconds(r.health.drain))))
	}
	return c, nil
}

// resourceLimits returns the requests and limits. The request of memory equals its limit, because a node
// that has promised more memory than it has kills processes. CPU has a request but no limit. The
// request guarantees a share on a full node. A limit would only stop the program while cores are
// idle.
func (r *rendering) resourceLimits() (*coreac.ResourceRequirementsApplyConfiguration, error) {
	res, at := r.role.resources, r.role.at+"resources."
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"cpuMillicores", res.GetCpuMillicores()},
		{"memoryMib", res.GetMemoryMib()},
		{"shmMib", res.GetShmMib()},
		{"ephemeralStorageMib", res.GetEphemeralStorageMib()},
	} {
		if f.value < 0 {
			return nil, invalidError("%s%s: %d is negative", at, f.name, f.value)
		}
	}
	cpu, memory := res.GetCpuMillicores(), res.GetMemoryMib()
	if cpu == 0 {
		cpu = defaultCPUMillicores
	}
	if memory == 0 {
		memory = defaultMemoryMiB
	}
	limits := corev1.ResourceList{corev1.ResourceMemory: mebibytesOf(memory)}
	if n := res.GetEphemeralStorageMib(); n > 0 {
		limits[corev1.ResourceEphemeralStorage] = mebibytesOf(n)
	}
	if r.gpu.count > 0 {
		limits[corev1.ResourceName(r.gpu.resource)] = *resource.NewQuantity(int64(r.gpu.count), resource.DecimalSI)
	}
	requests := limits.DeepCopy()
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpu), resource.DecimalSI)
	return coreac.ResourceRequirements().WithLimits(limits).WithRequests(requests), nil
}

func mebibytesOf(n int32) resource.Quantity {
	return *resource.NewQuantity(int64(n)<<20, resource.BinarySI)
}

func gibibytesOf(n int32) resource.Quantity {
	return *resource.NewQuantity(int64(n)<<30, resource.BinarySI)
}

// podIP is the name of the variable with the pod's address.
const podIP = "WINDLASS_POD_IP"

// fieldEnv returns a variable whose value is a field of the pod.
func fieldEnv(name, path string) *coreac.EnvVarApplyConfiguration {
	return coreac.EnvVar().WithName(name).WithValueFrom(coreac.EnvVarSource().
		WithFieldRef(coreac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath(path)))
}

// containerEnv returns the variables in the template. Kubernetes replaces $(NAME) in their values. So only a
// value with such a reference may contain a dollar sign.
func (r *rendering) containerEnv() []*coreac.EnvVarApplyConfiguration {
	value := func(name, v string) *coreac.EnvVarApplyConfiguration {
		return coreac.EnvVar().WithName(name).WithValue(v)
	}
	out := []*coreac.EnvVarApplyConfiguration{
		// This variable must come before the variable that refers to it.
		fieldEnv(podUID, "metadata.uid"),
		fieldEnv(podIP, "status.podIP"),
		value("WINDLASS_INSTANCE_ID", instancePrefix+"$(WINDLASS_POD_UID)"),
		value("WINDLASS_APP", r.d.GetAppName()),
		value("WINDLASS_REGION", r.cfg.Region),
		value("WINDLASS_ROLE", r.role.name),
		value("WINDLASS_SLOT", strconv.Itoa(r.slotNumber())),
	}
	if r.hasLoader() {
		out = append(out, value(modelRepositoryEnv, runtime.PodRepository(r.cfg.modelsMount(), "$("+podUID+")")))
	}
	if r.a.Unit != nil {
		out = append(out, value(runtime.PeersEnv, peersPath+"/"+peersFile))
	}
	if r.hasSlotHost() {
		out = append(out, value("WINDLASS_SLOT_HOST", r.name+"."+r.namespace+".svc"))
	}
	if n := r.hostCount(); n > 1 {
		out = append(
			out,
			value("WINDLASS_RANK", strconv.Itoa(r.a.Unit.Rank)), value("WINDLASS_HOSTS", strconv.Itoa(n)),
			value("WINDLASS_UNIT_EPOCH", strconv.Itoa(r.a.Unit.Epoch)),
			value("WINDLASS_LEADER", RankHost(r.a, 0)+"."+RanksName(r.a)+"."+r.namespace+".svc"),
		)
	}
	for i, p := range r.ports {
		n := strconv.Itoa(int(p.number))
		if i == 0 {
			out = append(out, value("PORT", n))
		}
		out = append(out, value("PORT_"+strings.ToUpper(strings.ReplaceAll(p.name, "-", "_")), n))
	}
	// An instance without GPUs must not see the GPUs of other instances.
	if !strings.HasPrefix(r.gpu.resource, vendorNVIDIA+"/") {
		out = append(out, value(nvidiaVisible, "void"))
	}
	if r.gpu.count == 0 {
		out = append(out, value(cudaVisible, ""))
	}
	return out
}

// reference matches the parts of an argument that may have a meaning in spec.proto, and single dollar signs.
var reference = regexp.MustCompile(`\$\$\(|\$\([A-Za-z_][A-Za-z0-9_]*\)|\$`)

// escapeArgument escapes an argument, so that Kubernetes interprets it as spec.proto says. Both replace
// $(NAME) by a variable of the container, and leave it unchanged if there is no such variable. But
// Kubernetes replaces $$ by $ everywhere, not only before a parenthesis, and accepts any name in
// parentheses. So argument doubles each dollar sign that has no meaning in spec.proto.
func escapeArgument(arg string) string {
	return reference.ReplaceAllStringFunc(arg, func(m string) string {
		if m == "$" {
			return "$$"
		}
		return m
	})
}

// escapeWord escapes a word in which nothing may be replaced, for example a word of command.
func escapeWord(word string) string { return strings.ReplaceAll(word, "$", "$$") }

// shmMiB returns the size of /dev/shm in MiB. 0: the container runtime's default.
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
	peersVolume = "windlass-peers"
	peersPath   = "/var/run/windlass"
	peersFile   = "peers.json"
)

func (r *rendering) slotNumber() int {
	if r.a.Unit == nil {
		return 0
	}
	return r.a.Unit.Slot
}

// hostCount returns the number of ranks of the instance.
func (r *rendering) hostCount() int {
	if r.a.Unit == nil {
		return 1
	}
	return max(r.a.Unit.Hosts, 1)
}

func (r *rendering) volumeMounts() []*coreac.VolumeMountApplyConfiguration {
	var out []*coreac.VolumeMountApplyConfiguration
	if r.shmMiB() > 0 {
		out = append(out, coreac.VolumeMount().WithName(shmVolume).WithMountPath(shmPath))
	}
	if c := r.spec.GetModelCache(); c != nil {
		out = append(out, coreac.VolumeMount().WithName(cacheVolume).WithMountPath(c.GetMountPath()))
	}
	if r.hasLoader() {
		out = append(out, r.loaderMount())
	}
	if r.a.Unit != nil {
		out = append(out, coreac.VolumeMount().WithName(peersVolume).WithMountPath(peersPath).WithReadOnly(true))
	}
	return out
}

func (r *rendering) podVolumes() []*coreac.VolumeApplyConfiguration {
	var out []*coreac.VolumeApplyConfiguration
	if n := r.shmMiB(); n > 0 {
		out = append(out, coreac.Volume().WithName(shmVolume).WithEmptyDir(coreac.EmptyDirVolumeSource().
			WithMedium(corev1.StorageMediumMemory).WithSizeLimit(mebibytesOf(n))))
	}
	if r.hasLoader() {
		out = append(out, r.loaderPodVolume())
	}
	if u := r.a.Unit; u != nil {
		// The agent writes this Secret for a whole group, and instances start without waiting for
		// it.
		out = append(out, coreac.Volume().WithName(peersVolume).WithSecret(coreac.SecretVolumeSource().
			WithSecretName(PeersName(r.a, u.Group)).WithOptional(true)))
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

// entryPath returns the path of a map entry, for errors.
func entryPath(field, key string) string { return fmt.Sprintf("%s[%q]", field, key) }
