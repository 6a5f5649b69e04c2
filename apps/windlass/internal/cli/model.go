package cli

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/modelfiles"
)

func (a *app) modelCommand() *cobra.Command {
	return groupCommands(&cobra.Command{
		Use:   "model",
		Short: "Inspect the files of a model, and plan where it is loaded",
	}, a.modelInspectCommand(), a.modelPlanCommand())
}

func (a *app) modelInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect PATH",
		Short: "Show the facts of a model that presets check",
		Long: `Show the facts of a model that presets check: layers, heads, the longest context, and the size of the
weights. PATH is a folder with config.json and *.safetensors. Only config.json and the headers of the
weights are read. The command does not call the control plane.`,
		Example: `  windlass model inspect /models/Llama-3.1-8B-Instruct
  windlass model inspect /models/Llama-3.1-8B-Instruct -o json > facts.json
  windlass preset render vllm --model file:///models/Llama-3.1-8B-Instruct --gpus 1 --facts facts.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			facts, err := modelfiles.Read(os.DirFS(args[0]))
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if a.output != "table" {
				return a.showValue(facts)
			}
			return a.showMessage(nil, func(w *tabwriter.Writer) {
				for _, f := range []struct {
					name  string
					value any
					known bool
				}{
					{"Layers", facts.Layers, facts.Layers > 0},
					{"Attention heads", facts.Heads, facts.Heads > 0},
					{"Key-value heads", facts.KVHeads, facts.KVHeads > 0},
					{"Head size", facts.HeadSize, facts.HeadSize > 0},
					{"Longest context", facts.MaxContext, facts.MaxContext > 0},
					{"Weights in bytes", facts.WeightBytes, facts.WeightBytes > 0},
					{"Type of the weights", facts.DType, facts.DType != ""},
					{"KV cache bytes per token, at 2 bytes per value", facts.KVBytesPerToken(2), facts.KVBytesPerToken(2) > 0},
				} {
					if f.known {
						writeRow(w, f.name+":", f.value)
					} else {
						writeRow(w, f.name+":", "not known")
					}
				}
			})
		},
	}
}
