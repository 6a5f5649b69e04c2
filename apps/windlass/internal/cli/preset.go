package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (a *app) presetCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "preset",
		Short: "Show presets of engines, and what they generate",
		Long: `Show presets of engines, and what they generate. From an engine, a model and GPUs, a preset generates what
an app's file needs: image, command, flags, ports, health check, drain, and the names of the engine's metrics.
List, show and render use the presets of this program and do not call the control plane. With --remote, list and
show use those of the control plane. Deploys always use those of the control plane.`,
	}, a.presetListCommand(), a.presetShowCommand(), a.presetRenderCommand(), a.presetDiffCommand())
}

// presetOf converts a preset of the control plane to the form in which this program shows its own presets.
func presetOf(p *windlassv1.Preset) presetView {
	v := presetView{
		Name: p.GetName(), Preset: p.GetId(), Engine: p.GetTitle(), DefaultEngine: p.GetDefaultEngineVersion(), From: p.GetEngineFrom(),
		Before: p.GetEngineBefore(), Schemes: p.GetModelSchemes(), Aliases: p.GetAliases(),
	}
	for _, m := range p.GetMetrics() {
		v.Metrics = append(v.Metrics, preset.Metric{Signal: m.GetSignal(), Metric: m.GetMetric(), Port: m.GetPort(), Path: m.GetPath()})
	}
	for _, s := range p.GetSources() {
		v.Sources = append(v.Sources, preset.Source{About: s.GetAbout(), Page: s.GetPage(), Version: s.GetVersion()})
	}
	return v
}

const remoteUsage = "use the presets of the control plane"

func (a *app) presetDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff APP",
		Short: "Show what the newest version of its preset would change in an app",
		Long: `Show what the newest version of the app's preset would change in its live version. Nothing changes until the app's
file is deployed. If the file sets a field or flag to the value that the preset generated, it counts as generated.
windlass plan shows exactly what a file changes.`,
		Example: "  windlass preset diff llama",
		Args:    cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.presets.DiffPreset(ctx, &windlassv1.DiffPresetRequest{App: a.appPath(args[0])})
			if err != nil {
				return err
			}
			if len(resp.GetFindings()) > 0 && a.output == "table" {
				a.infof("%s", findingLines(findingsOf(resp.GetFindings())))
			}
			return a.show(resp, func(w *tabwriter.Writer) {
				row(w, "Version:", version(resp.GetVersion()))
				row(w, "Made by:", resp.GetGeneratedBy())
				row(w, "Newest:", dash(resp.GetNewest()))
				if len(resp.GetChanges()) == 0 {
					row(w, "Changes:", "none")
					return
				}
				section(w, "Changes:")
				for _, c := range resp.GetChanges() {
					fmt.Fprintf(w, "  %s\n", changeLine(c)) //nolint:errcheck // the writer's Flush tells
				}
			})
		}),
	}
}

// findingsOf converts findings of the control plane to the type of this program's own findings.
func findingsOf(of []*windlassv1.PresetFinding) (out []preset.Finding) {
	for _, f := range of {
		severity := strings.ToLower(strings.TrimPrefix(f.GetSeverity().String(), "SEVERITY_"))
		out = append(out, preset.Finding{Severity: preset.Severity(severity), Code: f.GetCode(), Field: f.GetField(), Text: f.GetMessage(), Fix: f.GetFix()})
	}
	return out
}

// presetView is the JSON form of a preset.
type presetView struct {
	Name          string            `json:"name"`
	Preset        string            `json:"preset"`
	Engine        string            `json:"engine"`
	DefaultEngine string            `json:"defaultEngineVersion,omitempty"`
	From          string            `json:"engineFrom,omitempty"`
	Before        string            `json:"engineBefore,omitempty"`
	Schemes       []string          `json:"modelSchemes"`
	Metrics       []preset.Metric   `json:"metrics"`
	Aliases       map[string]string `json:"aliases,omitempty"`
	Sources       []preset.Source   `json:"sources"`
}

