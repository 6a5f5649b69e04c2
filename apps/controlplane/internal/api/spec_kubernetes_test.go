package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// digested is an image with a digest, which is not resolved.
const digested = "registry.example/echo@sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// inCluster returns a valid spec with all fields that only a Kubernetes region reads.
func inCluster(edit ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	return echo(append([]func(*windlassv1.DeploymentSpec){func(s *windlassv1.DeploymentSpec) {
		s.Image = digested
		s.Resources = &windlassv1.Resources{
			MemoryMib: 4096, ShmMib: 1024, EphemeralStorageMib: 10240,
			Gpu: &windlassv1.Gpu{Count: 2, Product: "NVIDIA-H100-80GB-HBM3", Pool: "h100", MinMemoryMib: 80000, ResourceName: "nvidia.com/gpu"},
		}
		s.DrainDelay = durationpb.New(5e9)
		s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 100}}
		s.Kubernetes = &windlassv1.KubernetesOptions{
			NodeSelector:   map[string]string{"topology.kubernetes.io/zone": "a"},
			Tolerations:    []*windlassv1.Toleration{{Key: "nvidia.com/gpu"}, {Key: "spot", Value: "yes", Effect: "NoSchedule"}, {}},
			PodAnnotations: map[string]string{"kubelab.windlass.run/fault": "oom"},
			PodLabels:      map[string]string{"team": "search"},
			PriorityClass:  "inference", RuntimeClass: "nvidia",
			Security: &windlassv1.SecurityException{Reason: "RDMA pins memory", AddCapabilities: []string{"IPC_LOCK"}},
		}
	}}, edit...)...)
}

