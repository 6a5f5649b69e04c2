package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) presetSetCommand() *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "set NAME -f FILE",
		Short: "Create a preset of the workspace, or add a version to it",
		Long: `Create a preset of the workspace, or add a version to it. Apps use it as engine: custom:NAME. The file is a
definition in YAML or JSON. Its expressions are checked, and each of its examples is rendered and checked as a
deploy would be. Owners of the workspace may set presets. Nothing that runs changes: the next deploy of an app's
file uses the new version, and windlass plan shows what that changes. With --check, nothing is stored.`,
		Example: `  windlass preset set modelserver -f deployments/examples/presets/modelserver.yaml --check
  windlass preset set modelserver -f deployments/examples/presets/modelserver.yaml
  windlass preset show custom:modelserver/1 --definition > modelserver.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			def, err := readDefinition(file, a.Stdin)
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(args[0], preset.CustomPrefix)
			if check {
				return a.checkPreset(ctx, name, def)
			}
			resp, err := a.clients.presets.SetPreset(ctx, &windlassv1.SetPresetRequest{Mutation: newMutation(), Name: name, Definition: def})
			if err != nil {
				return err
			}
			a.warnFindings(resp.GetFindings())
			if resp.GetUnchanged() {
				return a.showDone(resp, "preset %s has this definition already", resp.GetPreset().GetId())
			}
			return a.showDone(resp, "preset %s is set; apps use it with engine: %s at their next deploy", resp.GetPreset().GetId(), resp.GetPreset().GetName())
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the definition, or - for standard input")
	cmd.Flags().BoolVar(&check, "check", false, "check the definition, and store nothing")
	mustSucceed(cmd.MarkFlagRequired("file"))
	return cmd
}

// checkPreset prints the answer that SetPreset would give.
func (a *app) checkPreset(ctx context.Context, name string, def *windlassv1.PresetDefinition) error {
	resp, err := a.clients.presets.CheckPreset(ctx, &windlassv1.CheckPresetRequest{Name: name, Definition: def})
	if err != nil {
		return err
	}
	if resp.GetPreset() == nil {
		if a.output != "table" {
			if err := a.showMessage(resp, nil); err != nil {
				return err
			}
		}
		return errors.New(findingLines(findingsOf(resp.GetFindings())))
	}
	a.warnFindings(resp.GetFindings())
	return a.showDone(resp, "preset %s may be set", resp.GetPreset().GetId())
}

// warnFindings prints findings that do not refuse the definition.
func (a *app) warnFindings(findings []*windlassv1.PresetFinding) {
	if len(findings) > 0 && a.output == "table" {
		a.infof("%s", findingLines(findingsOf(findings)))
	}
}

func (a *app) presetDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a preset of the workspace with all its versions",
		Long: `Delete a preset of the workspace with all its versions. Apps that use it keep running as they are. Their next
