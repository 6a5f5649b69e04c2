package e2e

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// issuerSecret is the secret of the client in .ci/npm/oidc-provider/provider.mjs.
const issuerSecret = "s3cret-of-the-client"

// issuerArgs returns the flags of the control plane for its issuer, if the stack has one.
func (s *stack) issuerArgs() []string {
	if !s.cfg.issuer {
		return nil
	}
	s.issuer = "http://" + address(freePort(s.t))
	secret := filepath.Join(s.dir, "issuer-secret")
	require.NoError(s.t, os.WriteFile(secret, []byte(issuerSecret), 0o600))
	return []string{"--oidc-issuer=" + s.issuer, "--oidc-client-id=windlass", "--oidc-client-secret-file=" + secret, "--oidc-origins=" + s.url}
}

// runIssuer runs npm's oidc-provider until the test ends.
func (s *stack) runIssuer(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	const folder = ".ci/npm/oidc-provider"
	install, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	installed, err := exec.CommandContext(install, filepath.Join(root, ".ci", "packages"), folder).CombinedOutput()
	require.NoError(t, err, "%s", installed)
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "node", "provider.mjs", s.issuer[strings.LastIndex(s.issuer, ":")+1:], s.url+"/ui/sso/callback")
	c.Dir, c.Stderr = filepath.Join(root, folder), t.Output()
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { stop(); _ = c.Wait() }) // the error says that it was killed
	lines := bufio.NewScanner(out)
	ready := false
	for !ready && lines.Scan() {
		ready = lines.Text() == "ready"
	}
	require.True(t, ready, "the issuer ended at once")
	go func() { _, _ = io.Copy(io.Discard, out) }()
}

// testSignIn opens the dashboard and the confirmation page of `windlass login --sso` in a real browser.
// apps/dashboard/e2e/sign-in.e2e.ts has its steps.
func testSignIn(t *testing.T, s *stack) {
	app, err := filepath.Abs("../dashboard")
	require.NoError(t, err)
	browser := findChromium(t)
	requireDashboard(t, app)
	s.runIssuer(t)
	c := s.cli(t)
	c.ok("members", "rule", "set", "ml-team", "--group", "ml-team", "--role", "deployer")

	ctx, cancel := context.WithTimeout(t.Context(), browserPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "run", "--silent", "test:sign-in", "--", "--testTimeout", "300000")
	cmd.Dir = app
	cmd.Env = append(os.Environ(), append(s.caArgs("WINDLASS_SERVER_CA"),
		"WINDLASS_CHROMIUM="+browser,
		"WINDLASS_ORIGIN="+s.url,
		"WINDLASS_ISSUER="+s.issuer,
		"WINDLASS_CLI="+c.path,
		// The sign-in alone decides how the command connects.
		"WINDLASS_SERVER=", "WINDLASS_API_KEY=", "WINDLASS_CONTEXT=",
		"WINDLASS_CONFIG="+filepath.Join(t.TempDir(), "config.yaml"),
	)...)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}
