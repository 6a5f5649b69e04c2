package render

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
)

const (
	// cacheGroup is the group of the files on volumes of claims. It is the same for all versions of
	// an app, because otherwise each version would change the owner of every file. 65532 is the
	// usual group "nonroot" of images.
	cacheGroup = 65532
	// unprivilegedPorts is the sysctl that lets every user listen on every port of the pod.
	unprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"
)

// podSecurity returns a security context that passes Kubernetes' "restricted" standard, unless the
// spec has an exception with a reason.
func (r *rendering) podSecurity() (*coreac.PodSecurityContextApplyConfiguration, error) {
	k := r.spec.GetKubernetes()
	x := k.GetSecurity()
	if x != nil && strings.TrimSpace(x.GetReason()) == "" {
		return nil, invalidError("kubernetes.security.reason: an exception needs a reason: people who review the cluster read it on the pod")
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
			return nil, invalidError("kubernetes.runAsUser: it is %d, and security.runAsRoot asks for root: leave one of them out", k.GetRunAsUser())
		}
		if k.GetRunAsUser() < 1 {
			return nil, invalidError("kubernetes.runAsUser: %d is not a user other than root", k.GetRunAsUser())
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

// containerSecurity returns a security context. It has only the privileges that the spec's
// exception names.
func (r *rendering) containerSecurity() *coreac.SecurityContextApplyConfiguration {
	x := r.spec.GetKubernetes().GetSecurity()
	out := coreac.SecurityContext()
	added := slices.Sorted(slices.Values(x.GetAddCapabilities()))
	added = slices.Compact(added)
	if x.GetPrivileged() {
		// A privileged container has all capabilities, even if it drops some.
		return out.WithPrivileged(true)
	}
	capabilities := coreac.Capabilities().WithDrop("ALL")
	for _, c := range added {
		capabilities.WithAdd(corev1.Capability(c))
	}
	out.WithCapabilities(capabilities)
	// Kubernetes refuses this field for containers with SYS_ADMIN.
	if !slices.Contains(added, "SYS_ADMIN") && !slices.Contains(added, "CAP_SYS_ADMIN") {
		out.WithAllowPrivilegeEscalation(false)
	}
	return out
}
