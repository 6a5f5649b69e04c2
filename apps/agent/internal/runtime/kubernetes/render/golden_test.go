package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var update = flag.Bool("update", false, "write the golden files again")

// A change of a golden file means that objects in clusters change. If a pod's template changes, the
// next rollout replaces instances.
func TestGolden_FilesAreTheAppliedObjects(t *testing.T) {
	for name, c := range goldens() {
		t.Run(name, func(t *testing.T) {
			got := dump(t, render(t, c.cfg, c.a))
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "if the change is intended: go test -update")
		})
	}
}

func TestGolden_NoFileIsUnused(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	for _, f := range files {
		require.Contains(t, goldens(), strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
}

type golden struct {
	cfg Config
	a   runtime.Assignment
}

func goldens() map[string]golden {
	out := map[string]golden{}
	add := func(name string, change func(*golden)) {
		g := golden{config(), minimal()}
		change(&g)
		out[name] = g
	}
	spec := func(g *golden) *windlassv1.DeploymentSpec { return g.a.Deployment.Spec }

	add("minimal", func(*golden) {})
	add("everything", func(g *golden) {
		g.a = everything()
		g.cfg.Monitoring = []GatewaySelector{{NamespaceLabels: map[string]string{"team": "observability"}}, {CIDRs: []string{"10.1.2.3/16"}}}
	})
	add("command", func(g *golden) {
		spec(g).Command = []string{"sh", "-c", "echo $HOME $(date)"}
		spec(g).Args = []string{"$(PORT)", "$$(PORT)", "$(NO_SUCH)", "100$ and $$", "$(not a name)"}
	})
	add("gpu-pool", func(g *golden) {
		spec(g).Resources = &windlassv1.Resources{CpuMillicores: 4000, MemoryMib: 32768, Gpu: &windlassv1.Gpu{Count: 8, Pool: "h100"}}
	})
	add("gpu-mig", func(g *golden) {
		spec(g).Resources = &windlassv1.Resources{MemoryMib: 16384, Gpu: &windlassv1.Gpu{
			Count: 1, ResourceName: "nvidia.com/mig-3g.40gb", Product: "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", MinMemoryMib: 40000,
		}}
	})
	add("gpu-amd", func(g *golden) {
		spec(g).Resources = &windlassv1.Resources{MemoryMib: 16384, Gpu: &windlassv1.Gpu{Count: 1, Pool: "mi300", Product: "AMD_Instinct_MI300X_OAM"}}
	})
	add("security-exception", func(g *golden) {
		spec(g).Kubernetes = &windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{
			Reason: "The driver's own debugger", RunAsRoot: true, Privileged: true, HostIpc: true,
		}}
	})
	add("cache-claim-single-node", func(g *golden) {
		spec(g).ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 100, SingleNode: true}}
	})
	add("cache-host-path", func(g *golden) {
		spec(g).ModelCache = &windlassv1.ModelCache{MountPath: "/models", HostPath: "/var/cache/models"}
		spec(g).Kubernetes = &windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{Reason: "Weights are on the nodes"}}
	})
	add("health-container", func(g *golden) {
		spec(g).HealthCheck = &windlassv1.HealthCheck{Method: "HEAD", Path: "/up?price=$(PRICE)", ExpectedCodes: []string{"200-299", "404"}}
		spec(g).Secrets = []*windlassv1.SecretReference{{EnvName: "API_KEY", Secret: "api-key"}}
		g.a.Secrets = map[string]string{"API_KEY": "correct-horse"}
		// The spec's security exceptions do not apply to the health container.
		spec(g).Kubernetes = &windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{
			Reason: "The driver's own debugger", RunAsRoot: true, Privileged: true, UnconfinedSeccomp: true,
		}}
	})
	add("long-names", func(g *golden) {
		d := g.a.Deployment
		d.AppName, d.ProjectName, d.EnvironmentName = strings.Repeat("a", 63), strings.Repeat("p", 63), strings.Repeat("e", 63)
		d.Spec.Ports = []*windlassv1.Port{{Name: "a-port-of-many-words"}, {Name: strings.Repeat("b", 63)}, {Name: "c--d"}}
		d.Spec.Roles = []*windlassv1.RoleSpec{{Name: strings.Repeat("r", 63)}}
		g.a.WorkloadVersion, d.Version = 2147483647, 2147483647
	})
	add("models-loader", func(g *golden) {
		g.cfg.LoaderImage, g.cfg.NameKey, g.cfg.ModelAllow = g.cfg.HealthImage, []byte("0123456789abcdef0123456789abcdef"), []string{"10.0.0.0/8"}
		spec(g).Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, MemoryMib: 4096}
		spec(g).Resources = &windlassv1.Resources{MemoryMib: 8192, EphemeralStorageMib: 20480}
		spec(g).Ports = []*windlassv1.Port{{Name: "http", Port: firstLoader}}
		// The spec's security exceptions do not apply to the loader.
		spec(g).Kubernetes = &windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{Reason: "The driver's own debugger", RunAsRoot: true, Privileged: true}}
	})
	add("unit", func(g *golden) {
		spec(g).Roles = []*windlassv1.RoleSpec{{Name: "decode", Instances: 2, Entry: true, StartsAfter: []string{"prefill"}, Env: map[string]string{"PART": "decode"}}}
		spec(g).Env = map[string]string{"PART": "any", "MODEL": "qwen3"}
		g.a.Deployment.Replicas = 1
		g.a.Unit = &runtime.Unit{
			Role: "decode", Group: 1, Slot: 1, At: "roles[1].", Entry: "decode", Replicas: 2,
			Roles: []runtime.RoleCount{{Name: "prefill", Instances: 1, TemplateHash: "aa"}, {Name: "decode", Instances: 2, Entry: true, TemplateHash: "bb"}},
		}
	})
	add("rank", func(g *golden) {
		spec(g).HealthCheck = &windlassv1.HealthCheck{Method: "HEAD"}
		spec(g).Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: 2}}
		g.a.Deployment.Replicas = 1
		g.a.Unit = &runtime.Unit{Role: "shard", Rank: 1, Hosts: 2, Epoch: 3, At: "roles[0].", Entry: "shard", Replicas: 2}
	})
	packed := func(g *golden, required bool) {
		spec(g).Roles = []*windlassv1.RoleSpec{{Name: "decode", Entry: true}}
		spec(g).Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1, Product: "NVIDIA-H100-80GB-HBM3"}}
		g.a.Deployment.Replicas = 1
		g.a.Unit = &runtime.Unit{
			Role: "decode", At: "roles[1].", Entry: "decode", Replicas: 1,
			Domain: &runtime.Domain{Label: "example.com/rack", Value: "r7", Required: required},
		}
	}
	add("pod-group", func(g *golden) {
		spec(g).Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: 2}}
		g.a.Deployment.Replicas = 1
		g.a.Unit = &runtime.Unit{Role: "shard", Rank: 1, Hosts: 2, Epoch: 3, At: "roles[0].", Entry: "shard", Replicas: 2, PodGroup: PodGroupName(g.a, "shard", 0, 0, 2)}
	})
	add("packed", func(g *golden) { packed(g, true) })
	add("packed-preferred", func(g *golden) { packed(g, false) })
	add("slot", func(g *golden) {
		spec(g).Roles = []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
		g.a.Deployment.Replicas = 1
		g.a.Unit = &runtime.Unit{Role: "cache", Group: 2, At: "spec.roles[0].", Entry: "cache", Replicas: 3}
	})
	add("unicode", func(g *golden) {
		spec(g).Env = map[string]string{"GREETING": "Grüße, 世界 🚢", "LINES": "one\ntwo\n", "EMPTY": "", "DOLLAR": "$(PORT)"}
		spec(g).Message = "Größer, schneller, 🚀"
	})
	add("closed", func(g *golden) {
		g.cfg.Gateway = GatewaySelector{}
		spec(g).Ports = []*windlassv1.Port{{Name: "http", Port: 80}}
		g.a.Deployment.Replicas = 1
	})
	return out
}
