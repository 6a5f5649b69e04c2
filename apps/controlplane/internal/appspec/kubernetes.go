package appspec

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxAnnotationBytes leaves room for Windlass' own annotations below Kubernetes' limit of 256 KiB for all
// annotations of an object.
const maxAnnotationBytes = 192 << 10

// checkResources validates the resources of one instance.
func checkResources(r *windlassv1.Resources, field string) error {
	if shm, memory := r.GetShmMib(), r.GetMemoryMib(); memory > 0 && shm > memory {
		return apierr.InvalidFix(field+".shmMib",
			fmt.Sprintf("shmMib is %d, above memoryMib, which is %d, but data in /dev/shm counts as memory", shm, memory),
			"Set memoryMib to shmMib plus the memory that the program itself needs.")
	}
	name := r.GetGpu().GetResourceName()
	if domain, _, _ := strings.Cut(name, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		return apierr.InvalidFix(field+".gpu.resourceName", fmt.Sprintf("%s is a built-in resource of Kubernetes, not a GPU", name),
			`Name it as the device plugin does: "nvidia.com/gpu" or "amd.com/gpu", for example.`)
	}
	return nil
}

// checkKubernetes validates the fields that only Kubernetes regions read. A cluster would refuse most of
// these specs, too, but only after the rollout has begun.
func checkKubernetes(s *windlassv1.DeploymentSpec, field string) error {
	if err := checkModelCache(s, field); err != nil {
		return err
	}
	k, field := s.GetKubernetes(), field+".kubernetes"
	if err := checkSelector(k.GetNodeSelector(), field+".node_selector"); err != nil {
		return err
	}
	if err := checkTolerations(k.GetTolerations(), field); err != nil {
		return err
	}
	if err := checkPodLabels(k.GetPodLabels(), field+".pod_labels"); err != nil {
		return err
	}
	if err := checkAnnotations(k.GetPodAnnotations(), field+".pod_annotations"); err != nil {
		return err
	}
	return checkSecurity(s, field)
}

// isTaken reports whether the key is reserved for Windlass.
func isTaken(key string) bool {
	return strings.HasPrefix(key, "windlass.run/") || strings.HasPrefix(key, "app.kubernetes.io/")
}

func takenError(field, key, fix string) error {
	return apierr.InvalidFix(fmt.Sprintf("%s[%q]", field, key), key+" is taken: names under windlass.run/ and app.kubernetes.io/ are Windlass' own", fix)
}

func checkSelector(selector map[string]string, field string) error {
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if isTaken(key) {
			return takenError(field, key, "Select a pool of the region with resources.gpu.pool, or select nodes by another label.")
		}
		for _, say := range []struct{ label, field string }{
			{"nvidia.com/gpu.product", "product"}, {"nvidia.com/gpu.memory", "minMemoryMib"}, {"nvidia.com/gpu.count", "count"},
		} {
			if key == say.label {
				return apierr.InvalidFix(fmt.Sprintf("%s[%q]", field, key), key+" has its own field",
					fmt.Sprintf("Set resources.gpu.%s, which regions of every kind understand.", say.field))
			}
		}
	}
	return nil
}

func checkTolerations(list []*windlassv1.Toleration, field string) error {
	seen := map[string]int{}
	for i, t := range list {
		at := fmt.Sprintf("%s.tolerations[%d]", field, i)
		if t.GetKey() == "" && t.GetValue() != "" {
			return apierr.InvalidFix(at+".value", fmt.Sprintf("value %q has no key", t.GetValue()), "Set key, or remove value to tolerate every taint.")
		}
		id := strings.Join([]string{t.GetKey(), t.GetValue(), t.GetEffect()}, "\x00")
		if first, ok := seen[id]; ok {
			return apierr.InvalidFix(at, fmt.Sprintf("it is the same as tolerations[%d]", first), "Remove one of the two.")
		}
		seen[id] = i
	}
	return nil
}

func checkPodLabels(labels map[string]string, field string) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if isTaken(key) {
			return takenError(field, key, "Use your own prefix.")
		}
		if key == "pod-template-hash" || key == "controller-revision-hash" {
			return apierr.InvalidFix(fmt.Sprintf("%s[%q]", field, key), key+" is a label by which controllers of Kubernetes find their pods", "Use another name.")
		}
	}
	return nil
}