deploy is refused until a preset of that name exists again, or their file names another engine.`,
		Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			name := strings.TrimPrefix(args[0], preset.CustomPrefix)
			resp, err := a.clients.presets.DeletePreset(ctx, &windlassv1.DeletePresetRequest{Mutation: newMutation(), Name: name})
			if err != nil {
				return err
			}
			return a.showDone(resp, "preset %s%s is deleted", preset.CustomPrefix, name)
		}),
	}
}

func (a *app) presetHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history NAME",
		Short: "List the versions of a preset of the workspace",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			name := strings.TrimPrefix(args[0], preset.CustomPrefix)
			resp, err := a.clients.presets.ListPresetVersions(ctx, &windlassv1.ListPresetVersionsRequest{Name: name})
			if err != nil {
				return err
			}
			return showList(a, resp.GetVersions(), func(w *tabwriter.Writer) {
				writeRow(w, "PRESET", "SET AT", "SET BY")
				for _, v := range resp.GetVersions() {
					writeRow(w, fmt.Sprintf("%s%s/%d", preset.CustomPrefix, name, v.GetVersion()), timeText(v.GetSetAt()), orDash(v.GetSetBy()))
				}
			})
		}),
	}
}

// readDefinition reads the definition of a preset from a file, or from standard input for "-".
func readDefinition(path string, stdin io.Reader) (*windlassv1.PresetDefinition, error) {
	data, err := readFile(path, stdin)
	if err != nil {
		return nil, err
	}
	def, err := parseDefinition(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return def, nil
}

// parseDefinition reads YAML or JSON. Its errors name the field and the fix.
func parseDefinition(data []byte) (*windlassv1.PresetDefinition, error) {
	d, err := readDocument(data)
	if errors.Is(err, errNoMapping) {
		return nil, errors.New("the file is not a mapping of fields: start with `title: NAME OF THE ENGINE`")
	}
	if err != nil {
		return nil, err
	}
	def := &windlassv1.PresetDefinition{}
	if err := normaliseFields("", d.root, def.ProtoReflect().Descriptor()); err != nil {
		return nil, d.addLine(err)
	}
	fields, err := json.Marshal(d.root)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := protojson.Unmarshal(fields, def); err != nil {
		return nil, errors.New(cleanProtoError(err))
	}
	return def, nil
}

// renderCustom renders a preset of the workspace, which the control plane has.
func (a *app) renderCustom(ctx context.Context, f renderFlags) (preset.Fragment, []preset.Finding, error) {
	spec, err := f.specOf()
	if err != nil {
		return preset.Fragment{}, nil, err
	}
	resp, err := a.clients.presets.RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: spec})
	if err != nil {
		return preset.Fragment{}, nil, err
	}
	made := resp.GetSpec()
	fragment := preset.Fragment{GeneratedBy: made.GetGeneratedBy(), EngineVersion: made.GetGenerated().GetEngineVersion(), Spec: made}
	for _, m := range made.GetGenerated().GetMetrics() {
		fragment.Metrics = append(fragment.Metrics, preset.Metric{Signal: m.GetSignal(), Metric: m.GetMetric(), Port: m.GetPort(), Path: m.GetPath()})
	}
	if made != nil {
		made.Env = made.GetGenerated().GetEnv()
		made.Serve, made.ModelCache, made.GeneratedBy, made.Generated, made.Regions, made.Replicas = nil, nil, "", nil, nil, nil
		made.Roles = nil // printAppFile writes the role with hosts
	}
	return fragment, findingsOf(resp.GetFindings()), nil
}

// specOf returns the flags as an app's file would have them.
func (f renderFlags) specOf() (*windlassv1.DeploymentSpec, error) {
	in := f.in
	fields := map[string]any{
		"regions": f.regions,
		"serve": map[string]any{
			"engine": in.Engine, "engineVersion": in.EngineVersion, "model": in.Model, "name": in.Name, "context": in.Context,
			"parallel": map[string]any{"tensor": in.Parallel.Tensor, "pipeline": in.Parallel.Pipeline, "data": in.Parallel.Data},
			"options":  optionValues(in.Options), "facts": in.Facts,
		},
		"resources": map[string]any{"memoryMib": in.MemoryMiB},
	}
	if in.Hosts > 1 {
		fields["roles"] = []map[string]any{{"name": "main", "hosts": in.Hosts}}
	}
	if in.GPU.Count > 0 {
		fields["resources"] = map[string]any{
			"memoryMib": in.MemoryMiB, "gpu": map[string]any{"count": in.GPU.Count, "product": in.GPU.Product, "minMemoryMib": in.GPU.MinMemoryMiB},
		}
	}
	if in.CachePath != "" {
		fields["modelCache"] = map[string]any{"mountPath": in.CachePath, "claim": map[string]any{"sizeGib": 1}}
	}
	if in.Replicas > 0 {
		fields["replicas"] = in.Replicas
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	spec := &windlassv1.DeploymentSpec{}
	if err := protojson.Unmarshal(data, spec); err != nil {
		return nil, errors.New(cleanProtoError(err))
	}
	return spec, nil
}

// optionValues returns options in the form of an app's file.
func optionValues(options map[string]preset.Option) map[string]any {
	values := map[string]any{}
	for name, o := range options {
		switch {
		case o.Off || len(o.Values) == 0:
			values[name] = !o.Off
		case len(o.Values) == 1:
			values[name] = o.Values[0]
		default:
			values[name] = o.Values
		}
	}
	return values
}
