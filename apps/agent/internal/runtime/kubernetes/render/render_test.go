package render

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A change of a pod's template replaces instances. So a value that changes with scaling, or with
// adoption by a newer deployment, must not be in the template.
func TestTemplate_DoesNotChangeWithScalingOrAdoption(t *testing.T) {
	a := everything()
	before := render(t, config(), a)
	for name, change := range map[string]func(*runtime.Assignment){
		"generation":        func(a *runtime.Assignment) { a.Generation++ },
		"replicas":          func(a *runtime.Assignment) { a.Deployment.Replicas = 1 },
		"adoption":          func(a *runtime.Assignment) { a.Deployment.Id, a.Deployment.Version = "dep_02", 4 },
		"a renamed project": func(a *runtime.Assignment) { a.Deployment.ProjectName = "apex" },
		"texts of people":   func(a *runtime.Assignment) { a.Deployment.Spec.VersionLabel, a.Deployment.Spec.Message = "x", "y" },
		"a new password of the registry": func(a *runtime.Assignment) {
			a.PullSecrets = map[string]string{"registry": strings.Replace(dockerConfig, "dXNl", "bmV3", 1)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := everything()
			change(&a)
			after := render(t, config(), a)
			was, is := podOf(t, before), podOf(t, after)
			if name == "adoption" {
				// An agent that adopts the pods keeps the old template, with the old LabelMadeFor.
				require.Equal(t, "dep_02", is.Labels[LabelMadeFor])
				is.Labels[LabelMadeFor] = was.Labels[LabelMadeFor]
			}
			require.Equal(t, was, is)
			require.NotEqual(t, string(dump(t, before)), string(dump(t, after)), "the change is in other objects")
		})
	}
}

func TestValues_ChangeTheTemplateAndKeepTheSecretsOfOldPods(t *testing.T) {
	a := everything()
	before := render(t, config(), a)
	a.Secrets = map[string]string{"API_KEY": "battery-staple"}
	after := render(t, config(), a)
	require.NotEqual(t, *before.Secrets[1].Name, *after.Secrets[1].Name, "another Secret")
	require.True(t, *after.Secrets[1].Immutable)
	require.NotEqual(t, podOf(t, before).Annotations[AnnotationSecretHash], podOf(t, after).Annotations[AnnotationSecretHash])
	require.NotContains(t, string(dump(t, after)), "battery-staple", "values are only in Secrets")
}

func TestNamespace_StaysWhenAProjectIsRenamed(t *testing.T) {
	cfg, a := config(), minimal()
	cfg.Namespace = *render(t, cfg, a).Namespace.Name
	a.Deployment.ProjectName = "apex"
	require.Equal(t, cfg.Namespace, *render(t, cfg, a).Namespace.Name)
}

func TestNamespace_IsNotSharedByRegionsOfACluster(t *testing.T) {
	one, other := config(), config()
	other.Region = "eu-2"
	require.NotEqual(t, *render(t, one, minimal()).Namespace.Name, *render(t, other, minimal()).Namespace.Name)
}

func TestNames_AreUniqueWhenTheyAreCut(t *testing.T) {
	a, b := minimal(), minimal()
	a.Deployment.AppName, b.Deployment.AppName = strings.Repeat("a", 63), strings.Repeat("a", 62)+"b"
	a.Deployment.AppId, b.Deployment.AppId = "app_01", "app_02"
	a.WorkloadKey, b.WorkloadKey = "dep_01", "dep_02"
	require.NotEqual(t, WorkloadName(a), WorkloadName(b))
	require.NotEqual(t, ClaimName(a.Deployment.AppName, "app_01"), ClaimName(b.Deployment.AppName, "app_02"))
	require.NotEqual(t, portName(strings.Repeat("p", 62)+"a"), portName(strings.Repeat("p", 62)+"b"))
}

