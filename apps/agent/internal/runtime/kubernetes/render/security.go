package render

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

const (
	// cacheGroup owns volumes of claims. It is the same for all versions of an app,
	// so that a volume full of weights is handed over once and not file by file with
	// each; 65532 is what images without a user of their own call nonroot.
	cacheGroup = 65532
	// unprivilegedPorts lets every user listen on every port of its own address.
	unprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"
)

// podSecurity passes Kubernetes' "restricted" standard unless the spec says why not.
func (r *rendering) podSecurity() (*coreac.PodSecurityContextApplyConfiguration, error) {
	k := r.spec.GetKubernetes()
	x := k.GetSecurity()
	if x != nil && strings.TrimSpace(x.GetReason()) == "" {
		return nil, invalid("spec.kubernetes.security.reason: an exception needs a reason: people who review the cluster read it on the pod")
	}
	seccomp := corev1.SeccompProfileTypeRuntimeDefault
	if x.GetUnconfinedSeccomp() {
		seccomp = corev1.SeccompProfileTypeUnconfined
	}
	out := coreac.PodSecurityContext().
		WithRunAsNonRoot(!x.GetRunAsRoot()).
		WithSeccompProfile(coreac.SeccompProfile().WithType(seccomp))
	if k != nil && k.RunAsUser != nil {
		if x.GetRunAsRoot() {
			return nil, invalid("spec.kubernetes.run_as_user: it is %d, and security.run_as_root asks for root: leave one of them out", k.GetRunAsUser())
		}
		if k.GetRunAsUser() < 1 {
			return nil, invalid("spec.kubernetes.run_as_user: %d is not a user other than root", k.GetRunAsUser())
		}
		out.WithRunAsUser(k.GetRunAsUser())
	}
	if r.spec.GetModelCache().GetClaim() != nil {
		out.WithFSGroup(cacheGroup).WithFSGroupChangePolicy(corev1.FSGroupChangeOnRootMismatch)
	}
	if slices.ContainsFunc(r.ports, func(p port) bool { return p.number < 1024 }) {
		out.WithSysctls(coreac.Sysctl().WithName(unprivilegedPorts).WithValue("0"))
	}
	return out, nil
}

// containerSecurity drops what the exception does not name.
func (r *rendering) containerSecurity() *coreac.SecurityContextApplyConfiguration {
	x := r.spec.GetKubernetes().GetSecurity()
	out := coreac.SecurityContext()
	added := slices.Sorted(slices.Values(x.GetAddCapabilities()))
	added = slices.Compact(added)
	if x.GetPrivileged() {
		// It has all there is: dropping anything would be a lie.
		return out.WithPrivileged(true)
	}
	capabilities := coreac.Capabilities().WithDrop("ALL")
	for _, c := range added {
		capabilities.WithAdd(corev1.Capability(c))
	}
	out.WithCapabilities(capabilities)
	// Kubernetes refuses to promise it to who may do anything.
	if !slices.Contains(added, "SYS_ADMIN") && !slices.Contains(added, "CAP_SYS_ADMIN") {
		out.WithAllowPrivilegeEscalation(false)
	}
	return out
}
