package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAppFile_ExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../../../deployments/examples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		f, err := readAppFile(path, nil)
		require.NoError(t, err, path)
		require.NotEmpty(t, f.Spec.Image+strings.Join(f.Spec.Command, " ")+f.Spec.Serve.GetEngine()+f.Spec.Model.GetServer(), path)
	}
}

func TestAppFile_OfTheGuideIsValid(t *testing.T) {
	guide, err := os.ReadFile("../../../../docs/guides/kubernetes.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(guide), "```yaml\napp: ")
	require.True(t, ok)
	text, _, _ := strings.Cut("app: "+rest, "```")
	f, err := parseAppFile([]byte(text))
	require.NoError(t, err)
	require.Equal(t, "h100", f.Spec.Resources.Gpu.Pool)
}

func TestAppFile_DurationsAndCodesAreParsed(t *testing.T) {
	f, err := parseAppFile([]byte("app: a\ncommand: [x]\nregions: [r]\nprogressDeadline: 1m30s\nhealthCheck: {interval: 250ms}\n"))
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, f.Spec.ProgressDeadline.AsDuration())
	require.Equal(t, 250*time.Millisecond, f.Spec.HealthCheck.Interval.AsDuration())
	f, err = parseAppFile([]byte("app: a\nhealthCheck: {expectedCodes: [200-299, 404, \"418\"]}\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"200-299", "404", "418"}, f.Spec.HealthCheck.ExpectedCodes)
	f, err = parseAppFile([]byte("app: a\nprogressDeadline: -1.5s\n"))
	require.NoError(t, err, "the API refuses it")
	require.Equal(t, -1500*time.Millisecond, f.Spec.ProgressDeadline.AsDuration())
}

func TestAppFile_RolloutBlockIsReadAsWritten(t *testing.T) {
	f, err := parseAppFile([]byte(`
app: a
command: [x]
regions: [eu, us, ap]
rollout:
  maxSurge: 1
  maxUnavailable: 0%
  waves:
    - {name: canary, regions: [eu], bakeTime: 10m, onFailure: rollback-region}
    - {labels: {tier: prod}, maxParallel: 2, onUnreachable: fail}
`))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.RolloutPolicy{
		MaxSurge: "1", MaxUnavailable: "0%",
		Waves: []*windlassv1.Wave{
			{Name: "canary", Regions: []string{"eu"}, BakeTime: durationpb.New(10 * time.Minute), OnFailure: windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION},
			{Labels: map[string]string{"tier": "prod"}, MaxParallel: 2, OnUnreachable: windlassv1.Wave_ON_UNREACHABLE_FAIL},
		},
	}, f.Rollout))
	f, err = parseAppFile([]byte("app: a\ncommand: [x]\nregions: [eu]\n"))
	require.NoError(t, err)
	require.Nil(t, f.Rollout)
	f, err = parseAppFile([]byte(`
app: a
rollout:
  strategy: canary
  steps: [{weight: 10, pause: 10m}, {replicas: 2, pause: manual}, {weight: 50, pause: 5}]
`))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY,
		// The API refuses a pause without a unit. It knows the other forms of a pause.
		Steps: []*windlassv1.CanaryStep{{Weight: 10, Pause: "10m"}, {Replicas: 2, Pause: "manual"}, {Weight: 50, Pause: "5"}},
	}, f.Rollout))
	f, err = parseAppFile([]byte("app: a\nrollout: {strategy: blueGreen, initialWeight: 5, promotion: auto after 10m, retain: 1h}\n"))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, InitialWeight: 5, Promotion: "auto after 10m", Retain: durationpb.New(time.Hour),
	}, f.Rollout))
	f, err = parseAppFile([]byte(`
app: a
rollout:
  analysis:
  - {template: latency-p95, versusOld: {maxRatio: 1.2}, interval: 90s}
  - name: refusals
    query: sum(rate(refusals_total{{{selector}}}[{{window}}]))
    max: 0
  - name: smoke
    webhook: {url: "https://checks.example.com/smoke", timeout: 10s, signingSecret: checks}
`))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.RolloutPolicy{Analysis: []*windlassv1.AnalysisCheck{
		{
			Template: windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95, VersusOld: &windlassv1.VersusOld{MaxRatio: new(1.2)},
			Interval: durationpb.New(90 * time.Second),
		},
		{Name: "refusals", Query: "sum(rate(refusals_total{{{selector}}}[{{window}}]))", Max: new(0.0)},
		{Name: "smoke", Webhook: &windlassv1.WebHook{
			Url: "https://checks.example.com/smoke", Timeout: durationpb.New(10 * time.Second), SigningSecret: "checks",
		}},
	}}, f.Rollout), f.Rollout)
}