func checkAnnotations(annotations map[string]string, field string) error {
	size := 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if isTaken(key) {
			return takenError(field, key, "Use your own prefix.")
		}
		domain, _, _ := strings.Cut(key, "/")
		if strings.HasPrefix(domain, "container.apparmor.security.") || strings.HasPrefix(domain, "container.seccomp.security.") ||
			strings.HasPrefix(domain, "seccomp.security.") {
			return apierr.InvalidFix(fmt.Sprintf("%s[%q]", field, key), key+" gives the pod more rights",
				"Set the exception in kubernetes.security, with a reason.")
		}
		size += len(key) + len(annotations[key])
	}
	if size > maxAnnotationBytes {
		return apierr.InvalidFix(field, fmt.Sprintf("annotations take %d bytes together, but at most %d are allowed", size, maxAnnotationBytes),
			"Put large values into files or secrets.")
	}
	return nil
}

func checkSecurity(s *windlassv1.DeploymentSpec, field string) error {
	x := s.GetKubernetes().GetSecurity()
	if x == nil {
		return nil
	}
	at := field + ".security"
	if strings.TrimSpace(x.GetReason()) == "" {
		return apierr.InvalidFix(at+".reason", "an exception needs a reason", "Write why the program needs it. People who review the cluster can read the reason on the pod.")
	}
	if x.GetRunAsRoot() && s.GetKubernetes().RunAsUser != nil {
		return apierr.InvalidFix(field+".runAsUser", fmt.Sprintf("runAsUser is %d, but security.runAsRoot requests root", s.GetKubernetes().GetRunAsUser()),
			"Remove one of the two.")
	}
	for i, c := range x.GetAddCapabilities() {
		at := fmt.Sprintf("%s.add_capabilities[%d]", at, i)
		if c == "ALL" {
			return apierr.InvalidFix(at, "ALL means every capability", "Name the capabilities that the program needs, or set security.privileged.")
		}
		if short, ok := strings.CutPrefix(c, "CAP_"); ok {
			return apierr.InvalidFix(at, "Kubernetes names capabilities without CAP_", fmt.Sprintf("Write %q.", short))
		}
	}
	widens := x.GetRunAsRoot() || x.GetPrivileged() || x.GetHostIpc() || x.GetUnconfinedSeccomp() || len(x.GetAddCapabilities()) > 0
	if !widens && s.GetModelCache().GetHostPath() == "" {
		return apierr.InvalidFix(at, "it has a reason, but no exception",
			"Set runAsRoot, privileged, hostIpc, unconfinedSeccomp, addCapabilities or modelCache.hostPath, or leave security out.")
	}
	return nil
}

// notOverlaid are folders of a container that a volume must not hide: devices (including /dev/shm), folders of the
// kernel, /etc, and folders that Kubernetes mounts.
var notOverlaid = []string{"/dev", "/proc", "/sys", "/etc", "/var/run/secrets", "/run/secrets"}

// notShared are folders of a host that would give a container control of the host.
var notShared = []string{
	"/dev", "/proc", "/sys", "/etc", "/boot", "/root", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/run", "/var/run",
	"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/etcd",
}

func checkModelCache(s *windlassv1.DeploymentSpec, field string) error {
	c, field := s.GetModelCache(), field+".model_cache"
	if c == nil {
		return nil
	}
	if err := checkFolder(c.GetMountPath(), field+".mount_path", notOverlaid, "Choose a separate folder, such as /models."); err != nil {
		return err
	}
	if c.GetHostPath() == "" {
		return nil
	}
	if err := checkFolder(c.GetHostPath(), field+".host_path", notShared, "Choose a folder that has no other use, such as /var/cache/models."); err != nil {
		return err
	}
	if c.GetRetention() == windlassv1.ModelCache_RETENTION_DELETE {
		return apierr.InvalidFix(field+".retention", "a folder of a host is never deleted", "Leave retention out, or use a claim.")
	}
	if s.GetKubernetes().GetSecurity() == nil {
		return apierr.InvalidFix(field+".hostPath", `a pod with a folder of its host does not pass Kubernetes' "restricted" standard`,
			"Say why in kubernetes.security.reason, or use a claim.")
	}
	return nil
}

// checkFolder fails for a path that is not plain, or that is in a forbidden folder, or contains one.
func checkFolder(p, field string, forbidden []string, fix string) error {
	if p == "/" || path.Clean(p) != p {
		return apierr.InvalidFix(field, fmt.Sprintf("%q is not a plain path: use %q", p, plainPath(p)), fix)
	}
	for _, f := range forbidden {
		if p == f || strings.HasPrefix(p, f+"/") || strings.HasPrefix(f, p+"/") {
			return apierr.InvalidFix(field, fmt.Sprintf("%s conflicts with %s", p, f), fix)
		}
	}
	return nil
}

func plainPath(p string) string {
	if c := path.Clean(p); c != "/" {
		return c
	}
	return "/models"
}
