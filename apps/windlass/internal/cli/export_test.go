package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// liveServer is a control plane with apps that are live.
type liveServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	windlassv1connect.UnimplementedDeploymentServiceHandler
	windlassv1connect.UnimplementedFreezeServiceHandler
	windlassv1connect.UnimplementedPresetServiceHandler

	apps    []*windlassv1.App
	specs   map[string]*windlassv1.DeploymentSpec // by the path of the app
	freezes []*windlassv1.Freeze
	// sizes are the replicas of the regions now, by the path of the app. "" is the number of the app.
	sizes map[string]map[string]int32
	// newer are changes that any deploy of the app makes.
	newer map[string][]*windlassv1.FieldChange
	// presets are the presets of the workspace, by name and version. presetErr is the error of reading or rendering
	// them.
	presets   map[string]*windlassv1.PresetDefinition
	presetErr error
	// read counts reads of presets.
	read int
}

func (s *liveServer) GetPreset(_ context.Context, r *windlassv1.GetPresetRequest) (*windlassv1.GetPresetResponse, error) {
	s.read++
	def := s.presets[r.Name]
	if s.presetErr != nil || def == nil {
		return nil, cmp.Or(s.presetErr, error(connect.NewError(connect.CodeNotFound, errors.New("no such preset"))))
	}
	return &windlassv1.GetPresetResponse{Preset: &windlassv1.Preset{Id: r.Name, Definition: def}}, nil
}