func TestAppFile_ServeBlockIsReadAsWritten(t *testing.T) {
	f, err := parseAppFile([]byte(`
app: a
regions: [eu]
serve:
  engine: vllm
  model: hf://org/m
  context: 4096
  parallel: {tensor: 2}
  options: {max-num-seqs: 64, gpu-memory-utilization: 0.9, trust-remote-code: true, shutdown-timeout: false, lora-modules: [a=b, 1], dtype: "010"}
  facts: {layers: 80, weightBytes: 141107412992}
`))
	require.NoError(t, err)
	s := f.Spec.GetServe()
	require.Equal(t, int32(2), s.GetParallel().GetTensor())
	require.Equal(t, int64(141107412992), s.GetFacts().GetWeightBytes())
	require.Equal(t, map[string]any{
		"max-num-seqs": 64.0, "gpu-memory-utilization": 0.9, "trust-remote-code": true, "shutdown-timeout": false, "lora-modules": []any{"a=b", 1.0}, "dtype": "010",
	}, s.GetOptions().AsMap())
	for file, want := range map[string]string{
		"app: a\nserve: {options: [a]}":                "serve.options: want a mapping",
		"app: a\nserve: {options: {a: 010}}":           "line 2: serve.options.a: YAML parsers disagree about 010",
		"app: a\nserve: {options: {a: {b: 1}}}":        "serve.options.a: want a text, a number, true or false",
		"app: a\nserve: {options: {a: [[1]]}}":         "serve.options.a: want a text, a number, true or false",
		"app: a\nserve: {options: {a: }}":              "serve.options.a: want a text, a number, true or false, got nothing",
		"app: a\nserve: {engine: vllm, modell: hf://}": "serve.modell: no such field: did you mean model?",
	} {
		_, err := parseAppFile([]byte(file))
		require.ErrorContains(t, err, want)
	}
	path, ok := filePath("spec.serve.options.kv-cache-dtype")
	require.True(t, ok)
	require.Equal(t, "serve.options.kv-cache-dtype", path)
}

func TestAppFile_FreezeBlockIsReadAsWritten(t *testing.T) {
	f, err := parseAppFile([]byte(`
app: a
rollout: {autoRollback: false, deadlines: {crash: 3m, unschedulable: 90s}}
freeze: {reason: all are on leave, onStart: hold, from: "2026-12-24 18:00", until: 2026-12-27T00:00:00Z, timeZone: Europe/Berlin}
`))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.FileFreeze{
		Reason: "all are on leave", OnStart: windlassv1.Freeze_ON_START_HOLD,
		From:  time.Date(2026, 12, 24, 17, 0, 0, 0, time.UTC).UnixMilli(),
		Until: time.Date(2026, 12, 27, 0, 0, 0, 0, time.UTC).UnixMilli(),
	}, f.Freeze), f.Freeze)
	require.True(t, proto.Equal(&windlassv1.RolloutPolicy{
		AutoRollback: &windlassv1.AutoRollback{Enabled: new(false)},
		Deadlines:    &windlassv1.Deadlines{Crash: durationpb.New(3 * time.Minute), Unschedulable: durationpb.New(90 * time.Second)},
	}, f.Rollout), f.Rollout)
	f, err = parseAppFile([]byte(`
app: a
rollout: {autoRollback: {conditions: [crash, analysis, health], failedInstances: 2, unhealthy: 25%, unhealthyFor: 2m}}
freeze: {reason: no on-call engineer, weekly: ["Fri 16:00 - Mon 08:00", {start: "22:00", end: "06:00"}], timeZone: Europe/London}
`))
	require.NoError(t, err)
	require.True(t, proto.Equal(&windlassv1.FileFreeze{
		Reason: "no on-call engineer", TimeZone: "Europe/London",
		Weekly: []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "Mon 08:00"}, {Start: "22:00", End: "06:00"}},
	}, f.Freeze), f.Freeze)
	require.Equal(t, []windlassv1.AutoRollback_Condition{
		windlassv1.AutoRollback_CONDITION_CRASH, windlassv1.AutoRollback_CONDITION_ANALYSIS, windlassv1.AutoRollback_CONDITION_HEALTH,
	}, f.Rollout.AutoRollback.Conditions)
	require.Equal(t, "2", f.Rollout.AutoRollback.FailedInstances)
	require.Equal(t, "25%", f.Rollout.AutoRollback.Unhealthy)
	require.Equal(t, 2*time.Minute, f.Rollout.AutoRollback.UnhealthyFor.AsDuration())
}

