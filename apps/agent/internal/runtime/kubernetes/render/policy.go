package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Policy is what pods may request beyond Kubernetes' "restricted" standard, and which shared
// objects of the cluster they may use. The zero value allows nothing, because a user who deploys to
// a shared region must not control its nodes.
type Policy struct {
	RunAsRoot         bool `json:"runAsRoot"`
	Privileged        bool `json:"privileged"`
	HostIPC           bool `json:"hostIpc"`
	UnconfinedSeccomp bool `json:"unconfinedSeccomp"`
	// Capabilities are the capabilities that containers may add, such as IPC_LOCK.
	Capabilities []string `json:"capabilities"`
	// HostPaths are folders of nodes that pods may mount, including everything below them.
	HostPaths       []string `json:"hostPaths"`
	PriorityClasses []string `json:"priorityClasses"`
	RuntimeClasses  []string `json:"runtimeClasses"`
	// Tolerations are the keys of taints that pods may tolerate.
	Tolerations []string `json:"tolerations"`
	// Annotations are names of annotations, or prefixes that end with a slash, such as
	// example.com/.
	Annotations []string `json:"annotations"`
}

// ParsePolicy reads the policy that a region's operator has written as YAML:
//
//	capabilities: [IPC_LOCK]
//	hostPaths: [/var/cache/models]
//	priorityClasses: [serving]
//	runtimeClasses: [nvidia]
//	tolerations: [spot]
//	annotations: [prometheus.io/]
//	runAsRoot: false
func ParsePolicy(data []byte) (p Policy, err error) {
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		return p, fmt.Errorf("read the policy of pods: %w", err)
	}
	lists := map[string][]string{
		"capabilities": p.Capabilities, "priorityClasses": p.PriorityClasses, "runtimeClasses": p.RuntimeClasses,
		"tolerations": p.Tolerations, "annotations": p.Annotations,
	}
	for _, field := range slices.Sorted(maps.Keys(lists)) {
		if slices.Contains(lists[field], "") {
			return p, fmt.Errorf("%s: a name is empty", field)
		}
	}
	for i, folder := range p.HostPaths {
		if !plainPath(folder) {
			return p, fmt.Errorf("hostPaths[%d]: %q is not a plain path of a folder below /", i, folder)
		}
	}
	return p, nil
}

// baselineCapabilities are the capabilities that containers may add under Kubernetes' "baseline"
// standard. restrictedCapability is the only capability that they may add under "restricted".
var baselineCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", restrictedCapability, "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

const restrictedCapability = "NET_BIND_SERVICE"

// Level returns the strictest of Kubernetes' Pod Security Standards that every pod within the
// policy passes. Namespaces enforce this standard, so the API server refuses a pod that the agent
// makes by mistake.
func (p Policy) Level() string {
	beyond := func(allowed ...string) bool {
		return slices.ContainsFunc(p.Capabilities, func(c string) bool { return !slices.Contains(allowed, c) })
	}
	switch {
	case p.Privileged, p.HostIPC, p.UnconfinedSeccomp, len(p.HostPaths) > 0, beyond(baselineCapabilities...):
		return "privileged"
	case p.RunAsRoot, beyond(restrictedCapability):
		return "baseline"
	}
	return "restricted"
}

// checkPolicy returns an error if the spec requests anything that the region's operator does not
// allow.
func (r *rendering) checkPolicy() error {
	p, k := r.cfg.Policy, r.spec.GetKubernetes()
	x := k.GetSecurity()
	for _, one := range []struct {
		field          string
		asked, allowed bool
	}{
		{"security.runAsRoot", x.GetRunAsRoot(), p.RunAsRoot},
		{"security.privileged", x.GetPrivileged(), p.Privileged},
		{"security.hostIpc", x.GetHostIpc(), p.HostIPC},
		{"security.unconfinedSeccomp", x.GetUnconfinedSeccomp(), p.UnconfinedSeccomp},
	} {
		if one.asked && !one.allowed {
			return notAllowed("kubernetes."+one.field, "it")
		}
	}
	for i, c := range x.GetAddCapabilities() {
		if !slices.Contains(p.Capabilities, c) {
			return notAllowed(fmt.Sprintf("kubernetes.security.addCapabilities[%d]", i), c)
		}
	}
	if c := k.GetPriorityClass(); c != "" && !slices.Contains(p.PriorityClasses, c) {
		return notAllowed("kubernetes.priorityClass", c)
	}
	if c := k.GetRuntimeClass(); c != "" && !slices.Contains(p.RuntimeClasses, c) {
		return notAllowed("kubernetes.runtimeClass", c)
	}
	for i, t := range k.GetTolerations() {
		if !slices.Contains(p.Tolerations, t.GetKey()) { // an empty key means every taint
			return notAllowed(fmt.Sprintf("kubernetes.tolerations[%d]", i), toleratedKey(t))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.GetPodAnnotations())) {
		if !slices.ContainsFunc(p.Annotations, func(a string) bool {
			return name == a || strings.HasSuffix(a, "/") && strings.HasPrefix(name, a)
		}) {
			return notAllowed(entryPath("kubernetes.podAnnotations", name), "it")
		}
	}
	if folder := r.spec.GetModelCache().GetHostPath(); folder != "" && !slices.ContainsFunc(p.HostPaths, func(allowed string) bool {
		return folder == allowed || strings.HasPrefix(folder, allowed+"/")
	}) {
		return notAllowed("modelCache.hostPath", folder)
	}
	return nil
}

func toleratedKey(t *windlassv1.Toleration) string {
	if t.GetKey() == "" {
		return "every taint"
	}
	return "taint " + t.GetKey()
}

func notAllowed(field, what string) error {
	return unsupportedError("%s: the region's operator does not allow %s: leave it out, or ask the operator to add it to the agent's --pod-policy-file", field, what)
}