func TestKubernetesSpec_InvalidIsRefusedByField(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	w.setSecret("registry", `{"auths":{}}`)
	before := w.dump()
	type edit = func(*windlassv1.DeploymentSpec)
	cache := func(c *windlassv1.ModelCache) edit {
		return func(s *windlassv1.DeploymentSpec) { s.ModelCache = c }
	}
	claim := func(path string) edit {
		return cache(&windlassv1.ModelCache{MountPath: path, Claim: &windlassv1.VolumeClaim{SizeGib: 1}})
	}
	host := func(path string) edit {
		return cache(&windlassv1.ModelCache{MountPath: "/models", HostPath: path})
	}
	kube := func(f func(*windlassv1.KubernetesOptions)) edit {
		return func(s *windlassv1.DeploymentSpec) { f(s.Kubernetes) }
	}
	security := func(x *windlassv1.SecurityException) edit {
		return kube(func(k *windlassv1.KubernetesOptions) { k.Security = x })
	}
	secrets := func(refs ...*windlassv1.SecretReference) edit {
		return func(s *windlassv1.DeploymentSpec) { s.Secrets = refs }
	}
	for _, c := range []struct {
		name  string
		edit  edit
		field string
		// fix is a part of the message or of its fix.
		fix string
	}{
		{
			"shared memory above memory", func(s *windlassv1.DeploymentSpec) { s.Resources.ShmMib = 4097 },
			"spec.resources.shmMib", "memoryMib, which is 4096",
		},
		{
			"shared memory above the default", func(s *windlassv1.DeploymentSpec) { s.Resources = &windlassv1.Resources{ShmMib: 513} },
			"spec.resources.shmMib", "memoryMib, which is 512",
		},
		{"a role's shared memory", func(s *windlassv1.DeploymentSpec) {
			s.Roles = []*windlassv1.RoleSpec{{Name: "main", Resources: &windlassv1.Resources{MemoryMib: 10, ShmMib: 11}}}
		}, "spec.roles[0].resources.shmMib", "counts as memory"},
		{
			"a pool without a GPU count", func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu = &windlassv1.Gpu{Pool: "h100"} },
			"spec.resources.gpu", "set count",
		},
		{
			"a resource of Kubernetes'", func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu.ResourceName = "node.kubernetes.io/gpu" },
			"spec.resources.gpu.resourceName", "nvidia.com/gpu",
		},
		{
			"a drain of 601 s", func(s *windlassv1.DeploymentSpec) { s.DrainDelay = durationpb.New(601e9) },
			"spec.drainDelay", "600s",
		},
		{
			"a negative drain", func(s *windlassv1.DeploymentSpec) { s.DrainDelay = durationpb.New(-1) },
			"spec.drainDelay", "0s",
		},
		{
			"a grace of hours", func(s *windlassv1.DeploymentSpec) { s.TerminationGrace = durationpb.New(3601e9) },
			"spec.terminationGrace", "3600s",
		},

		{"a cache without a volume", cache(&windlassv1.ModelCache{MountPath: "/models"}), "spec.modelCache", "claim or hostPath"},
		{"a cache twice", cache(&windlassv1.ModelCache{
			MountPath: "/models", HostPath: "/data", Claim: &windlassv1.VolumeClaim{SizeGib: 1},
		}), "spec.modelCache", "claim or hostPath"},
		{"a cache without a size", cache(&windlassv1.ModelCache{
			MountPath: "/models", Claim: &windlassv1.VolumeClaim{},
		}), "spec.modelCache.claim.sizeGib", ""},
		{"a cache over shared memory", claim("/dev/shm"), "spec.modelCache.mountPath", "/models"},
		{"a cache in shared memory", claim("/dev/shm/models"), "spec.modelCache.mountPath", "conflicts with /dev"},
		{"a cache over the credentials", claim("/var"), "spec.modelCache.mountPath", "/var/run/secrets"},
		{"a cache over everything", claim("/."), "spec.modelCache.mountPath", "not a plain path"},
		{"a cache with .. in its path", claim("/models/../etc"), "spec.modelCache.mountPath", `use "/etc"`},
		{"a cache with a slash at its end", claim("/models/"), "spec.modelCache.mountPath", `use "/models"`},
		{"a host's folder without a reason", func(s *windlassv1.DeploymentSpec) {
			host("/data/models")(s)
			s.Kubernetes.Security = nil
		}, "spec.modelCache.hostPath", "kubernetes.security.reason"},
		{"the host's kubelet", host("/var/lib"), "spec.modelCache.hostPath", "/var/lib/kubelet"},
		{"the host's settings", host("/etc/ssl"), "spec.modelCache.hostPath", "/etc"},
		{"a host's folder with retention", cache(&windlassv1.ModelCache{
			MountPath: "/models", HostPath: "/data/models", Retention: windlassv1.ModelCache_RETENTION_DELETE,
		}), "spec.modelCache.retention", "use a claim"},

		{"one node", kube(func(k *windlassv1.KubernetesOptions) {
			k.NodeSelector = map[string]string{"kubernetes.io/hostname": "node-1"}
		}), `spec.kubernetes.nodeSelector["kubernetes.io/hostname"]`, ""},
		{"a node by our label", kube(func(k *windlassv1.KubernetesOptions) {
			k.NodeSelector = map[string]string{"windlass.run/pool": "h100"}
		}), `spec.kubernetes.nodeSelector["windlass.run/pool"]`, "resources.gpu.pool"},
		{"a product by label", kube(func(k *windlassv1.KubernetesOptions) {
			k.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-L4"}
		}), `spec.kubernetes.nodeSelector["nvidia.com/gpu.product"]`, "resources.gpu.product"},
		{"our annotation", kube(func(k *windlassv1.KubernetesOptions) {
			k.PodAnnotations = map[string]string{"windlass.run/paused": "true"}
		}), `spec.kubernetes.podAnnotations["windlass.run/paused"]`, "your own prefix"},
		{"an annotation that widens", kube(func(k *windlassv1.KubernetesOptions) {
			k.PodAnnotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}
		}), `spec.kubernetes.podAnnotations["container.apparmor.security.beta.kubernetes.io/main"]`, "kubernetes.security"},
		{"too large annotations", kube(func(k *windlassv1.KubernetesOptions) {
			for _, r := range "abcdefghijklm" {
				k.PodAnnotations["example.com/"+string(r)] = strings.Repeat("x", 16384)
			}
		}), "spec.kubernetes.podAnnotations", "together"},
		{"our label", kube(func(k *windlassv1.KubernetesOptions) {
			k.PodLabels = map[string]string{"app.kubernetes.io/name": "mine"}
		}), `spec.kubernetes.podLabels["app.kubernetes.io/name"]`, "your own prefix"},
		{"a controller's label", kube(func(k *windlassv1.KubernetesOptions) {
			k.PodLabels = map[string]string{"pod-template-hash": "mine"}
		}), `spec.kubernetes.podLabels["pod-template-hash"]`, "another name"},
		{"a toleration twice", kube(func(k *windlassv1.KubernetesOptions) {
			k.Tolerations = append(k.Tolerations, &windlassv1.Toleration{Key: "nvidia.com/gpu"})
		}), "spec.kubernetes.tolerations[3]", "tolerations[0]"},
		{"a toleration without a key", kube(func(k *windlassv1.KubernetesOptions) {
			k.Tolerations = []*windlassv1.Toleration{{Value: "x"}}
		}), "spec.kubernetes.tolerations[0].value", "Set key"},
		{"an unknown effect", kube(func(k *windlassv1.KubernetesOptions) {
			k.Tolerations = []*windlassv1.Toleration{{Key: "a", Effect: "Never"}}
		}), "spec.kubernetes.tolerations[0].effect", ""},

		{"no reason", security(&windlassv1.SecurityException{RunAsRoot: true}), "spec.kubernetes.security.reason", ""},
		{"an empty reason", security(&windlassv1.SecurityException{Reason: "  ", RunAsRoot: true}), "spec.kubernetes.security.reason", "Write why"},
		{"a reason without an exception", security(&windlassv1.SecurityException{Reason: "because"}), "spec.kubernetes.security", "leave security out"},
		{"two users", kube(func(k *windlassv1.KubernetesOptions) {
			k.RunAsUser = new(int64(1000))
			k.Security = &windlassv1.SecurityException{Reason: "old image", RunAsRoot: true}
		}), "spec.kubernetes.runAsUser", "one of the two"},
		{"every capability", security(&windlassv1.SecurityException{
			Reason: "x", AddCapabilities: []string{"IPC_LOCK", "ALL"},
		}), "spec.kubernetes.security.addCapabilities[1]", "privileged"},
		{"a capability as Linux names it", security(&windlassv1.SecurityException{
			Reason: "x", AddCapabilities: []string{"CAP_IPC_LOCK"},
		}), "spec.kubernetes.security.addCapabilities[0]", `"IPC_LOCK"`},

		{"a secret without a use", secrets(&windlassv1.SecretReference{Secret: "registry"}), "spec.secrets[0]", "imagePull"},
		{"a secret for both", secrets(&windlassv1.SecretReference{Secret: "registry", EnvName: "A", ImagePull: true}), "spec.secrets[0]", "one of the two"},
		{"a pull secret twice", secrets(
			&windlassv1.SecretReference{Secret: "registry", ImagePull: true},
			&windlassv1.SecretReference{Secret: "registry", EnvName: "DOCKER_CONFIG"},
			&windlassv1.SecretReference{Secret: "registry", ImagePull: true},
		), "spec.secrets[2].secret", "one of the two"},
		{"a pull secret without an image", func(s *windlassv1.DeploymentSpec) {
			s.Image = ""
			s.Secrets = []*windlassv1.SecretReference{{Secret: "registry", ImagePull: true}}
		}, "spec.secrets[0].imagePull", "Set image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: inCluster(c.edit)})
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, c.field)
			require.Contains(t, err.Error()+" "+detailOf(err).GetFix(), c.fix)
		})
	}
	require.Equal(t, before, w.dump(), "nothing changed")
}