func TestStartup_MayTakeItsWholeBudget(t *testing.T) {
	for _, c := range []struct{ budget, interval, covered time.Duration }{
		{0, 0, 30 * time.Minute},
		{time.Second, 100 * time.Millisecond, time.Second},
		{24 * time.Hour, time.Hour, 24 * time.Hour},
		{7 * time.Second, 3 * time.Second, 9 * time.Second},
	} {
		a := minimal()
		a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{}
		if c.budget > 0 {
			a.Deployment.Spec.HealthCheck.StartupBudget, a.Deployment.Spec.HealthCheck.Interval = durationpb.New(c.budget), durationpb.New(c.interval)
		}
		p := podOf(t, render(t, config(), a)).Spec.Containers[0]
		require.Equal(t, c.covered, time.Duration(p.StartupProbe.PeriodSeconds*p.StartupProbe.FailureThreshold)*time.Second)
		require.Greater(t, p.LivenessProbe.PeriodSeconds*p.LivenessProbe.FailureThreshold, p.ReadinessProbe.PeriodSeconds*p.ReadinessProbe.FailureThreshold,
			"a busy instance is out of rotation long before it is restarted")
	}
}

func TestHealthCheck_WithoutAProbeIsMadeByAContainerOrRefused(t *testing.T) {
	without := config()
	without.HealthImage = ""
	a := minimal()
	plain := dump(t, render(t, without, a))
	for field, h := range map[string]*windlassv1.HealthCheck{
		"healthCheck.method":        {Method: "HEAD"},
		"healthCheck.expectedCodes": {ExpectedCodes: []string{"200-399"}},
	} {
		a.Deployment.Spec.HealthCheck = h
		rej := refused(t, without, a, runtime.ReasonUnsupported, field+": ")
		require.Contains(t, rej.Message, "--health-image")
		require.False(t, rej.Retryable)
		require.Len(t, podOf(t, render(t, config(), a)).Spec.Containers, 2)
	}
	a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{Method: "GET"}
	require.Equal(t, string(plain), string(dump(t, render(t, config(), a))), "a check that the kubelet can make needs no container")

	a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{ExpectedCodes: []string{"204", "2xx"}}
	_ = refused(t, config(), a, runtime.ReasonInvalidSpec, `healthCheck.expectedCodes: "2xx"`)
	a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{Method: "POST"}
	_ = refused(t, config(), a, runtime.ReasonInvalidSpec, `healthCheck.method: "POST"`)
}

func TestHealthChecker_ListensAtAFreePort(t *testing.T) {
	a := minimal()
	a.Deployment.Spec.Ports = []*windlassv1.Port{{Name: "http", Port: firstAsked + 1}, {Name: "admin", Port: firstAsked}}
	a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{Method: "HEAD", Port: "admin"}
	s := podOf(t, render(t, config(), a)).Spec
	require.Subset(t, s.Containers[1].Args, []string{"--port=17722", "--target-port=17720"})
	for _, p := range []*corev1.Probe{s.Containers[0].StartupProbe, s.Containers[0].ReadinessProbe, s.Containers[0].LivenessProbe} {
		require.EqualValues(t, 17722, p.GRPC.Port)
		require.Nil(t, p.HTTPGet)
	}
}

func TestKubelet_WaitsForTheHealthChecker(t *testing.T) {
	probes := func(method string) (startup, readiness, liveness *corev1.Probe) {
		a := minimal()
		a.Deployment.Spec.HealthCheck = &windlassv1.HealthCheck{Method: method, Timeout: durationpb.New(3 * time.Second)}
		c := podOf(t, render(t, config(), a)).Spec.Containers[0]
		return c.StartupProbe, c.ReadinessProbe, c.LivenessProbe
	}
	startup, readiness, liveness := probes("GET")
	want := []*corev1.Probe{startup, readiness, liveness}
	startup, readiness, liveness = probes("HEAD")
	for i, p := range []*corev1.Probe{startup, readiness, liveness} {
		require.Equal(t, want[i].TimeoutSeconds+1, p.TimeoutSeconds)
		p.TimeoutSeconds, p.ProbeHandler = want[i].TimeoutSeconds, want[i].ProbeHandler
		require.Equal(t, want[i], p, "other fields are the same as without the container")
	}
}

