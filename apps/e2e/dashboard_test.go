package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browserPatience bounds the test in the browser, which is short on a machine that is not busy.
const browserPatience = 8 * time.Minute

// findChromium returns the path of a browser, or skips the test.
func findChromium(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("WINDLASS_CHROMIUM"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium: install it, or name it with WINDLASS_CHROMIUM")
	return ""
}

// requireDashboard skips the test if the dashboard or the packages of its tests are missing. If CI is set,
// the test fails instead, because .ci/test makes both.
func requireDashboard(t *testing.T, app string) {
	t.Helper()
	for _, needed := range []string{
		filepath.Join(app, "node_modules", "playwright-core"),
		filepath.Join(app, "..", "controlplane", "internal", "console", "assets", "dist", "index.html"),
	} {
		_, err := os.Stat(needed)
		if err == nil {
			continue
		}
		if os.Getenv("CI") != "" {
			t.Fatalf("the dashboard is not built: %v", err)
		}
		t.Skipf("the dashboard is not built (run .ci/test e2e): %v", err)
	}
}

// TestDashboard opens the dashboard of a `windlass dev` in a real browser. apps/dashboard/e2e/real.e2e.ts has
// its steps.
func TestDashboard(t *testing.T) {
	t.Parallel()
	app, err := filepath.Abs("../dashboard")
	require.NoError(t, err)
	browser := findChromium(t)
	requireDashboard(t, app)
	d := newDevStack(t)
	require.Contains(t, d.up("--regions", us+","+eu).stdout, "/ui/#link=wll_")

	// The app is the example. Its next version is a canary that waits for promotion.
	examples := t.TempDir()
	text, err := os.ReadFile(example(t, "echo.yaml"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(examples, "echo.yaml"), text, 0o600))
	next := strings.NewReplacer("version-label, v1", "version-label, v2", "versionLabel: v1", "versionLabel: v2").Replace(string(text)) +
		"\nrollout:\n  strategy: canary\n  steps:\n  - {weight: 50, pause: manual}\n"
	require.NoError(t, os.WriteFile(filepath.Join(examples, "echo-canary.yaml"), []byte(next), 0o600))

	ctx, cancel := context.WithTimeout(t.Context(), browserPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "run", "--silent", "test:real", "--", "--testTimeout", "300000")
	cmd.Dir = app
	cmd.Env = append(os.Environ(),
		"HOME="+d.dir,
		"WINDLASS_CHROMIUM="+browser,
		"WINDLASS_DASHBOARD_LINK="+strings.TrimSpace(d.ok("dashboard")),
		"WINDLASS_CLI="+d.path,
		"WINDLASS_EXAMPLES="+examples,
		"WINDLASS_AGENT_PID="+strconv.Itoa(d.pidOf("agent/"+eu)),
	)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)

	stopped := d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()
}