func (s *liveServer) find(ref string) (*windlassv1.App, error) {
	for _, app := range s.apps {
		if app.Id == ref || pathOfApp(app) == ref || app.LiveDeploymentId == ref {
			return app, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("app %s does not exist", ref))
}

func (s *liveServer) GetApp(_ context.Context, r *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	app, err := s.find(r.App)
	return &windlassv1.GetAppResponse{App: app}, err
}

func (s *liveServer) ListApps(_ context.Context, r *windlassv1.ListAppsRequest) (*windlassv1.ListAppsResponse, error) {
	out := &windlassv1.ListAppsResponse{}
	for _, app := range s.apps {
		if r.Environment == "" || strings.HasPrefix(pathOfApp(app), r.Environment+"/") {
			out.Apps = append(out.Apps, app)
		}
	}
	return out, nil
}

func (s *liveServer) GetDeployment(_ context.Context, r *windlassv1.GetDeploymentRequest) (*windlassv1.GetDeploymentResponse, error) {
	app, err := s.find(cmp.Or(r.Deployment, r.App))
	if err != nil {
		return nil, err
	}
	return &windlassv1.GetDeploymentResponse{Deployment: &windlassv1.Deployment{Version: 3, Spec: s.specs[pathOfApp(app)]}}, nil
}

func (s *liveServer) ListFreezes(context.Context, *windlassv1.ListFreezesRequest) (*windlassv1.ListFreezesResponse, error) {
	return &windlassv1.ListFreezesResponse{Freezes: s.freezes}, nil
}

// RenderPreset fills the fields that the spec leaves out, as the control plane does.
func (s *liveServer) RenderPreset(_ context.Context, r *windlassv1.RenderPresetRequest) (*windlassv1.RenderPresetResponse, error) {
	name, _, custom := preset.SplitCustom(r.Spec.Serve.Engine)
	if custom && s.presets["custom:"+name+"/3"] != nil {
		made := &windlassv1.DeploymentSpec{Command: []string{"ember"}, Args: []string{"--port", "$(PORT)"}}
		proto.Merge(made, r.Spec)
		return &windlassv1.RenderPresetResponse{Spec: made}, nil
	}
	if custom {
		return &windlassv1.RenderPresetResponse{Spec: r.Spec}, nil
	}
	made, _ := preset.Generate(preset.Input{
		Engine: r.Spec.Serve.Engine, Model: r.Spec.Serve.Model, GPU: preset.GPU{Count: int(r.Spec.Resources.GetGpu().GetCount())},
	})
	proto.Merge(made.Spec, r.Spec)
	return &windlassv1.RenderPresetResponse{Spec: made.Spec}, nil
}

// PlanDeploy compares the spec with the live one, except fields that the control plane sets, and compares the replicas
// with the sizes.
func (s *liveServer) PlanDeploy(ctx context.Context, r *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	app, err := s.find(r.App)
	if err != nil {
		return nil, err
	}
	if app.Scaling != nil && r.Spec.Replicas != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the replicas follow the load"))
	}
	live, err := liveFile(app, s.specs[r.App], nil)
	if err != nil {
		return nil, err
	}
	asked, want := proto.CloneOf(r.Spec), live.Spec
	if asked.Serve != nil {
		made, _ := s.RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: &windlassv1.DeploymentSpec{Serve: asked.Serve, Resources: asked.Resources}})
		p, builtin := preset.Find(asked.Serve.Engine)
		if !builtin {
			p = preset.Describe("ember", 3, s.presets["custom:ember/3"])
		}
		args := p.Merge(made.Spec.Args, asked.Args)
		if made.Spec.HealthCheck != nil {
			proto.Merge(made.Spec.HealthCheck, asked.HealthCheck)
		}
		health := made.Spec.HealthCheck
		made.Spec.Args, asked.Args = nil, nil
		proto.Merge(made.Spec, asked)
		asked = made.Spec
		asked.Args, asked.HealthCheck, asked.Env, want.Env = args, health, nil, nil
	}
	changes := slices.Clone(s.newer[r.App])
	if app.Scaling == nil {
		changes = append(changes, s.planSizes(r.App, asked)...)
	}
	for _, spec := range []*windlassv1.DeploymentSpec{asked, want} {
		spec.Replicas, spec.Message = nil, ""
		if s.sizes != nil {
			spec.Overrides = nil // a real plan compares their results by region
		}
		for _, o := range spec.Overrides {
			o.Replicas = nil
		}
		spec.Overrides = slices.DeleteFunc(spec.Overrides, isEmptyOverride)
	}
	was, _ := flattenSpec(want)
	is, _ := flattenSpec(asked)
	for _, path := range slices.Compact(slices.Sorted(maps.Keys(union(was, is)))) {
		if was[path] != is[path] {
			changes = append(changes, &windlassv1.FieldChange{Path: path, Kind: windlassv1.FieldChange_KIND_CHANGED, Old: was[path], New: is[path]})
		}
	}
	if !proto.Equal(r.Rollout, app.RolloutPolicy) {
		changes = append(changes, &windlassv1.FieldChange{Path: "rollout.strategy", Kind: windlassv1.FieldChange_KIND_CHANGED})
	}
	changes = append(changes, &windlassv1.FieldChange{Path: "message", Kind: windlassv1.FieldChange_KIND_REMOVED, Old: "what the version is about"})
	return &windlassv1.PlanDeployResponse{WouldRun: true, Outcome: windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED, Changes: changes}, nil
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// planSizes returns the changes of the replicas.
func (s *liveServer) planSizes(path string, spec *windlassv1.DeploymentSpec) (out []*windlassv1.FieldChange) {
	add := func(field string, was, is int32) {
		if was != is {
			out = append(out, &windlassv1.FieldChange{Path: field, Kind: windlassv1.FieldChange_KIND_CHANGED, Old: fmt.Sprint(was), New: fmt.Sprint(is)})
		}
	}
	now, ok := s.sizes[path]
	if !ok {
		return nil
	}
	add("replicas", now[""], spec.GetReplicas())
	for _, region := range spec.Regions {
		n, own := spec.GetReplicas(), false
		for _, o := range spec.Overrides {
			if slices.Contains(o.Regions, region) && o.Replicas != nil {
				n, own = o.GetReplicas(), true
			}
		}
		if own || now[region] != now[""] {
			add(fmt.Sprintf("regions[%q].replicas", region), now[region], n)
		}
	}
	return out
}

