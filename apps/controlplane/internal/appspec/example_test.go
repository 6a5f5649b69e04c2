package appspec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The spec that a built-in preset makes from a golden input passes the checks of a deploy.
func TestPresetGoldens_PassTheChecksOfADeploy(t *testing.T) {
	files, err := filepath.Glob("../../../../pkg/preset/testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			var golden struct{ Spec json.RawMessage }
			require.NoError(t, json.Unmarshal(data, &golden))
			spec := &windlassv1.DeploymentSpec{}
			require.NoError(t, protojson.Unmarshal(golden.Spec, spec))
			spec.Regions = []string{"us-east-1"}
			if spec.GetResources().GetShmMib() > 0 {
				spec.Resources.MemoryMib = 2 * spec.GetResources().GetShmMib()
			}
			require.NoError(t, protovalidate.Validate(spec))
			require.NoError(t, Check(WithDefaults(spec), "spec"))
		})
	}
}

func TestExpand_FindingsAreSorted(t *testing.T) {
	p, findings := preset.Define(t.Context(), "ember", 1, &windlassv1.PresetDefinition{
		ModelSchemes: []string{"hf"}, Command: []string{"ember"},
		Rules: []*windlassv1.PresetRule{{When: "true", Code: "Always", Field: "serve.context", Message: "it warns"}},
	})
	require.Empty(t, findings)
	spec := &windlassv1.DeploymentSpec{Regions: []string{"us"}, Serve: &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m"}}
	for i := range maxArgs + 1 {
		spec.Args = append(spec.Args, fmt.Sprintf("--f%d", i))
	}
	_, findings = Expand(spec, preset.Builtin().With(p))
	require.Equal(t, []string{"TooManyArgs", "Always"}, []string{findings[0].Code, findings[1].Code})
}

func TestCheckExamples_SeveralHosts(t *testing.T) {
	def := &windlassv1.PresetDefinition{
		ModelSchemes: []string{"hf"}, Image: "example.com/ember:1", Command: []string{"ember"}, Parallelism: []string{"tensor"},
		Args: []*windlassv1.PresetArg{
			{Flag: "--port", Values: []string{"$(PORT)"}, Reserved: true},
			{Flag: "--rank", Values: []string{"$(WINDLASS_RANK)"}, When: "hosts > 1", Reserved: true},
		},
		Hosts: &windlassv1.PresetHosts{},
		Examples: []*windlassv1.PresetExample{{
			Name: "two hosts", Hosts: 2, Serve: &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m"},
			Resources: &windlassv1.Resources{MemoryMib: 65536, Gpu: &windlassv1.Gpu{Count: 8}},
		}},
	}
	p, findings := preset.Define(t.Context(), "ember", 1, def)
	require.Empty(t, findings)
	require.Empty(t, CheckExamples(t.Context(), p, def.GetExamples()))

	def.Hosts = nil
	p, findings = preset.Define(t.Context(), "ember", 1, def)
	require.Empty(t, findings)
	findings = CheckExamples(t.Context(), p, def.GetExamples())
	require.Len(t, findings, 1)
	require.Equal(t, "/examples[0]", findings[0].Field)
	require.Contains(t, findings[0].Text, "roles[0].hosts: the definition of preset custom:ember does not say how a server runs on several hosts")
	require.Contains(t, findings[0].Fix, "set hosts in the definition")
}