func TestAppFile_MistakeHasItsFieldAndFix(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"no name":              {"command: [x]", "app: missing: give the app a name"},
		"a path as a name":     {"app: search/production/a", "app: search/production/a is not a name: write the names of project and environment into the fields `project` and `environment`"},
		"not a mapping":        {"- a\n- b", "start with `app: NAME`"},
		"empty":                {"", "start with `app: NAME`"},
		"misspelt field":       {"app: a\nreplica: 2", "replica: no such field: did you mean replicas?"},
		"misspelt inner field": {"app: a\nhealthCheck: {pth: /x}", "healthCheck.pth: no such field: did you mean path?"},
		"unlike any field":     {"app: a\nfrobnication: 1", "frobnication: no such field: there are app, args, command"},
		"number as text":       {"app: a\nenv: {VERSION: 1.10}", "env.VERSION: 1.10 is not a text: put it in quotes"},
		"text as list":         {"app: a\ncommand: python serve.py", "command: want a list, got python serve.py: write [python, serve.py]"},
		"number in a list":     {"app: a\nargs: [--port, 80]", "args[1]: 80 is not a text: put it in quotes"},
		"duration, no unit":    {"app: a\nprogressDeadline: 10", "progressDeadline: 10 has no unit: write for example 10s or 5m"},
		"duration, nonsense":   {"app: a\nprogressDeadline: soon", "progressDeadline: \"soon\" is not a duration"},
		"rollout, no mapping":  {"app: a\nrollout: rolling", "rollout: want a mapping, got rolling: start with `strategy: rolling`"},
		"rollout, misspelt":    {"app: a\nrollout: {maxSurg: 1}", "rollout.maxSurg: no such field: did you mean maxSurge?"},
		"rollout, no choice":   {"app: a\nrollout: {strategy: blue}", "rollout.strategy: blue is not one of the choices: use rolling or recreate or canary or blueGreen or inPlace"},
		"rollout, wave":        {"app: a\nrollout: {waves: [{bakeTime: 10}]}", "rollout.waves[0].bakeTime: 10 has no unit"},
		"no condition":         {"app: a\nrollout: {autoRollback: {conditions: [rain]}}", "rollout.autoRollback.conditions[0]: rain is not one of the choices: use crash or image or unschedulable"},
		"freeze, no mapping":   {"app: a\nfreeze: weekends", "freeze: want a mapping, got weekends"},
		"freeze, no window":    {"app: a\nfreeze: {reason: x, weekly: [Fri]}", "freeze.weekly[0]: \"Fri\": write \"Fri 16:00 - Mon 08:00\""},
		"freeze, no time":      {"app: a\nfreeze: {reason: x, until: tomorrow}", "freeze.until: \"tomorrow\": write it as 2026-12-24T18:00:00Z"},
		"freeze, no zone":      {"app: a\nfreeze: {reason: x, timeZone: Atlantis}", "freeze.timeZone: Atlantis names no time zone"},
		"fraction":             {"app: a\nreplicas: 1.5", "replicas: 1.5 is not a whole number"},
		"huge":                 {"app: a\nreplicas: 99999999999", "replicas: 99999999999 is not a whole number in range"},
		"text for a number":    {"app: a\nreplicas: two", "replicas: want a whole number, got two"},
		"list for a mapping":   {"app: a\nresources: [1]", "resources: want a mapping"},
		"number for an image":  {"app: a\nimage: 12", "image: 12 is not a text: put it in quotes"},
		"a list for a text":    {"app: a\nimage: [a]", "image: want a text, got [a]"},
		"boolean as a label":   {"app: a\nkubernetes: {nodeSelector: {spot: true}}", "kubernetes.nodeSelector.spot: true is not a text: put it in quotes"},
		"no such choice":       {"app: a\nmodelCache: {retention: maybe}", "modelCache.retention: maybe is not one of the choices: use delete or keep"},
		"a number as choice":   {"app: a\nkubernetes: {zoneSpread: 2}", "kubernetes.zoneSpread: 2 is not one of the choices: use preferred or required or none"},
		"text for yes or no":   {"app: a\nsecrets: [{secret: s, imagePull: sure}]", "secrets[0].imagePull: want true or false, got sure"},
		"a user by name":       {"app: a\nkubernetes: {runAsUser: www-data}", "kubernetes.runAsUser: want a whole number, got www-data"},
		"no such topology":     {"app: a\ntopology: {pack: rack, mode: always}", "topology.mode: always is not one of the choices: use preferred or required"},
		"no engine of pairs":   {"app: a\npairing: {engine: mooncake}", "pairing.engine: mooncake is not one of the choices: use none or nixl or sglang"},
		"no gang of that":      {"app: a\ngang: {of: rack}", "gang.of: rack is not one of the choices: use unit or group or none"},
		"of a later role":      {"app: a\nroles: [{name: b, update: {maxSurge: 1}}]", "roles[0].update: not supported yet: leave it out"},
		"misspelt in a list":   {"app: a\nkubernetes: {tolerations: [{kei: a}]}", "kubernetes.tolerations[0].kei: no such field: did you mean key?"},
		"pool outside of gpu":  {"app: a\nresources: {pool: h100}", "resources.pool: no such field"},
		"twice":                {"app: a\nreplicas: 1\nreplicas: 2", "line 3: replicas: given twice, first in line 2: keep one of them"},
		"not yaml":             {"app: [", "did not find"},
		"scaling, misspelt":    {"app: a\nscalng: {max: 2}", "scalng: no such field: did you mean scaling?"},
		"scaling, doubled":     {"app: a\nscalling: {max: 2}", "scalling: no such field: did you mean scaling?"},
		"rollout, one letter":  {"app: a\nrollot: {}", "rollot: no such field: did you mean rollout?"},
		"rollout, plural":      {"app: a\nrollouts: {}", "rollouts: no such field: did you mean rollout?"},
		"freeze, misspelt":     {"app: a\nfreze: {}", "freze: no such field: did you mean freeze?"},
		"app, misspelt":        {"ap: echo", "line 1: ap: no such field: did you mean app?"},
		"far from any name":    {"app: a\nname: x", "name: no such field: there are app, args, command"},
		"a mapping for a list": {"app: a\nports: {name: http, port: 0}", "ports: want a list, got {name: http, port: 0}: write [{name: http, port: 0}]"},
		"a number for ports":   {"app: a\nports: 8000", "ports: want a list, got 8000: write [{name: http, port: 8000}]"},
		"no ports":             {"app: a\nports:", "ports: want a list, got nothing: write its items, or leave the field out"},
		"a path for a check":   {"app: a\nhealthCheck: /up", "healthCheck: want a mapping, got /up: write for example {path: /up}"},
		"true for a check":     {"app: a\nhealthCheck: true", "healthCheck: want a mapping, got true: write for example {path: /health}"},
		"a number of GPUs":     {"app: a\nresources: {gpu: 2}", "resources.gpu: want a mapping, got 2: write for example {count: 2}"},
		"a list of variables":  {"app: a\nenv: [A=b]", "env: want a mapping of names to texts, got [A=b]: write for example {NAME: value}"},
		"a mapping for args":   {"app: a\nargs: {a: b}", "args: want a list, got {a: b}: write each item on a line of its own, with a dash: - ITEM"},
		"nested values":        {"app: a\nimage: {a: [1, {b: 'x: y'}], c: }", `image: want a text, got {a: [1, {b: "x: y"}], c: null}`},
		"no such metric":       {"app: a\nscaling: {metrics: [{type: gpuUse}]}", "scaling.metrics[0].type: gpuUse is not one of the choices: use inFlight or requestsPerSecond or queue or kvCache"},
		"made by a preset":     {"app: a\ngeneratedBy: x", "generatedBy: no such field of a file: the control plane sets it: leave it out"},
		"other of a preset":    {"app: a\ngenerated: {}", "generated: no such field of a file"},
		"pinned overrides":     {"app: a\npinnedOverrides: []", "pinnedOverrides: no such field of a file"},
		"the proto's name":     {"app: a\ninherited_env: []", "inherited_env: no such field of a file"},
		"version of a secret":  {"app: a\nsecrets: [{secret: a, envName: A, version: 2}]", "secrets[0].version: no such field of a file"},
		"a very long value":    {"app: a\nreplicas: " + strings.Repeat("x", 10_000), "want a whole number, got " + strings.Repeat("x", maxShown) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseAppFile([]byte(tc.file))
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestSuggestField_NamesOnlyFieldsOfAFile(t *testing.T) {
	hint := suggestField("frobnication", specSchema)
	for _, name := range []string{"app", "project", "environment", "rollout", "scaling", "freeze", "replicas"} {
		require.Contains(t, hint, " "+name)
	}
	for _, name := range []string{"generated", "generatedBy", "inheritedEnv", "pinnedOverrides"} {
		require.NotContains(t, hint+",", " "+name+",")
	}
}

// Each mapping that a file can contain has an example, and the example can be read.
func TestMappingExamples(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var check func(m protoreflect.MessageDescriptor)
	check = func(m protoreflect.MessageDescriptor) {
		if name := m.FullName(); seen[name] || name == durationName || name == structName {
			return
		}
		seen[m.FullName()] = true
		if name := m.Name(); name != "DeploymentSpec" && name != "PresetDefinition" {
			example := exampleOf(m, nil)
			require.NotEmpty(t, example, m.FullName())
			d, err := readDocument([]byte(example))
			require.NoError(t, err, example)
			require.NoError(t, normaliseFields("", d.root, m), example)
		}
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); f.Message() != nil && !f.IsMap() && !IsReadOnly(f.FullName()) {
				check(f.Message())
			}
		}
	}
	for _, m := range []proto.Message{
		&windlassv1.DeploymentSpec{}, &windlassv1.RolloutPolicy{}, &windlassv1.FileFreeze{}, &windlassv1.ScalingPolicy{}, &windlassv1.PresetDefinition{},
	} {
		check(m.ProtoReflect().Descriptor())
	}
	for name := range mappingExamples {
		require.True(t, seen["windlass.v1."+protoreflect.FullName(name)], "%s is in no file", name)
	}
}

