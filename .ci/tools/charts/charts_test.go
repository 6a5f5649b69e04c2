// Package charts tests the Helm charts of deployments/charts with helm itself. testCharts of apps/e2e installs them in a
// cluster.
package charts

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	repositoryRoot = "../../.."
	chartsDir      = repositoryRoot + "/deployments/charts"
)

var update = flag.Bool("update", false, "write the rendered charts of testdata")

// helmPath returns the path of the helm binary. The first call downloads it if it is absent.
var helmPath = sync.OnceValues(func() (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(repositoryRoot+"/.ci/tool", "helm")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		_, _ = os.Stderr.Write(stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), err
})

// helm runs helm and returns its output.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := helmPath()
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	return string(out), err
}

// namespaces has the namespace of each chart, as in the guide.
var namespaces = map[string]string{"windlass-controlplane": "windlass", "windlass-agent": "windlass-system", "windlass-gateway": "windlass-system"}

// valueFiles returns the files testdata/CHART.CASE.values.yaml, by chart. The rendered chart is in CHART.CASE.golden.yaml.
func valueFiles(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	require.NoError(t, err)
	out := map[string][]string{}
	for _, file := range files {
		chart, _, _ := strings.Cut(filepath.Base(file), ".")
		require.Contains(t, namespaces, chart, file)
		out[chart] = append(out[chart], file)
	}
	require.Len(t, out, len(namespaces))
	return out
}

func renderChart(t *testing.T, chart, values string) string {
	t.Helper()
	text, err := helm(t, "template", chart, filepath.Join(chartsDir, chart), "--namespace", namespaces[chart], "--values", values)
	require.NoError(t, err, text)
	return text
}

func TestCharts_RenderAsInTheGoldenFiles(t *testing.T) {
	for chart, files := range valueFiles(t) {
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				text := renderChart(t, chart, file)
				golden := strings.TrimSuffix(file, ".values.yaml") + ".golden.yaml"
				if *update {
					require.NoError(t, os.WriteFile(golden, []byte(text), 0o644))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				require.Equal(t, string(want), text, "run go test ./.ci/tools/charts -update, and review the difference")
			})
		}
	}
}

func TestCharts_PassHelmsLint(t *testing.T) {
	for chart, files := range valueFiles(t) {
		for _, file := range files {
			text, err := helm(t, "lint", "--strict", "--quiet", "--namespace", namespaces[chart], "--values", file, filepath.Join(chartsDir, chart))
			require.NoError(t, err, "%s: %s", file, text)
		}
	}
}

// TestCharts_CasesCoverTheTemplates checks that a golden file of testdata has each environment variable and each kind of
// the templates.
func TestCharts_CasesCoverTheTemplates(t *testing.T) {
	variableOrKind := regexp.MustCompile(`WINDLASS_\w+|(?m:^kind: \w+$)`)
	for chart, files := range valueFiles(t) {
		var rendered strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(strings.TrimSuffix(file, ".values.yaml") + ".golden.yaml")
			require.NoError(t, err)
			rendered.Write(text)
		}
		templates, err := filepath.Glob(filepath.Join(chartsDir, chart, "templates", "*.*"))
		require.NoError(t, err)
		require.NotEmpty(t, templates)
		for _, file := range templates {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, name := range variableOrKind.FindAllString(string(text), -1) {
				require.Contains(t, rendered.String(), name, "%s: add it to a case in testdata", file)
			}
		}
	}
}