// run runs export. Its output has DIR instead of the folder.
func (s *liveServer) run(t *testing.T, folder string, args ...string) commandResult {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(s))
	mux.Handle(windlassv1connect.NewDeploymentServiceHandler(s))
	mux.Handle(windlassv1connect.NewFreezeServiceHandler(s))
	mux.Handle(windlassv1connect.NewPresetServiceHandler(s))
	server := httptest.NewServer(mux)
	defer server.Close()
	var stdout, stderr bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, IsTerminal: func(io.Writer) bool { return false },
		Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client(),
	})
	args = append([]string{"export", "--config", filepath.Join(env["HOME"], "config.yaml")}, args...)
	if folder != "" {
		args = append(args, "--folder", folder)
	}
	root.SetArgs(args)
	code := 0
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = Report(newScreen(&stderr, func(io.Writer) bool { return false }), err)
	}
	in := func(text string) string {
		if folder == "" {
			return text
		}
		return strings.ReplaceAll(text, folder, "DIR")
	}
	return commandResult{code, in(stdout.String()), in(stderr.String())}
}

// add adds an app, with the fields that the control plane adds to its spec.
func (s *liveServer) add(path string, spec *windlassv1.DeploymentSpec) *windlassv1.App {
	parts := strings.Split(path, "/")
	app := &windlassv1.App{
		Id: "app_" + path, ProjectName: parts[0], EnvironmentName: parts[1], Name: parts[2], LiveDeploymentId: "dep_" + path, LiveVersion: 3, LatestVersion: 3,
		Status: windlassv1.AppStatus_APP_STATUS_READY,
	}
	s.apps = append(s.apps, app)
	if s.specs == nil {
		s.specs = map[string]*windlassv1.DeploymentSpec{}
	}
	s.specs[path] = spec
	return app
}

func simpleSpec() *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{Command: []string{"x"}, Regions: []string{"eu", "us"}, Replicas: new(int32(2)), Message: "what the version is about"}
}

func TestExport_PrintsTheFileOfTheLiveVersion(t *testing.T) {
	s := &liveServer{}
	spec := simpleSpec()
	spec.VersionLabel, spec.SourceCommit, spec.GeneratedBy = "1.10", "0815", ""
	spec.Args = []string{"--port", "80", "--name", "yes", "two\nlines", "\u202eevil"}
	spec.Env = map[string]string{"OWN": "010", "SHARED": "x", "EMPTY": "", "PLAIN": "a: b"}
	spec.InheritedEnv = []string{"SHARED"}
	spec.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token", Version: 7}}
	spec.ProgressDeadline = durationpb.New(10 * time.Minute)
	spec.Routing = &windlassv1.RoutingPolicy{
		CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_OFF, QueueWait: durationpb.New(90 * time.Minute), ColdStart: &windlassv1.ColdStart{},
	}
	spec.Overrides = []*windlassv1.Override{{Regions: []string{"us"}, Secrets: []*windlassv1.SecretReference{{EnvName: "A", Secret: "a", Version: 2}}}}
	spec.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "us", RegionId: "reg_1", Values: &windlassv1.Override{}}}
	app := s.add("shop/staging/echo", spec)
	app.RolloutPolicy = &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, MaxSurge: "1", MaxUnavailable: "0%",
		Deadlines: &windlassv1.Deadlines{Progress: durationpb.New(5 * time.Minute)},
	}
	at := time.Date(2099, 12, 24, 18, 0, 0, 1_000_000, time.UTC).UnixMilli()
	s.freezes = []*windlassv1.Freeze{
		{Name: "other", App: "shop/staging/echo", Reason: "set by a command"},
		{Name: "echo-1", App: "shop/staging/echo", Reason: "over", Until: 1, FromFile: true},
		{
			Name: "echo-2", App: "shop/staging/echo", Reason: "no on-call engineer", OnStart: windlassv1.Freeze_ON_START_HOLD, From: at, FromFile: true,
			Weekly: []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "Mon 08:00"}}, TimeZone: "Europe/London",
		},
	}
	got := s.run(t, "", "shop/staging/echo")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, `app: echo
project: shop
environment: staging
regions:
- eu
- us
replicas: 2
versionLabel: "1.10"
command:
- x
args:
- --port
- "80"
- --name
- "yes"
- |-
  two
  lines
- "\u202eevil"
env:
  EMPTY: ""
  OWN: "010"
  PLAIN: 'a: b'
secrets:
- envName: TOKEN
  secret: token
overrides:
- regions:
  - us
  secrets:
  - envName: A
    secret: a
routing:
  queueWait: 1h30m
  crossRegion: "off"
  coldStart: {}
rollout:
  strategy: blueGreen
  maxSurge: 1
  maxUnavailable: 0%
  deadlines:
    progress: 5m
freeze:
  reason: no on-call engineer
  onStart: hold
  from: "2099-12-24T18:00:00.001Z"
  weekly:
  - Fri 16:00 - Mon 08:00
  timeZone: Europe/London
`, got.stdout)
	require.Empty(t, got.stderr)

	got = s.run(t, "", "shop/staging/echo", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	f, err := parseAppFile([]byte(got.stdout))
	require.NoError(t, err)
	require.Equal(t, spec.Args, f.Spec.Args)
}