func TestAppFile_FieldsForClustersAreParsed(t *testing.T) {
	f, err := parseAppFile([]byte(`
app: llama
image: registry.example/vllm@sha256:00
secrets:
- {secret: hf-token, envName: HF_TOKEN}
- {secret: registry, imagePull: true}
resources:
  shmMib: 8192
  ephemeralStorageMib: 20480
  gpu: {count: 4, product: NVIDIA-H100-80GB-HBM3, pool: h100, minMemoryMib: 80000, resourceName: nvidia.com/gpu}
drainDelay: 15s
modelCache:
  mountPath: /models
  claim: {sizeGib: 500, storageClass: fast, singleNode: true}
  retention: keep
kubernetes:
  nodeSelector: {disk: nvme}
  tolerations:
  - {key: nvidia.com/gpu, value: present, effect: NoSchedule}
  podAnnotations: {example.com/team: search}
  podLabels: {team: search}
  priorityClass: inference
  runtimeClass: nvidia
  zoneSpread: required
  runAsUser: 1000
  security: {reason: RDMA pins memory, addCapabilities: [IPC_LOCK], hostIpc: true}
regions: [us-east-1]
`))
	require.NoError(t, err)
	want := &windlassv1.DeploymentSpec{
		Image:   "registry.example/vllm@sha256:00",
		Secrets: []*windlassv1.SecretReference{{Secret: "hf-token", EnvName: "HF_TOKEN"}, {Secret: "registry", ImagePull: true}},
		Resources: &windlassv1.Resources{
			ShmMib: 8192, EphemeralStorageMib: 20480,
			Gpu: &windlassv1.Gpu{Count: 4, Product: "NVIDIA-H100-80GB-HBM3", Pool: "h100", MinMemoryMib: 80000, ResourceName: "nvidia.com/gpu"},
		},
		DrainDelay: durationpb.New(15 * time.Second),
		ModelCache: &windlassv1.ModelCache{
			MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 500, StorageClass: "fast", SingleNode: true},
			Retention: windlassv1.ModelCache_RETENTION_KEEP,
		},
		Kubernetes: &windlassv1.KubernetesOptions{
			NodeSelector:   map[string]string{"disk": "nvme"},
			Tolerations:    []*windlassv1.Toleration{{Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}},
			PodAnnotations: map[string]string{"example.com/team": "search"}, PodLabels: map[string]string{"team": "search"},
			PriorityClass: "inference", RuntimeClass: "nvidia", ZoneSpread: windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED,
			RunAsUser: new(int64(1000)),
			Security:  &windlassv1.SecurityException{Reason: "RDMA pins memory", AddCapabilities: []string{"IPC_LOCK"}, HostIpc: true},
		},
		Regions: []string{"us-east-1"},
	}
	require.True(t, proto.Equal(want, f.Spec), "%v", f.Spec)

	printed, err := protojson.Marshal(want.ModelCache)
	require.NoError(t, err)
	again, err := parseAppFile([]byte(`{"app": "a", "modelCache": ` + string(printed) + `}`))
	require.NoError(t, err)
	require.True(t, proto.Equal(want.ModelCache, again.Spec.ModelCache), "the printed form can be read")
	printed, err = protojson.Marshal(want.Kubernetes)
	require.NoError(t, err)
	again, err = parseAppFile([]byte(`{"app": "a", "kubernetes": ` + string(printed) + `}`))
	require.NoError(t, err, "an int64 is printed in quotes")
	require.True(t, proto.Equal(want.Kubernetes, again.Spec.Kubernetes))
}