func TestCharts_ErrorsNameTheWrongValue(t *testing.T) {
	const (
		controlplane = "windlass-controlplane"
		agent        = "windlass-agent"
		gateway      = "windlass-gateway"
	)
	for set, c := range map[string]struct{ chart, want string }{
		"replica=3":                     {controlplane, "additional properties 'replica' not allowed"},
		"replicas=-1":                   {controlplane, "at '/replicas': minimum: got -1, want 0"},
		"replicas=many":                 {agent, "at '/replicas': got string, want integer"},
		"image.digest=sha256:12":        {gateway, "at '/image/digest': 'sha256:12' does not match pattern"},
		"database.dsn=root:p@tcp(db)/w": {controlplane, "at '/database/dsn': got string, want object"},
		"keyset.secret=":                {controlplane, "at '/keyset/secret': '' does not match pattern"},
		"tls.cert=x":                    {controlplane, "at '/tls': additional properties 'cert' not allowed"},
		"flags.limt-apps=5":             {controlplane, "at '/flags': additional properties 'limt-apps' not allowed"},
		"flags.limit-apps=many":         {controlplane, "at '/flags/limit-apps': got string, want integer"},
		"flags.mysql-dsn=x":             {controlplane, "at '/flags': additional properties 'mysql-dsn' not allowed"},
		"flags.keep-ended=2d":           {controlplane, "at '/flags/keep-ended': '2d' does not match pattern"},
		"flags.prometheus-url=https://user:password@prometheus": {controlplane, "at '/flags/prometheus-url'"},
		"flags.gpus=none":                                    {agent, "at '/flags': additional properties 'gpus' not allowed"},
		"log.level=loud":                                     {gateway, "at '/log/level': value must be one of 'debug', 'info', 'warn', 'error'"},
		"restate.admin=restate:9070":                         {controlplane, "at '/restate/admin': 'restate:9070' does not match pattern"},
		"service.type=Headless":                              {gateway, "at '/service/type': value must be one of"},
		"podDisruptionBudget.maxUnavailable=half":            {gateway, "at '/podDisruptionBudget/maxUnavailable': 'half' does not match pattern"},
		"pools[0].name=h100":                                 {agent, "at '/pools/0': missing property 'nodeSelector'"},
		"networkPolicy.restateFrom=null":                     {controlplane, "networkPolicy.restateFrom: name Restate's pods"},
		"networkPolicy.restateFrom=[]":                       {controlplane, "at '/networkPolicy/restateFrom': minItems: got 0, want 1"},
		"gatewayAPI.gateway=public":                          {agent, "at '/gatewayAPI/gateway': 'public' does not match pattern"},
		"tls.certificate=,tls.clientCA=clients":              {controlplane, "tls.clientCA: clients send certificates only with TLS: set tls.certificate"},
		"backup.enabled=true":                                {controlplane, "backup.volume: set it, such as to {persistentVolumeClaim: {claimName: NAME}}"},
		"backup.upload.name=copy":                            {controlplane, "backup.upload.image: set the image"},
		"tls.enabled=true":                                   {gateway, "tls.certificate: set it, or flags.acme-directory, because tls.enabled is true"},
		"tls.certificate=apps":                               {gateway, "tls.enabled: set it to true, because tls.certificate"},
		"autoscaling.enabled=true,autoscaling.maxReplicas=1": {gateway, "autoscaling.maxReplicas: it is less than autoscaling.minReplicas"},
		"env[0].name=WINDLASS_LISTEN,env[0].value=x":         {controlplane, "env[0].name: the chart sets WINDLASS_LISTEN itself, or it is there twice"},
		"env[0].name=A,env[1].name=A":                        {agent, "env[1].name: the chart sets A itself, or it is there twice"},
	} {
		t.Run(set, func(t *testing.T) {
			flag := "--set"
			if strings.HasSuffix(set, "=[]") {
				flag = "--set-json"
			}
			text, err := helm(t, "template", c.chart, filepath.Join(chartsDir, c.chart), flag, set)
			require.Error(t, err)
			require.Contains(t, text, c.want)
		})
	}
}

// TestCharts_HaveNoSecrets exists because values are stored in Helm releases and in git. So charts only refer to existing
// Secrets.
func TestCharts_HaveNoSecrets(t *testing.T) {
	for _, files := range valueFiles(t) {
		for _, file := range files {
			text, err := os.ReadFile(strings.TrimSuffix(file, ".values.yaml") + ".golden.yaml")
			require.NoError(t, err)
			docs := yaml.NewDecoder(bytes.NewReader(text))
			for {
				var o struct {
					Kind             string
					Data, StringData map[string]string
				}
				if docs.Decode(&o) != nil {
					break
				}
				if o.Kind == "Secret" {
					require.Empty(t, o.Data, file)
					require.Empty(t, o.StringData, file)
				}
			}
		}
	}
}

// TestCharts_DescribeEachValue checks that each value has a description, and that editors and `helm show values` show the
// same text.
func TestCharts_DescribeEachValue(t *testing.T) {
	for chart := range namespaces {
		text, err := os.ReadFile(filepath.Join(chartsDir, chart, "values.schema.json"))
		require.NoError(t, err)
		var schema map[string]any
		require.NoError(t, json.Unmarshal(text, &schema))
		described := 0
		var checkSchema func(at string, of map[string]any)
		checkSchema = func(at string, of map[string]any) {
			properties, known := of["properties"].(map[string]any)
			for name, p := range properties {
				one, ok := p.(map[string]any)
				require.True(t, ok, at+"."+name)
				if at != "" || name != "global" {
					require.NotEmpty(t, one["type"], "%s: %s.%s", chart, at, name)
				}
				checkSchema(at+"."+name, one)
				if !strings.Contains(at, "[]") {
					require.NotEmpty(t, one["description"], "%s: %s.%s", chart, at, name)
					described++
				}
			}
			if additional, ok := of["additionalProperties"].(bool); known && (!ok || additional) {
				require.Fail(t, "the schema accepts unknown values: set additionalProperties to false", "%s: %s", chart, at)
			}
			if items, ok := of["items"].(map[string]any); ok {
				checkSchema(at+"[]", items)
			}
		}
		checkSchema("", schema)
		require.Greater(t, described, 60, chart)
	}
}