func TestExport_FileHasTheCurrentReplicas(t *testing.T) {
	for name, tc := range map[string]struct {
		overrides []*windlassv1.Override
		now       map[string]int32
		want      string
	}{
		"in all regions": {now: map[string]int32{"": 5, "eu": 5, "us": 5}, want: "replicas: 5\n"},
		"in one region": {
			now:  map[string]int32{"": 2, "eu": 2, "us": 7},
			want: "replicas: 2\noverrides:\n- regions:\n  - us\n  replicas: 7\n",
		},
		"in each": {
			now:  map[string]int32{"": 2, "eu": 7, "us": 7},
			want: "replicas: 2\noverrides:\n- regions:\n  - eu\n  - us\n  replicas: 7\n",
		},
		"an override is split": {
			overrides: []*windlassv1.Override{{Regions: []string{"eu", "us"}, Replicas: new(int32(3)), ExtraArgs: []string{"a"}}},
			now:       map[string]int32{"": 2, "eu": 3, "us": 0},
			want:      "replicas: 2\noverrides:\n- regions:\n  - eu\n  replicas: 3\n  extraArgs:\n  - a\n- regions:\n  - us\n  replicas: 0\n  extraArgs:\n  - a\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &liveServer{sizes: map[string]map[string]int32{"default/production/a": tc.now}}
			spec := simpleSpec()
			spec.Command, spec.Overrides = nil, tc.overrides
			s.add("default/production/a", spec)
			got := s.run(t, "", "a")
			require.Zero(t, got.code, got.stderr)
			_, rest, _ := strings.Cut(got.stdout, "- us\n")
			require.Equal(t, tc.want, rest)
		})
	}
}

func TestExport_FileOfAScaledAppHasNoReplicas(t *testing.T) {
	s := &liveServer{}
	spec := simpleSpec()
	spec.Overrides = []*windlassv1.Override{{Regions: []string{"us"}, Replicas: new(int32(1))}}
	s.add("default/production/a", spec).Scaling = &windlassv1.ScalingPolicy{
		Max: 4, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}},
		Overrides: []*windlassv1.ScalingOverride{{Regions: []string{"us"}, Max: new(int32(2)), RegionIds: []string{"reg_1"}}},
	}
	got := s.run(t, "", "a")
	require.Zero(t, got.code, got.stderr)
	_, rest, _ := strings.Cut(got.stdout, "- us\n")
	require.Equal(t, "command:\n- x\nscaling:\n  max: 4\n  metrics:\n  - type: inFlight\n    target: 8\n  overrides:\n  - regions:\n    - us\n    max: 2\n", rest)
}

func TestExport_FileLeavesOutValuesOfThePreset(t *testing.T) {
	s := &liveServer{}
	made, _ := preset.Generate(preset.Input{Engine: "vllm", Model: "hf://org/m", GPU: preset.GPU{Count: 2}})
	p, _ := preset.Find("vllm")
	spec := made.Spec
	spec.Serve = &windlassv1.Serve{Engine: "vllm", Model: "hf://org/m"}
	spec.Regions, spec.Resources = []string{"eu"}, &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 2}, ShmMib: spec.GetResources().GetShmMib()}
	spec.Args = p.Merge(spec.Args, []string{"--seed", "7"})
	spec.GeneratedBy, spec.Generated = made.GeneratedBy, &windlassv1.Generated{Env: maps.Clone(spec.Env)}
	s.add("default/production/a", spec)
	got := s.run(t, "", "a")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "app: a\nproject: default\nenvironment: production\nserve:\n  engine: vllm\n  model: hf://org/m\nregions:\n- eu\n"+
		"args:\n- --seed\n- \"7\"\nresources:\n  gpu:\n    count: 2\n", got.stdout)
}