func viewPreset(p *preset.Preset, engine string) presetView {
	return presetView{
		Name: p.Name, Preset: p.ID(), Engine: p.Title, DefaultEngine: p.DefaultEngine, From: p.From, Before: p.Before,
		Schemes: p.Schemes, Metrics: p.Metrics(engine), Aliases: p.Aliases, Sources: p.Sources,
	}
}

// checkedVersions returns the versions of the engine that the preset is written for.
func (v presetView) checkedVersions() string {
	switch {
	case v.From == "" && v.Before == "":
		return "any"
	case v.Before == "":
		return v.From + " and later"
	}
	return v.From + " to before " + v.Before
}

func (a *app) presetListCommand() *cobra.Command {
	var remote bool
	var views []presetView
	list := func() error {
		if a.output != "table" {
			return a.showValue(map[string]any{"presets": views})
		}
		return a.show(nil, func(w *tabwriter.Writer) {
			row(w, "NAME", "PRESET", "ENGINE", "DEFAULT VERSION", "WRITTEN FOR", "MODELS")
			for _, v := range views {
				row(w, v.Name, v.Preset, v.Engine, dash(v.DefaultEngine), v.checkedVersions(), strings.Join(v.Schemes, ", "))
			}
		})
	}
	asked := a.run(func(ctx context.Context, _ []string) error {
		resp, err := a.clients.presets.ListPresets(ctx, &windlassv1.ListPresetsRequest{})
		if err != nil {
			return err
		}
		for _, p := range resp.GetPresets() {
			views = append(views, presetOf(p))
		}
		return list()
	})
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the presets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				return asked(cmd, args)
			}
			for _, p := range preset.All() {
				views = append(views, viewPreset(p, ""))
			}
			return list()
		},
	}
	cmd.Flags().BoolVar(&remote, "remote", false, remoteUsage)
	return cmd
}

func (a *app) presetShowCommand() *cobra.Command {
	var engine string
	var remote bool
	asked := a.run(func(ctx context.Context, args []string) error {
		resp, err := a.clients.presets.GetPreset(ctx, &windlassv1.GetPresetRequest{Name: args[0], EngineVersion: engine})
		if err != nil {
			return err
		}
		return a.showPreset(presetOf(resp.GetPreset()))
	})
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show what a preset knows about its engine, and its sources",
		Example: `  windlass preset show vllm
  windlass preset show vllm --engine-version 0.10.1`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePresets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				return asked(cmd, args)
			}
			p, ok := preset.Find(args[0])
			if !ok {
				text, fix := preset.Unknown(args[0])
				return fmt.Errorf("%s: %s", text, fix)
			}
			return a.showPreset(viewPreset(p, engine))
		},
	}
	cmd.Flags().StringVar(&engine, "engine-version", "", "version of the engine whose metrics are shown")
	cmd.Flags().BoolVar(&remote, "remote", false, remoteUsage)
	return cmd
}

func (a *app) showPreset(v presetView) error {
	if a.output != "table" {
		return a.showValue(v)
	}
	return a.show(nil, func(w *tabwriter.Writer) {
		row(w, "Preset:", v.Preset)
		row(w, "Engine:", v.Engine)
		row(w, "Default version:", dash(v.DefaultEngine))
		row(w, "Written for:", v.checkedVersions())
		row(w, "Models:", strings.Join(v.Schemes, ", "))
		for _, m := range v.Metrics {
			row(w, "Metric:", m.Signal, m.Metric, m.Path+" of port "+m.Port)
		}
		for _, s := range v.Sources {
			row(w, "Source:", s.About, s.Page, s.Version)
		}
	})
}

