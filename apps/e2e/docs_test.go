package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shellBlock is a block of shell of a page. A comment before it says why it is not run:
//
//	<!-- not run: needs a cluster -->
//
// A page may have commands that readers do not see, at any place, such as
//
//	<!-- run: windlass deploy -f deployments/examples/echo.yaml -->
//
// A line whose remark says that it fails or is refused must fail. Every other line must succeed. A block may
// be indented, as in a list. DEV_SERVER, DEV_KEY and DEV_OPERATOR_KEY are the address and the keys of this
// Windlass.
var shellBlock = regexp.MustCompile("(?s)(?:<!-- not run: ([^>]+?) -->\n *)?```sh\n(.*?\n) *```\n|<!-- run: (.*?) -->")

// unrunPages are the pages without a block that is run, with the reason. Every other page must have at least one
// block that is run.
var unrunPages = map[string]string{
	"alerts.md": "rules and dashboards of Prometheus and Grafana", "backup.md": "needs an installation; a test of the control plane does the same",
	"bare-hosts.md": "needs a separate host", "dashboard.md": "is used in a browser", "doctor.md": "its own tests run the commands",
	"gateway-api.md": "needs a cluster", "gateways.md": "needs a separate host", "images.md": "takes minutes",
	"install.md": "needs a cluster", "keda.md": "needs a cluster", "kubernetes.md": "the tests on Kubernetes deploy its files",
	"observability.md": "has no commands", "onnx.md": "needs a C compiler; the tests of onnxserver read the same files", "overrides.md": "has no commands", "troubleshooting.md": "has no blocks", "xds.md": "needs an Envoy",
}

var (
	continued = regexp.MustCompile(`\\\n\s*`)
	toFail    = regexp.MustCompile(`\s#.*\b(fails|refused)\b`)
)

// scriptOf returns the script that bash runs for a page. It is empty if no block of the page is run.
func scriptOf(page string) string {
	var out strings.Builder
	blocks := 0
	for _, m := range shellBlock.FindAllStringSubmatch(page, -1) {
		text := m[2] + m[3]
		if m[1] != "" {
			continue
		}
		if m[2] != "" {
			blocks++
		}
		for line := range strings.SplitSeq(continued.ReplaceAllString(text, " "), "\n") {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			want := "-eq"
			if toFail.MatchString(line) {
				want = "-ne"
			}
			fmt.Fprintf(&out, "printf '+ %%s\\n' %s\n%s\ncode=$?\nif ! [ $code %s 0 ]; then echo \"unexpected exit code $code\"; exit 1; fi\n",
				"'"+strings.ReplaceAll(line, "'", `'\''`)+"'", line, want)
		}
	}
	if blocks == 0 {
		return ""
	}
	return "set -u -o pipefail\n" + out.String()
}

// TestDocs runs the shell blocks of README and of the guides, page by page, with one `windlass dev`.
//
//nolint:tparallel // the pages share it, and run in order
func TestDocs(t *testing.T) {
	t.Parallel()
	repository, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "guides", "*.md"))
	require.NoError(t, err)
	scripts := map[string]string{}
	var order []string
	for _, path := range slices.Insert(pages, 0, filepath.Join(repository, "README.md")) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(repository, path)
		require.NoError(t, err)
		script := scriptOf(string(text))
		_, unrun := unrunPages[filepath.Base(path)]
		require.Equal(t, script == "", unrun, "%s: a page has to be in unrunPages if, and only if, no block of it is run", name)
		if script != "" {
			scripts[name] = script
			order = append(order, name)
		}
	}

	d := newDevStack(t)
	path := filepath.Dir(d.path) + ":" + filepath.Join(d.dir, "bin") + ":" + os.Getenv("PATH")
	d.folder = repository // dev finds the programs of examples there
	d.up("--regions", us+","+eu)
	var keys struct{ APIKey, OperatorKey string }
	text, err := os.ReadFile(filepath.Join(d.data(), "credentials.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &keys))
	state, _ := d.status()
	for _, name := range order {
		t.Run(name, func(t *testing.T) {
			// The folder looks like the root of the repository. Files that a page writes stay in the folder.
			folder := t.TempDir()
			require.NoError(t, os.Symlink(filepath.Join(repository, "deployments"), filepath.Join(folder, "deployments")))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", scripts[name])
			cmd.Dir = folder
			cmd.Env = append(slices.Clone(d.env), "PATH="+path, "DEV_SERVER="+state.API, "DEV_KEY="+keys.APIKey, "DEV_OPERATOR_KEY="+keys.OperatorKey)
			cmd.WaitDelay = time.Second // a program that a failed page left running may hold the output open
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
	d.dev("stop")
	d.requireNothingRuns()
}

func TestScriptOf_ReadsIndentedBlocks(t *testing.T) {
	t.Parallel()
	const block = "1. Do this:\n\n   ```sh\n   windlass status echo\n   ```\n"
	require.Contains(t, scriptOf(block), "\nwindlass status echo\n")
	require.Empty(t, scriptOf(strings.Replace(block, "   ```sh", "   <!-- not run: it is an example -->\n   ```sh", 1)))
}