func TestAppFile_MissingOrTooLargeIsNamed(t *testing.T) {
	_, err := readAppFile(filepath.Join(t.TempDir(), "none.yaml"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = readAppFile("-", strings.NewReader(strings.Repeat("x", maxAppFile+1)))
	require.ErrorContains(t, err, "larger than 4 MiB")
}

func TestDiff_ShowsWhatTheFileChanges(t *testing.T) {
	live := &windlassv1.DeploymentSpec{
		Command: []string{"modelserver"}, Args: []string{"--model", "echo", "--verbose"}, Env: map[string]string{"A": "1"},
		Resources: &windlassv1.Resources{CpuMillicores: 500, MemoryMib: 512}, Regions: []string{"us-east-1"},
	}
	file := &windlassv1.DeploymentSpec{
		Command: []string{"modelserver"}, Args: []string{"--model", "shout"}, Env: map[string]string{"A": "2", "B": "x"},
		Regions: []string{"us-east-1"},
	}
	lines, err := diffSpecs(live, file)
	require.NoError(t, err)
	require.Equal(t, []string{
		"~ args[1]: echo -> shout",
		"- args[2]: --verbose",
		"~ env.A: 1 -> 2",
		"+ env.B: x",
	}, lines)
}

func TestDiff_ShowsRemovedFieldsForClusters(t *testing.T) {
	live := &windlassv1.DeploymentSpec{
		Command: []string{"x"}, DrainDelay: durationpb.New(time.Second),
		Resources:  &windlassv1.Resources{CpuMillicores: 500, Gpu: &windlassv1.Gpu{Count: 2, Pool: "h100"}},
		ModelCache: &windlassv1.ModelCache{MountPath: "/m", Retention: windlassv1.ModelCache_RETENTION_DELETE},
		Kubernetes: &windlassv1.KubernetesOptions{
			NodeSelector: map[string]string{"disk": "nvme"}, ZoneSpread: windlassv1.KubernetesOptions_ZONE_SPREAD_PREFERRED,
		},
	}
	lines, err := diffSpecs(live, &windlassv1.DeploymentSpec{
		Command: []string{"x"}, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4}},
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"- drainDelay: 1s", "- kubernetes.nodeSelector.disk: nvme", "- modelCache.mountPath: /m",
		"~ resources.gpu.count: 2 -> 4", "- resources.gpu.pool: h100",
	}, lines)
}