func TestExport_PresetOfTheWorkspaceIsReadOnce(t *testing.T) {
	ember := func() *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{
			Serve: &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m"}, Regions: []string{"eu"}, Command: []string{"ember"},
			Args: []string{"--port", "$(PORT)", "--seed", "7"}, GeneratedBy: "custom:ember/3", Generated: &windlassv1.Generated{},
		}
	}
	s := &liveServer{presets: map[string]*windlassv1.PresetDefinition{"custom:ember/3": {
		// The program is of another release, which does not know the variable.
		Image: "${later}", Args: []*windlassv1.PresetArg{{Flag: "--port", Values: []string{"$(PORT)"}, Reserved: true}},
	}}}
	for _, name := range []string{"a", "b", "c"} {
		s.add("default/production/"+name, ember())
	}
	got := s.run(t, filepath.Join(t.TempDir(), "apps"), "--all")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 1, s.read)
	got = s.run(t, "", "a")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "app: a\nproject: default\nenvironment: production\nserve:\n  engine: custom:ember\n  model: hf://org/m\nregions:\n- eu\nargs:\n- --seed\n- \"7\"\n", got.stdout)

	s.presets, s.read = nil, 0
	got = s.run(t, filepath.Join(t.TempDir(), "apps"), "--all", "--force")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 1, s.read, "a deleted preset is asked for only once, too")

	s.presetErr = connect.NewError(connect.CodeUnavailable, errors.New("the database is away"))
	got = s.run(t, "", "a")
	require.NotZero(t, got.code)
	require.Empty(t, got.stdout, "no file with values of the preset")
	require.Contains(t, got.stderr, "the database is away")
}

func TestExport_ChangeOfADeployIsNamed(t *testing.T) {
	s := &liveServer{newer: map[string][]*windlassv1.FieldChange{"default/production/a": {{Path: `env["A"]`, Kind: windlassv1.FieldChange_KIND_ADDED, Hidden: true}}}}
	s.add("default/production/a", simpleSpec())
	s.add("default/production/b", simpleSpec())
	const says = "default/production/a: a deploy of its file does not leave the app as it is:\n  + env[\"A\"]: (values are not shown)\n"
	folder := filepath.Join(t.TempDir(), "apps")
	for _, args := range [][]string{{"a"}, {"a", "b"}, {"--all"}} {
		in := folder
		if len(args) == 1 && args[0] == "a" {
			in = ""
		}
		got := s.run(t, in, args...)
		require.Equal(t, 1, got.code)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, says+"Nothing was written. Values that each deploy adds are newer")
		require.NoDirExists(t, folder)
	}
	got := s.run(t, "", "a", "--force")
	require.Zero(t, got.code)
	require.Equal(t, says, got.stderr)
	require.Contains(t, got.stdout, "app: a\n")
}

