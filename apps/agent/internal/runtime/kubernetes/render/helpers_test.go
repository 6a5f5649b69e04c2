package render

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const image = "registry.example.com/chat@sha256:0f5a1c3b5d7e9f00112233445566778899aabbccddeeff00112233445566778899"

const dockerConfig = `{"auths":{"registry.example.com":{"auth":"dXNlcjpwYXNzd29yZA=="}}}`

func config() Config {
	return Config{
		Region: "eu-1", AgentVersion: "v1.2.3", HealthImage: "registry.example.com/windlass/agent:v1.2.3",
		Policy: generous,
		Gateway: GatewaySelector{
			NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": "windlass-system"},
			PodLabels:       map[string]string{"app.kubernetes.io/name": "windlass-gateway"},
		},
		Pools: map[string]Pool{
			"h100": {
				Name: "h100", NodeSelector: map[string]string{"cloud.example.com/pool": "h100"},
				Tolerations: []Toleration{{Key: "team", Operator: corev1.TolerationOpEqual, Value: "inference", Effect: corev1.TaintEffectNoExecute}},
			},
			"mi300": {Name: "mi300", NodeSelector: map[string]string{"cloud.example.com/pool": "mi300"}, ResourceName: "amd.com/gpu", Quota: 8},
		},
	}
}

// minimal returns the smallest assignment that the control plane sends.
func minimal() runtime.Assignment {
	return runtime.Assignment{
		Deployment: &agentv1.Deployment{
			Id: "dep_01", WorkspaceId: "ws_01", ProjectId: "prj_01", EnvironmentId: "env_01", AppId: "app_01",
			AppName: "chat", ProjectName: "acme", EnvironmentName: "production", Version: 3, Replicas: 2,
			Spec: &windlassv1.DeploymentSpec{Image: image},
		},
		WorkloadKey: "dep_01", WorkloadVersion: 3, Generation: 7, TemplateHash: "00112233",
	}
}

// everything returns an assignment whose spec has every field, except fields that exclude each other.
func everything() runtime.Assignment {
	a := minimal()
	a.Deployment.MaxUnavailable = 2
	a.Deployment.Spec = &windlassv1.DeploymentSpec{
		Image: image, Command: []string{"vllm", "serve"}, Args: []string{"$(MODEL)", "--port=$(PORT)"},
		Roles: []*windlassv1.RoleSpec{{
			Name: "server", Instances: 1, Image: image, Command: []string{"vllm", "serve"},
			Args: []string{"$(MODEL)", "--port=$(PORT)", "--served-model-name=$$(MODEL)"},
			Resources: &windlassv1.Resources{
				CpuMillicores: 8000, MemoryMib: 65536, ShmMib: 4096, EphemeralStorageMib: 20480,
				Gpu: &windlassv1.Gpu{Count: 2, Product: "NVIDIA-H100-80GB-HBM3", Pool: "h100", MinMemoryMib: 81559, ResourceName: "nvidia.com/gpu"},
			},
		}},
		Resources: &windlassv1.Resources{CpuMillicores: 100},
		Env:       map[string]string{"MODEL": "qwen3", "LOG_LEVEL": "info"},
		Secrets: []*windlassv1.SecretReference{
			{EnvName: "API_KEY", Secret: "api-key"},
			{Secret: "registry", ImagePull: true},
		},
		Ports: []*windlassv1.Port{{Name: "http", Port: 8000}, {Name: "prometheus-metrics"}},
		HealthCheck: &windlassv1.HealthCheck{
			Path: "/healthz", Port: "http", Method: "GET", Interval: durationpb.New(5 * time.Second), Timeout: durationpb.New(2 * time.Second),
			UnhealthyThreshold: 4, HealthyThreshold: 3, StartupBudget: durationpb.New(20 * time.Minute),
		},
		TerminationGrace: durationpb.New(45 * time.Second), ProgressDeadline: durationpb.New(25 * time.Minute), DrainDelay: durationpb.New(8 * time.Second),
		Regions: []string{"eu-1"}, Replicas: new(int32), MinReady: 1,
		VersionLabel: "v1.4.2", Message: "Answer faster", SourceCommit: "8f14e45f", InheritedEnv: []string{"LOG_LEVEL"},
		ModelCache: &windlassv1.ModelCache{
			MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 500, StorageClass: "fast", SingleNode: false},
			Retention: windlassv1.ModelCache_RETENTION_KEEP,
		},
		Kubernetes: &windlassv1.KubernetesOptions{
			NodeSelector:   map[string]string{"disk": "nvme"},
			Tolerations:    []*windlassv1.Toleration{{Key: "spot", Value: "yes", Effect: "NoSchedule"}},
			PodAnnotations: map[string]string{"example.com/cost-centre": "ml"},
			PodLabels:      map[string]string{"example.com/team": "chat"},
			PriorityClass:  "serving", RuntimeClass: "nvidia", ZoneSpread: windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED,
			RunAsUser: new(int64(1000)),
			Security: &windlassv1.SecurityException{
				Reason: "RDMA pins memory", AddCapabilities: []string{"IPC_LOCK"}, HostIpc: true, UnconfinedSeccomp: true,
			},
		},
	}
	a.Deployment.Secrets = []*agentv1.SecretVersion{{Secret: "api-key", Version: 4}}
	a.Deployment.TemplateHash = []byte{0, 0x11, 0x22, 0x33}
	a.Secrets = map[string]string{"API_KEY": "correct-horse"}
	a.PullSecrets = map[string]string{"registry": dockerConfig}
	return a
}

func render(t testing.TB, cfg Config, a runtime.Assignment) *Objects {
	t.Helper()
	require.NoError(t, cfg.Check())
	o, err := Render(cfg, a)
	require.NoError(t, err)
	return o
}

// refused requires a rejection, and returns it.
func refused(t testing.TB, cfg Config, a runtime.Assignment, code, says string) *runtime.Rejection {
	t.Helper()
	_, err := Render(cfg, a)
	var rej *runtime.Rejection
	require.ErrorAs(t, err, &rej)
	require.Equal(t, code, rej.Code, rej.Message)
	require.Contains(t, rej.Message, says)
	field, _, _ := strings.Cut(rej.Message, ":")
	require.NotRegexp(t, `^spec\.|[a-z]_[a-z]`, field, "fields have their names in app files")
	return rej
}

// documents returns the objects as they are sent to the API server, in a fixed order.
func documents(o *Objects) []any {
	out := []any{o.Namespace, o.ServiceAccount}
	for _, s := range o.Secrets {
		out = append(out, s)
	}
	if o.Claim != nil {
		out = append(out, o.Claim)
	}
	out = append(out, o.Workload)
	if o.Service != nil {
		out = append(out, o.Service, o.DisruptionBudget)
	}
	for _, p := range o.NetworkPolicies {
		out = append(out, p)
	}
	return out
}

func dump(t testing.TB, o *Objects) []byte {
	t.Helper()
	var b bytes.Buffer
	for i, d := range documents(o) {
		if i > 0 {
			b.WriteString("---\n")
		}
		y, err := yaml.Marshal(d)
		require.NoError(t, err)
		b.Write(y)
	}
	return b.Bytes()
}

// read parses one object as the API server returns it.
func read[T any](t require.TestingT, applied any) *T {
	data, err := json.Marshal(applied)
	require.NoError(t, err)
	out := new(T)
	require.NoError(t, json.Unmarshal(data, out))
	return out
}

func podOf(t testing.TB, o *Objects) corev1.PodTemplateSpec {
	t.Helper()
	return *read[corev1.PodTemplateSpec](t, o.Workload.Spec.Template)
}