func TestDiff_ShowsReplicasOfRegions(t *testing.T) {
	specs := []string{"~ args[0]: a -> b", "~ overrides[0].replicas: 2 -> 3", "~ replicas: 1 -> 2"}
	require.Equal(t, []string{"~ args[0]: a -> b"}, withSizes(specs, &windlassv1.PlanDeployResponse{}), "the region was scaled to this number")
	require.Equal(t, []string{`~ regions["eu"].replicas: 4 -> 3`, "~ replicas: 5 -> 1"}, withSizes(nil, &windlassv1.PlanDeployResponse{Changes: []*windlassv1.FieldChange{
		{Path: "replicas", Kind: windlassv1.FieldChange_KIND_CHANGED, Old: "5", New: "1"},
		{Path: `regions["eu"].replicas`, Kind: windlassv1.FieldChange_KIND_CHANGED, Old: "4", New: "3"},
		{Path: `env["A"]`, Kind: windlassv1.FieldChange_KIND_ADDED, Hidden: true},
	}}))
}

func TestAppFile_OverridesAreParsed(t *testing.T) {
	guide, err := os.ReadFile("../../../../docs/guides/overrides.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(guide), "```yaml\nreplicas: 4\n")
	require.True(t, ok)
	text, _, _ := strings.Cut("app: a\nreplicas: 4\n"+rest, "```")
	f, err := parseAppFile([]byte(text))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"gpu": "l4"}, f.Spec.Overrides[0].Labels)
	require.Equal(t, int32(8), f.Spec.Overrides[0].Resources.Gpu.Count)
	require.Equal(t, []string{"--tensor-parallel-size", "8"}, f.Spec.Overrides[0].ExtraArgs)
	require.Equal(t, int32(1), f.Spec.Overrides[1].GetReplicas())
	require.Equal(t, "token-eu", f.Spec.Overrides[1].Secrets[0].Secret)

	for text, says := range map[string]string{
		"overrides: {regions: [eu]}":                 "overrides: want a list",
		"overrides: [{region: [eu]}]":                "overrides[0].region: no such field: did you mean regions?",
		"overrides: [{labels: {tier: 1}}]":           "overrides[0].labels.tier: 1 is not a text: put it in quotes",
		"overrides: [{env: {BATCH: 16}}]":            "overrides[0].env.BATCH: 16 is not a text: put it in quotes",
		"overrides: [{extraArgs: [--tp, 8]}]":        "overrides[0].extraArgs[1]: 8 is not a text: put it in quotes",
		"overrides: [{resources: {gpu: {cont: 1}}}]": "overrides[0].resources.gpu.cont: no such field: did you mean count?",
	} {
		_, err := parseAppFile([]byte("app: a\n" + text))
		require.ErrorContains(t, err, says)
	}
	live := &windlassv1.DeploymentSpec{
		Overrides:       []*windlassv1.Override{{Regions: []string{"eu"}, ExtraArgs: []string{"x"}, Replicas: proto.Int32(2)}},
		PinnedOverrides: []*windlassv1.PinnedOverride{{Region: "eu", Values: &windlassv1.Override{ExtraArgs: []string{"x"}}}},
	}
	lines, err := diffSpecs(live, &windlassv1.DeploymentSpec{Overrides: []*windlassv1.Override{{Regions: []string{"eu"}, Replicas: proto.Int32(3)}}})
	require.NoError(t, err)
	require.Equal(t, []string{"- overrides[0].extraArgs[0]: x", "~ overrides[0].replicas: 2 -> 3"}, lines)
}

