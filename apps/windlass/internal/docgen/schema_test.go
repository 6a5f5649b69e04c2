package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/windlass-run/windlass/apps/windlass/internal/cli"
)

const repository = "../../../.."

func compiled(t *testing.T, schema func(*source) (string, error)) *jsonschema.Schema {
	t.Helper()
	src, err := readSource(repository)
	require.NoError(t, err)
	text, err := schema(src)
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("schema.json", document))
	s, err := compiler.Compile("schema.json")
	require.NoError(t, err)
	return s
}

func TestSchema_AcceptsEveryExample(t *testing.T) {
	for pattern, schema := range map[string]func(*source) (string, error){"*.yaml": appFileSchema, "presets/*.yaml": presetFileSchema} {
		s := compiled(t, schema)
		files, err := filepath.Glob(repository + "/deployments/examples/" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, path := range files {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			var file any
			require.NoError(t, yaml.Unmarshal(data, &file))
			require.NoError(t, s.Validate(file), path)
		}
	}
}

func TestSchemas_OfChartsAcceptTheExamples(t *testing.T) {
	for file, chart := range map[string]string{"controlplane": "windlass-controlplane", "us-east-1": "windlass-agent", "gateway": "windlass-gateway"} {
		s, err := jsonschema.NewCompiler().Compile(repository + "/deployments/charts/" + chart + "/values.schema.json")
		require.NoError(t, err)
		data, err := os.ReadFile(repository + "/deployments/examples/helm/" + file + ".yaml")
		require.NoError(t, err)
		var values any
		require.NoError(t, yaml.Unmarshal([]byte(strings.ReplaceAll(string(data), "sha256:...", "sha256:"+strings.Repeat("0", 64))), &values))
		require.NoError(t, s.Validate(values), file)
		values.(map[string]any)["nonesuch"] = true //nolint:forcetypeassert // as the file is
		require.Error(t, s.Validate(values), file)
	}
}

// The CLI reads every file of this test that the schema accepts. It refuses only some of the other files,
// because the API checks bounds and formats.
func TestSchema_AcceptsWhatTheCLIReads(t *testing.T) {
	s := compiled(t, appFileSchema)
	const head = "app: a\ncommand: [x]\nregions: [eu]\n"
	for text, good := range map[string]bool{
		"health_check: {path: /up}":                                                    true,
		"healthCheck: {interval: 1m30s, expectedCodes: [200-299, 404]}":                true,
		"rollout: {strategy: blueGreen, promotion: auto after 10m}":                    true,
		"rollout: {strategy: blue-green}":                                              true,
		"rollout: {strategy: STRATEGY_BLUE_GREEN}":                                     true,
		"rollout: {maxSurge: 1, autoRollback: false}":                                  true,
		"rollout: {autoRollback: {conditions: [crash]}}":                               true,
		"freeze: {reason: x, weekly: [Fri 16:00 - Mon 08:00], from: 2026-12-24 18:00}": true,
		"routing: {crossRegion: off}":                                                  true,
		"overrides: [{labels: {gpu: l4}, replicas: 1, env: {A: \"1\"}}]":               true,
		"replica: 2":                        false,
		"generatedBy: vllm/1":               false,
		"replicas: two":                     false,
		"progressDeadline: 90":              false,
		"rollout: {strategy: purple}":       false,
		"rollout: {maxSurge: many}":         false,
		"env: {A: 1}":                       false,
		"args: --model":                     false,
		"ports: [{port: 80}]":               false,
		"resources: {gpu: {cont: 1}}":       false,
		"overrides: {regions: [eu]}":        false,
		"resources: {cpuMillicores: -1}":    false,
		"modelCache: {claim: {sizeGib: 5}}": false,
	} {
		var file any
		require.NoError(t, yaml.Unmarshal([]byte(head+text), &file), text)
		err := s.Validate(file)
		if good {
			require.NoError(t, err, text)
			require.NoError(t, readByCLI(t, head+text), text)
		} else {
			require.Error(t, err, text)
		}
	}
}

func TestPresetSchema(t *testing.T) {
	s := compiled(t, presetFileSchema)
	const head = "title: x\nmodelSchemes: [hf]\nexamples: [{name: small, serve: {engine: \"custom:x\", model: \"hf://a/b\"}}]\n"
	for text, good := range map[string]bool{
		"command: [serve]": true,
		"args: [{flag: --model, values: [\"${path}\"], field: model}]": true,
		"aliases: {\"-tp\": --tensor-parallel-size}":                   true,
		"health_check: {path: /up}":                                    true,
		"memoryShare: 0.9":                                             true,
		"memoryShare: 2":                                               false,
		"argz: []":                                                     false,
		"args: [{flag: model}]":                                        false,
		"args: [{flag: --model, field: modell}]":                       false,
		"rules: [{severity: fatal}]":                                   false,
		"progressDeadline: 90":                                         false,
	} {
		var file any
		require.NoError(t, yaml.Unmarshal([]byte(head+text), &file), text)
		if err := s.Validate(file); good {
			require.NoError(t, err, text)
		} else {
			require.Error(t, err, text)
		}
	}
	for _, text := range []string{"title: x\nexamples: []", "modelSchemes: [ftp]"} {
		var file any
		require.NoError(t, yaml.Unmarshal([]byte(text), &file), text)
		require.Error(t, s.Validate(file), text)
	}
}

// readByCLI returns the error of `windlass plan` for a file that it cannot read. If the CLI can read the
// file, it fails later, because it reaches no control plane.
func readByCLI(t *testing.T, text string) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	env := map[string]string{"WINDLASS_SERVER": "http://127.0.0.1:1", "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := cli.New(cli.Config{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, IsTerminal: func(io.Writer) bool { return false },
		Getenv: func(name string) string { return env[name] },
	})
	root.SetArgs([]string{"plan", "-f", path, "--config", filepath.Join(env["HOME"], "config.yaml")})
	err := root.ExecuteContext(t.Context())
	require.Error(t, err, "there is no control plane")
	if connect.CodeOf(err) == connect.CodeUnavailable {
		return nil
	}
	return err
}

func TestReference_IsDeterministic(t *testing.T) {
	first, err := generatePages(repository)
	require.NoError(t, err)
	second, err := generatePages(repository)
	require.NoError(t, err)
	require.Equal(t, first, second)
}