func TestKubernetesSpec_IsStoredWithItsDefaults(t *testing.T) {
	w := setup(t)
	w.setSecret("registry", `{"auths":{}}`)
	host := func(s *windlassv1.DeploymentSpec) {
		s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", HostPath: "/var/cache/models", Retention: windlassv1.ModelCache_RETENTION_KEEP}
		s.Secrets = []*windlassv1.SecretReference{{Secret: "registry", ImagePull: true}}
		s.Kubernetes.Security.AddCapabilities = nil
	}
	deploy := func(spec *windlassv1.DeploymentSpec) *windlassv1.DeployResponse {
		res, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: spec})
		require.NoError(t, err)
		return res
	}
	deploy(inCluster())
	require.Equal(t, int32(2), deploy(inCluster(host)).GetVersion())
	stored := func(version int32) *windlassv1.DeploymentSpec { return w.version("chat", version).GetSpec() }
	first, second := stored(1), stored(2)
	require.Equal(t, windlassv1.KubernetesOptions_ZONE_SPREAD_PREFERRED, first.GetKubernetes().GetZoneSpread())
	require.Equal(t, windlassv1.ModelCache_RETENTION_DELETE, first.GetModelCache().GetRetention(), "a cache is deleted by default")
	require.Equal(t, windlassv1.ModelCache_RETENTION_KEEP, second.GetModelCache().GetRetention())
	want := inCluster()
	require.True(t, proto.Equal(want.Resources.Gpu, first.GetResources().GetGpu()))
	require.Equal(t, want.DrainDelay.AsDuration(), first.GetDrainDelay().AsDuration())
	want.Kubernetes.ZoneSpread = first.Kubernetes.ZoneSpread
	require.True(t, proto.Equal(want.Kubernetes, first.GetKubernetes()))
	require.True(t, second.GetSecrets()[0].GetImagePull())

	require.True(t, deploy(inCluster(host)).GetUnchanged(), "a spec with the same values as the defaults makes no version")
	w.deploy("bare", func(s *windlassv1.DeploymentSpec) { s.Kubernetes = &windlassv1.KubernetesOptions{} })
	require.Nil(t, w.version("bare", 1).GetSpec().GetKubernetes(), "an empty mapping is stored as none")
	require.Nil(t, w.version("bare", 1).GetSpec().GetDrainDelay(), "the default depends on the kind of the region")
}