func TestExport_FolderKeepsEquivalentFiles(t *testing.T) {
	s := &liveServer{}
	spec := simpleSpec()
	s.add("default/production/a", spec)
	s.add("default/production/b", simpleSpec())
	s.add("shop/staging/a", simpleSpec())
	folder := filepath.Join(t.TempDir(), "apps")
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		return string(data)
	}
	got := s.run(t, folder, "--environment", "production")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "RESULT\nDIR/a.yaml   default/production/a   written\nDIR/b.yaml   default/production/b   written\n")
	first := read("a.yaml")
	require.Contains(t, first, "app: a\nproject: default\nenvironment: production\n")

	// A person moves the file, and writes it in another way.
	mine := "# of mine\napp: a\ncommand: [x]\nregions: [eu, us]\nreplicas: 2\n"
	require.NoError(t, os.Mkdir(filepath.Join(folder, "team"), 0o700))
	require.NoError(t, os.Remove(filepath.Join(folder, "a.yaml")))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "team/mine.yml"), []byte(mine), 0o600))
	got = s.run(t, folder, "--all", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var files []exportedFile
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &files))
	require.Equal(t, []exportedFile{
		{App: "default/production/a", File: "DIR/team/mine.yml", Result: "unchanged"},
		{App: "default/production/b", File: "DIR/b.yaml", Result: "unchanged"},
		{App: "shop/staging/a", File: "DIR/shop/staging/a.yaml", Result: "written"},
	}, files)
	require.Equal(t, mine, read("team/mine.yml"))

	// The app changes: its file is not replaced, and no other is written.
	spec.Args = []string{"new"}
	require.NoError(t, os.Remove(filepath.Join(folder, "b.yaml")))
	got = s.run(t, folder, "--all")
	require.Equal(t, 1, got.code)
	require.Equal(t, "DIR/team/mine.yml: it differs from the live version. A deploy of it would change:\n  ~ args[0]: new -> \n"+
		"Nothing was written. Keep those files and deploy them, use another folder, or replace them with --force.\n", got.stderr)
	require.NoFileExists(t, filepath.Join(folder, "b.yaml"))
	got = s.run(t, folder, "--environment", "default/production", "--force")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "DIR/team/mine.yml   default/production/a   replaced\n")
	require.Contains(t, read("team/mine.yml"), "args:\n- new\n")
	require.FileExists(t, filepath.Join(folder, "b.yaml"))
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 3, "no temporary file stays: %v", entries)

	// Freezes are compared, too.
	s.freezes = []*windlassv1.Freeze{{App: "default/production/a", Reason: "r", OnStart: windlassv1.Freeze_ON_START_REFUSE, From: 1, FromFile: true}}
	got = s.run(t, folder, "a")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "~ freeze\n")
}

func TestExport_FileThatMustNotBeWrittenIsNamed(t *testing.T) {
	s := &liveServer{}
	s.add("default/production/a", simpleSpec())
	s.add("shop/staging/a", simpleSpec())
	s.add("default/production/new", simpleSpec()).LiveDeploymentId = ""
	s.add("default/production/going", simpleSpec()).Status = windlassv1.AppStatus_APP_STATUS_DELETING
	s.add("default/production/..", simpleSpec()).Id = "app_evil"
	s.add("default/production/odd", &windlassv1.DeploymentSpec{Layout: 99}).Id = "app_odd"
	for name, tc := range map[string]struct {
		files map[string]string
		args  []string
		says  string
	}{
		"no app":                         {says: "name the apps, or use --environment PROJECT/ENVIRONMENT or --all"},
		"two choices":                    {args: []string{"a", "--all"}, says: "use only one of APP, --environment and --all"},
		"unknown":                        {args: []string{"b", "a"}, says: "default/production/b: app default/production/b does not exist\nNothing was written."},
		"nothing is live":                {args: []string{"new"}, says: "default/production/new: no version is live or in flight: deploy one first, or delete the app"},
		"it is being deleted":            {args: []string{"going"}, says: "default/production/going: it is being deleted"},
		"a name that leads elsewhere":    {args: []string{"app_evil"}, says: `app_evil: ".." cannot be the name of a file: rename it`},
		"a choice of a later release":    {args: []string{"app_odd"}, says: "app_odd: layout: choice 99 is not known to this release of windlass"},
		"two apps with one name":         {args: []string{"a", "shop/staging/a"}, says: "DIR/a.yaml: both default/production/a and shop/staging/a would be in it: export them into folders of their own, or use --all"},
		"the file of another app":        {files: map[string]string{"a.yaml": appOf("b")}, args: []string{"a", "--force"}, says: "DIR/a.yaml: it is the file of default/production/b: rename it"},
		"a file that is no app file":     {files: map[string]string{"a.yaml": "kind: Deployment\n"}, args: []string{"a"}, says: "DIR/a.yaml: it differs from the live version. A deploy of it would change:\n  it is no app file"},
		"a folder in place of the file":  {files: map[string]string{"a.yaml/b": ""}, args: []string{"a", "--force"}, says: "DIR/a.yaml: it is not a regular file: remove it"},
		"several apps and no folder":     {args: []string{"a", "b"}, says: "--folder is missing: name a folder for the files, for example --folder apps"},
		"all apps and no folder":         {args: []string{"--all"}, says: "--folder is missing"},
		"an environment without a file":  {args: []string{"--environment", "none"}, says: "there is no file to write"},
		"a file in the folder's place":   {files: map[string]string{"": "x"}, args: []string{"a"}, says: "DIR"},
		"the app is not in its own path": {args: []string{"default/production/.."}, says: `cannot be the name of a file`},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "apps")
			for file, text := range tc.files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, file)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
			}
			if strings.Contains(name, "no folder") {
				folder = ""
			}
			got := s.run(t, folder, tc.args...)
			require.Equal(t, 1, got.code, got.stdout)
			require.Contains(t, got.stderr, tc.says)
			require.Empty(t, got.stdout)
		})
	}
	s.apps = slices.DeleteFunc(s.apps, func(x *windlassv1.App) bool { return x.Id == "app_evil" || x.Id == "app_odd" })
	got := s.run(t, t.TempDir(), "--all")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 3, strings.Count(got.stdout, "\n"), got.stdout)
	require.Contains(t, got.stderr, "default/production/new: no version is live or in flight, so it has no file; windlass deploy --prune deletes apps without a file\n")
}