func completePresets(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range preset.All() {
		names = append(names, p.Name+"\t"+p.Title)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// renderFlags are the flags of preset render.
type renderFlags struct {
	in      preset.Input
	options []string
	facts   string
	app     string
	regions []string
}

func (a *app) presetRenderCommand() *cobra.Command {
	var f renderFlags
	cmd := &cobra.Command{
		Use:   "render NAME",
		Short: "Print the app file that a preset generates for a model",
		Long: `Print the app file that a preset makes for a model. Standard output is an app file for
windlass deploy -f; findings go to standard error. With --output=json it is an object with the spec, the metrics
and the findings. The command fails if something certainly does not work, for example parallelism that does
not fit the number of GPUs.`,
		Example: `  windlass preset render vllm --model hf://meta-llama/Llama-3.1-8B-Instruct --name llama > llama.yaml
  windlass preset render vllm --model hf://meta-llama/Llama-3.1-70B-Instruct --gpus 8 \
    --gpu-product NVIDIA-H100-80GB-HBM3 --context 32768 --option kv-cache-dtype=fp8`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePresets,
		RunE: func(_ *cobra.Command, args []string) error {
			f.in.Engine = args[0]
			return a.render(f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.in.Model, "model", "", "the model: hf://ORG/NAME@COMMIT, file:///PATH, s3://, gs://, https:// or oci://")
	flags.StringVar(&f.in.EngineVersion, "engine-version", "", "version of the engine; default: the preset's")
	flags.StringVar(&f.in.Name, "name", "", "name of the model in requests")
	flags.IntVar(&f.in.Context, "context", 0, "maximum length of a prompt and its answer together, in tokens")
	flags.IntVar(&f.in.Parallel.Tensor, "tensor", 0, "GPUs that share each layer; default: the number of GPUs divided by pipeline and data")
	flags.IntVar(&f.in.Parallel.Pipeline, "pipeline", 0, "groups of GPUs, each of which holds a part of the layers")
	flags.IntVar(&f.in.Parallel.Data, "data", 0, "copies of the model in one instance")
	flags.StringArrayVar(&f.options, "option", nil, "flag of the engine without dashes: NAME=VALUE, NAME for a flag without a value, NAME=false to leave it out")
	flags.IntVar(&f.in.GPU.Count, "gpus", 0, "GPUs of an instance")
	flags.StringVar(&f.in.GPU.Product, "gpu-product", "", "product of the GPUs, such as NVIDIA-H100-80GB-HBM3")
	flags.IntVar(&f.in.GPU.MinMemoryMiB, "gpu-memory", 0, "minimum memory of each GPU, in MiB")
	flags.IntVar(&f.in.MemoryMiB, "memory", 0, "memory of an instance, in MiB")
	flags.IntVar(&f.in.Replicas, "replicas", 0, "replicas in each region")
	flags.StringVar(&f.in.CachePath, "cache", "", "mount path of a model cache that you add to the file")
	flags.StringVar(&f.facts, "facts", "", "JSON file with facts of the model: layers, heads, kvHeads, headSize, maxContext, weightBytes, dtype")
	flags.StringVar(&f.app, "app", "", "name of the app; default: the preset's")
	flags.StringSliceVar(&f.regions, "region", []string{"us-east-1"}, "region of the app; can be repeated")
	return cmd
}

func (a *app) render(f renderFlags) error {
	if f.in.GPU.Count < 0 || f.in.MemoryMiB < 0 || f.in.GPU.MinMemoryMiB < 0 || f.in.Replicas < 0 {
		return errors.New("--gpus, --gpu-memory, --memory and --replicas: use 0 or more")
	}
	var err error
	if f.in.Options, err = parseOptions(f.options); err != nil {
		return err
	}
	if f.facts != "" {
		if f.in.Facts, err = readFacts(f.facts); err != nil {
			return err
		}
	}
	fragment, findings := preset.Generate(f.in)
	if preset.HasErrors(findings) {
		if a.output != "table" {
			if err := a.showValue(map[string]any{"findings": findings}); err != nil {
				return err
			}
		}
		return errors.New(findingLines(slices.DeleteFunc(findings, func(g preset.Finding) bool { return g.Severity != preset.Error })))
	}
	spec, err := specFields(fragment)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.showValue(map[string]any{
			"generatedBy": fragment.GeneratedBy, "engineVersion": fragment.EngineVersion, "spec": spec, "metrics": fragment.Metrics, "findings": findings,
		})
	}
	if len(findings) > 0 {
		a.infof("%s", findingLines(findings))
	}
	return a.printAppFile(f, fragment, spec)
}

// specFields returns the fields of a fragment's spec in their JSON form.
func specFields(f preset.Fragment) (map[string]any, error) {
	data, err := protojson.Marshal(f.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	return fields, nil
}

// printAppFile prints an app file with the fields of the spec, and the GPUs and memory that the flags name.
func (a *app) printAppFile(f renderFlags, fragment preset.Fragment, spec map[string]any) error {
	resources, _ := spec["resources"].(map[string]any)
	if resources == nil {
		resources = map[string]any{}
	}
	if g := f.in.GPU; g.Count > 0 {
		gpu := map[string]any{"count": g.Count}
		if g.Product != "" {
			gpu["product"] = g.Product
		}
		if g.MinMemoryMiB > 0 {
			gpu["minMemoryMib"] = g.MinMemoryMiB
		}
		resources["gpu"] = gpu
	}
	if f.in.MemoryMiB > 0 {
		resources["memoryMib"] = f.in.MemoryMiB
	}
	if len(resources) > 0 {
		spec["resources"] = resources
	}
	if f.in.Replicas > 0 {
		spec["replicas"] = f.in.Replicas
	}
	spec["app"], spec["regions"] = f.app, f.regions
	if f.app == "" {
		spec["app"] = strings.SplitN(fragment.GeneratedBy, "/", 2)[0]
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the app file: %w", err)
	}
	out, err := yaml.JSONToYAML(inYAML(data))
	if err != nil {
		return fmt.Errorf("encode the app file: %w", err)
	}
	_, err = fmt.Fprintf(a.data(), "# By preset %s for version %s of the engine.\n%s", fragment.GeneratedBy, dash(fragment.EngineVersion), out)
	return err
}

// findingLines formats findings for people: one per line, with the fix on the next line.
func findingLines(findings []preset.Finding) string {
	var b strings.Builder
	for i, f := range findings {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: %s: %s", f.Severity, strings.TrimPrefix(f.Field, "/"), f.Text)
		if f.Fix != "" {
			b.WriteString("\n  " + f.Fix)
		}
	}
	return b.String()
}

func parseOptions(list []string) (map[string]preset.Option, error) {
	options := map[string]preset.Option{}
	for _, text := range list {
		name, value, has := strings.Cut(text, "=")
		if _, twice := options[name]; twice {
			return nil, fmt.Errorf("--option %s: given twice: keep one of them", name)
		}
		switch {
		case !has, value == "true":
			options[name] = preset.Option{}
		case value == "false":
			options[name] = preset.Option{Off: true}
		default:
			options[name] = preset.Option{Values: []string{value}}
		}
	}
	return options, nil
}

// maxFacts is larger than any valid file of facts.
const maxFacts = 64 << 10

func readFacts(path string) (*preset.Facts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--facts: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	dec := json.NewDecoder(io.LimitReader(f, maxFacts))
	dec.DisallowUnknownFields()
	facts := &preset.Facts{}
	if err := dec.Decode(facts); err != nil {
		return nil, fmt.Errorf("--facts %s: %w", path, err)
	}
	if min(facts.Layers, facts.Heads, facts.KVHeads, facts.HeadSize, facts.MaxContext) < 0 || facts.WeightBytes < 0 {
		return nil, fmt.Errorf("--facts %s: a number is below 0", path)
	}
	return facts, nil
}