func TestStop_WaitsForDrainDelayAndGracePeriod(t *testing.T) {
	for _, c := range []struct {
		drain, grace *durationpb.Duration
		sleep, total int64
	}{
		{nil, nil, 5, 35},
		{durationpb.New(0), durationpb.New(0), 0, 1},
		{durationpb.New(1500 * time.Millisecond), durationpb.New(500 * time.Millisecond), 2, 3},
	} {
		a := minimal()
		a.Deployment.Spec.DrainDelay, a.Deployment.Spec.TerminationGrace = c.drain, c.grace
		s := podOf(t, render(t, config(), a)).Spec
		require.Equal(t, c.total, *s.TerminationGracePeriodSeconds)
		if c.sleep == 0 {
			require.Nil(t, s.Containers[0].Lifecycle)
		} else {
			require.Equal(t, c.sleep, s.Containers[0].Lifecycle.PreStop.Sleep.Seconds)
		}
	}
}

// restricted returns the rules of Kubernetes' "restricted" standard that a pod breaks. It knows
// only the rules about fields that our pods can have.
func restricted(s corev1.PodSpec) []string {
	var broken []string
	rule := func(name string, ok bool) {
		if !ok {
			broken = append(broken, name)
		}
	}
	rule("host namespaces", !s.HostIPC && !s.HostPID && !s.HostNetwork)
	for _, each := range s.Containers {
		c := each.SecurityContext
		rule("privileged", c.Privileged == nil || !*c.Privileged)
		rule("escalation", c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation)
		rule("capabilities", c.Capabilities != nil && len(c.Capabilities.Drop) == 1 && c.Capabilities.Drop[0] == "ALL" && len(c.Capabilities.Add) == 0)
	}
	rule("root", s.SecurityContext.RunAsNonRoot != nil && *s.SecurityContext.RunAsNonRoot && (s.SecurityContext.RunAsUser == nil || *s.SecurityContext.RunAsUser != 0))
	rule("seccomp", s.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault)
	for _, v := range s.Volumes {
		rule("volumes", v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Secret != nil)
	}
	for _, sysctl := range s.SecurityContext.Sysctls {
		rule("sysctls", sysctl.Name == unprivilegedPorts)
	}
	return broken
}

func TestPod_IsRestrictedUnlessTheSpecSaysWhyNot(t *testing.T) {
	for name, g := range goldens() {
		pod := podOf(t, render(t, g.cfg, g.a))
		broken := restricted(pod.Spec)
		if why := pod.Annotations[AnnotationSecurityException]; why == "" {
			require.Empty(t, broken, name)
		} else {
			require.NotEmpty(t, broken, "%s: the exception has no effect", name)
		}
	}
}

func TestPod_WithoutGPUsSeesNone(t *testing.T) {
	a := minimal()
	a.Deployment.Spec.Env = map[string]string{nvidiaVisible: "all"}
	value := func(a runtime.Assignment) (string, bool) {
		o := render(t, config(), a)
		for _, s := range o.Secrets {
			require.NotContains(t, s.Data, nvidiaVisible, "a variable of the pod would override the device plugin")
		}
		for _, e := range podOf(t, o).Spec.Containers[0].Env {
			if e.Name == nvidiaVisible {
				return e.Value, true
			}
		}
		return "", false
	}
	v, ok := value(a)
	require.True(t, ok)
	require.Equal(t, "void", v)
	a.Deployment.Spec.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}
	_, ok = value(a)
	require.False(t, ok, "the device plugin sets the variable")
}