func TestPullSecret_IsNeededAndRotates(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	pull := func(s *windlassv1.DeploymentSpec) {
		s.Image, s.Secrets = digested, []*windlassv1.SecretReference{{Secret: "registry", ImagePull: true}}
	}
	_, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(pull)})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "spec.secrets[0].secret")
	w.setSecret("registry", `{"auths":{}}`)
	made := w.deploy("chat", pull)
	w.settle("chat")
	require.Equal(t, []string{made.GetAppId()}, w.setSecret("registry", `{"auths":{"a":{}}}`).GetAppIds())
	for _, r := range w.version("chat", 1).GetRegions() {
		require.Equal(t, int64(2), r.GetGeneration(), r.GetRegion())
	}
	_, err = w.environments(w.deployer).DeleteSecret(ctx, &windlassv1.DeleteSecretRequest{Environment: "production", Name: "registry"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_IN_USE, "")
}

func TestRegion_ShowsItsAgentsGPUs(t *testing.T) {
	w := setup(t)
	reported := &agentv1.Capacity{Gpus: []*agentv1.GpuPool{{
		Product: "NVIDIA-H100-80GB-HBM3", Pool: "h100", Allocatable: 32, Requested: 20, LargestFree: 4,
		Free: 8, Quota: 24, Hosts: 4, ResourceName: "nvidia.com/gpu", MemoryMib: 81559,
	}}}
	data, err := proto.Marshal(reported)
	require.NoError(t, err)
	w.update(func(tx store.Tx) error {
		return tx.InsertRegion(model.Region{ID: ident.New("reg"), WorkspaceID: w.workspace, Name: "gpus", Capacity: data, ResourceVersion: 1})
	})
	res, err := w.regionService(w.viewer).GetRegion(t.Context(), &windlassv1.GetRegionRequest{Region: "gpus"})
	require.NoError(t, err)
	require.Len(t, res.GetRegion().GetGpus(), 1)
	// The test requires that both messages have the same fields.
	encoded, err := proto.Marshal(res.GetRegion().GetGpus()[0])
	require.NoError(t, err)
	again := &agentv1.GpuPool{}
	require.NoError(t, proto.Unmarshal(encoded, again))
	require.True(t, proto.Equal(reported.Gpus[0], again), "%v", again)
	fields := again.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		require.True(t, again.ProtoReflect().Has(fields.Get(i)), "add field %s to this test", fields.Get(i).Name())
	}
}