func TestDiff_IgnoresTheVersionOfASecret(t *testing.T) {
	ref := func(version int32) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token", Version: version}}}
	}
	lines, err := diffSpecs(ref(3), ref(0))
	require.NoError(t, err)
	require.Empty(t, lines)
}

func TestAppFile_NamesEveryWrongField(t *testing.T) {
	_, err := parseAppFile([]byte(`app: echo
regions: [us-east-1]
replics: 2
scaling:
  maks: 4
roles:
- {name: prefill, instancs: 1}
- decode
resources: {cpuMillicors: 250}
progressDeadline: 90
`))
	require.EqualError(t, err, strings.Join([]string{
		"line 3: replics: no such field: did you mean replicas?",
		"line 5: scaling.maks: no such field: did you mean max?",
		"line 7: roles[0].instancs: no such field: did you mean instances?",
		"line 8: roles[1]: want a mapping, got decode: write for example {name: decode}",
		"line 9: resources.cpuMillicors: no such field: did you mean cpuMillicores?",
		`line 10: progressDeadline: 90 has no unit: write for example 10s or 5m`,
	}, "\n  "))
	var many strings.Builder
	many.WriteString("app: echo\n")
	for n := range 30 {
		fmt.Fprintf(&many, "unknown%d: 1\n", n)
	}
	_, err = parseAppFile([]byte(many.String()))
	require.ErrorContains(t, err, "\n  and 20 more")
}