func TestRefusals_NameTheFieldAndTheFix(t *testing.T) {
	gpu := func(g *windlassv1.Gpu) func(*runtime.Assignment) {
		return func(a *runtime.Assignment) { a.Deployment.Spec.Resources = &windlassv1.Resources{Gpu: g} }
	}
	spec := func(f func(*windlassv1.DeploymentSpec)) func(*runtime.Assignment) {
		return func(a *runtime.Assignment) { f(a.Deployment.Spec) }
	}
	options := func(k *windlassv1.KubernetesOptions) func(*runtime.Assignment) {
		return spec(func(s *windlassv1.DeploymentSpec) { s.Kubernetes = k })
	}
	for name, c := range map[string]struct {
		change     func(*runtime.Assignment)
		code, says string
	}{
		"a command without an image": {spec(func(s *windlassv1.DeploymentSpec) { s.Image, s.Command = "", []string{"serve"} }), runtime.ReasonUnsupported, "set image"},
		"nothing to run":             {spec(func(s *windlassv1.DeploymentSpec) { s.Image = "" }), runtime.ReasonInvalidSpec, "set image"},
		"several roles": {
			spec(func(s *windlassv1.DeploymentSpec) {
				s.Roles = []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode"}}
			}),
			runtime.ReasonUnsupported, "roles",
		},
		"several instances a replica": {
			spec(func(s *windlassv1.DeploymentSpec) { s.Roles = []*windlassv1.RoleSpec{{Name: "main", Instances: 2}} }),
			runtime.ReasonUnsupported, "roles[0].instances",
		},
		"an unknown pool":        {gpu(&windlassv1.Gpu{Count: 1, Pool: "a100"}), runtime.ReasonUnknownPool, "it has h100, mi300"},
		"a pool of other GPUs":   {gpu(&windlassv1.Gpu{Count: 1, Pool: "mi300", ResourceName: "nvidia.com/gpu"}), runtime.ReasonInvalidSpec, "has amd.com/gpu: leave it out"},
		"a product of no labels": {gpu(&windlassv1.Gpu{Count: 1, ResourceName: "habana.ai/gaudi", Product: "Gaudi3"}), runtime.ReasonUnsupported, "name a pool"},
		"memory of AMD's GPUs":   {gpu(&windlassv1.Gpu{Count: 1, ResourceName: "amd.com/gpu", MinMemoryMib: 1}), runtime.ReasonUnsupported, "minMemoryMib"},
		"Kubernetes' own resource": {
			gpu(&windlassv1.Gpu{Count: 1, ResourceName: "requests.kubernetes.io/gpu"}), runtime.ReasonInvalidSpec, "resourceName",
		},
		"a single node": {
			options(&windlassv1.KubernetesOptions{NodeSelector: map[string]string{"kubernetes.io/hostname": "a"}}), runtime.ReasonInvalidSpec, "kubernetes.io/hostname",
		},
		"a label of Windlass": {
			options(&windlassv1.KubernetesOptions{PodLabels: map[string]string{LabelWorkload: "dep_99"}}), runtime.ReasonInvalidSpec, LabelWorkload,
		},
		"an annotation of Windlass": {
			options(&windlassv1.KubernetesOptions{PodAnnotations: map[string]string{AnnotationTemplateHash: "0"}}), runtime.ReasonInvalidSpec, AnnotationTemplateHash,
		},
		"a wider profile by an annotation": {
			options(&windlassv1.KubernetesOptions{PodAnnotations: map[string]string{"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}}),
			runtime.ReasonUnsupported, "--pod-policy-file",
		},
		"an exception without a reason": {
			options(&windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{RunAsRoot: true, Reason: " "}}), runtime.ReasonInvalidSpec, "reason",
		},
		"a host's folder without a reason": {
			spec(func(s *windlassv1.DeploymentSpec) {
				s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", HostPath: "/var/cache"}
			}),
			runtime.ReasonInvalidSpec, "kubernetes.security.reason",
		},
		"one node and all zones": {
			spec(func(s *windlassv1.DeploymentSpec) {
				s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 1, SingleNode: true}}
				s.Kubernetes = &windlassv1.KubernetesOptions{ZoneSpread: windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED}
			}),
			runtime.ReasonInvalidSpec, "zoneSpread",
		},
		"a secret without a value": {
			spec(func(s *windlassv1.DeploymentSpec) {
				s.Secrets = []*windlassv1.SecretReference{{EnvName: "KEY", Secret: "api-key"}}
			}), runtime.ReasonSecretUnavailable, `"api-key"`,
		},
		"a health check of an unknown port": {
			spec(func(s *windlassv1.DeploymentSpec) { s.HealthCheck = &windlassv1.HealthCheck{Port: "admin"} }), runtime.ReasonInvalidSpec, "healthCheck.port",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := minimal()
			c.change(&a)
			rej := refused(t, config(), a, c.code, c.says)
			require.Equal(t, c.code == runtime.ReasonSecretUnavailable, rej.Retryable)
		})
	}
}