func TestExport_VersionInFlightIsNamed(t *testing.T) {
	s := &liveServer{}
	app := s.add("default/production/a", simpleSpec())
	app.RolloutId = "rol_1"
	got := s.run(t, "", "a")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "default/production/a: the file has v3, which is live. A deploy of it ends the rollout that is in flight\n", got.stderr)
	app.LiveDeploymentId = ""
	s.newer = map[string][]*windlassv1.FieldChange{"default/production/a": {{Path: "command[0]", Kind: windlassv1.FieldChange_KIND_ADDED, New: "x"}}}
	got = s.run(t, "", "a")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "default/production/a: no version is live yet: the file has v3, which is in flight\n", got.stderr)
}

func TestEncodeAppFile_IsReadAsTheSameFile(t *testing.T) {
	files, err := filepath.Glob("../../../../deployments/examples/*.yaml")
	require.NoError(t, err)
	for _, path := range files {
		f, err := readAppFile(path, nil)
		require.NoError(t, err)
		text, _, err := checkedText(f)
		require.NoError(t, err, path)
		require.NotContains(t, string(text), "&", "aliases are written out")
	}
	for _, text := range []string{
		"", " ", "a ", " a", "\n", "\n\n", "a\n", "a\n\n", "\na", "a\nb", " a\nb", "a \nb", "a\n\nb\n", "a\tb", "\ta\nb", "a\r\nb", "a\rb", "# a\nb", "a # b", "a: b", "- a",
		"-", "---", "...", "? a", "!a", "&a", "*a", "|", ">", "%a", "@a", "`a", "'a'", `"a"`, `\n`, "{a}", "[a]", "a,b", "~", "null", "true", "Yes", "off", "y", "=", "<<",
		"1", "+1", "-1", "1.5", ".5", "1e3", "010", "0x1f", "0o7", "0b1", "1_000", "1:30", ".inf", ".NaN", "2026-12-24", "2026-12-24T18:00:00Z", "語", "é", "👩‍👩‍👧", "\u00a0",
		"\u0085", "\u2028", "a\u2029b", "\ufeff", "\ufffd", "\ufffe", "\x00", "\x1b[31m", "\x7f", "\u009b", "\u202e", hostile, strings.Repeat("a b ", 200), strings.Repeat("x", 2000),
		"{{window}}", "a\n- b\n", "a\n...\nb", "a\n---\nb", "a\n\u202eb",
	} {
		f := &appFile{App: "a", Spec: &windlassv1.DeploymentSpec{
			Image: text, Args: []string{text, text}, Env: map[string]string{text: text, "A": text}, Roles: []*windlassv1.RoleSpec{{Args: []string{text}}},
		}}
		if text == "" {
			delete(f.Spec.Env, "")
		}
		written, _, err := checkedText(f)
		require.NoError(t, err, "%q\n%s", text, written)
		mustBePrintable(t, string(written))
	}
	f, err := parseAppFile([]byte("app: a\nserve: {engine: vllm, options: {a: 64, b: 0.9, c: 1e300, d: true, e: \"010\", f: [x, 1], \"no\": \"no\"}}\nhealthCheck: {}\nrollout: {}\n"))
	require.NoError(t, err)
	_, _, err = checkedText(f)
	require.NoError(t, err)
}