func TestPool_RefusesAnotherValueOfItsNodeLabel(t *testing.T) {
	a := minimal()
	a.Deployment.Spec.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1, Pool: "h100"}}
	a.Deployment.Spec.Kubernetes = &windlassv1.KubernetesOptions{NodeSelector: map[string]string{"cloud.example.com/pool": "cheap"}}
	_ = refused(t, config(), a, runtime.ReasonInvalidSpec, `pool "h100"`)
	a.Deployment.Spec.Kubernetes.NodeSelector["cloud.example.com/pool"] = "h100"
	render(t, config(), a)
}

func TestPool_InARegionWithoutPoolsIsRefused(t *testing.T) {
	cfg, a := config(), minimal()
	cfg.Pools = nil
	a.Deployment.Spec.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1, Pool: "h100"}}
	_ = refused(t, cfg, a, runtime.ReasonUnknownPool, "leave pool out")
}

func TestPullSecret_InvalidIsNamedAndNotQuoted(t *testing.T) {
	for name, value := range map[string]string{
		"no JSON":            "hunter2-hunter2",
		"a list":             `["hunter2-hunter2"]`,
		"an older format":    `{"registry.example.com":{"auth":"hunter2-hunter2"}}`,
		"a helper":           `{"auths":{},"credsStore":"hunter2-hunter2"}`,
		"a helper's shell":   `{"auths":{"registry.example.com":{}},"credsStore":"hunter2-hunter2"}`,
		"a user alone":       `{"auths":{"registry.example.com":{"username":"hunter2-hunter2"}}}`,
		"auth of other type": `{"auths":{"registry.example.com":{"auth":["hunter2-hunter2"]}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			a := everything()
			a.PullSecrets = map[string]string{"registry": value}
			rej := refused(t, config(), a, runtime.ReasonInvalidSpec, `secret "registry"`)
			require.NotContains(t, rej.Message, "hunter2")
			require.False(t, rej.Retryable)
		})
	}
	a := everything()
	a.PullSecrets = map[string]string{"registry": `{"auths":{"r.example.com":{"username":"u","password":"p"}},"HttpHeaders":{"x":"y"}}`}
	render(t, config(), a)
}

func TestCallers_ConnectOnlyIfConfigured(t *testing.T) {
	cfg := config()
	cfg.Gateway = GatewaySelector{}
	p := render(t, cfg, minimal()).NetworkPolicies
	require.Len(t, p, 1)
	require.Empty(t, p[0].Spec.Ingress)
	require.Len(t, p[0].Spec.PolicyTypes, 1, "connections from instances are not restricted")
}

func TestInstanceID_IsWhatAPodCanReadOfItself(t *testing.T) {
	const uid = "0b9f5a52-3d0e-4e6c-9a55-1f0d4a3c2b10"
	id := InstanceID(uid)
	require.Equal(t, "ins_"+uid, id)
	back, ok := UIDOf(id)
	require.True(t, ok)
	require.EqualValues(t, uid, back)
	_, ok = UIDOf("ins_")
	require.False(t, ok)
	_, ok = UIDOf("dep_01")
	require.False(t, ok)
}
