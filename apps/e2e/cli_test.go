package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cli is the windlass command with its own environment.
type cli struct {
	t    *testing.T
	path string
	env  []string
	// folder is the folder in which it runs. Empty: the folder of these tests.
	folder string
}

// ran is the result of a command.
type ran struct {
	code           int
	stdout, stderr string
}

func (c cli) run(stdin string, args ...string) ran {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Dir, cmd.Env = c.folder, c.env
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		require.NoError(c.t, errors.Join(err, ctx.Err()), "windlass %s\n%s%s", strings.Join(args, " "), &stdout, &stderr)
	}
	require.NotContains(c.t, stderr.String(), "panic", "windlass %s", strings.Join(args, " "))
	return ran{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// ok runs a command that must succeed, and returns its standard output.
func (c cli) ok(args ...string) string {
	c.t.Helper()
	r := c.run("", args...)
	require.Zero(c.t, r.code, "windlass %s\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

// fails runs a command that must end with the code and print all of says.
func (c cli) fails(code int, args []string, says ...string) {
	c.t.Helper()
	r := c.run("", args...)
	require.Equal(c.t, code, r.code, "windlass %s\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	for _, text := range says {
		require.Contains(c.t, r.stderr, text, "windlass %s", strings.Join(args, " "))
	}
}

// json runs a command with -o json into v.
func (c cli) json(v any, args ...string) {
	c.t.Helper()
	out := c.ok(append(args, "-o", "json")...)
	require.NoError(c.t, json.Unmarshal([]byte(out), v), "windlass %s\n%s", strings.Join(args, " "), out)
}

// example returns the path of an example file for users.
func example(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "deployments", "examples", name))
	require.NoError(t, err)
	require.FileExists(t, path)
	return path
}

// cli returns the command line of the stack's owner.
func (s *stack) cli(t *testing.T) cli {
	t.Helper()
	path, err := cliProgram()
	require.NoError(t, err)
	return cli{t: t, path: filepath.Join(path, "windlass"), env: s.environ(append(s.caArgs("WINDLASS_SERVER_CA"), "WINDLASS_SERVER="+s.url, "WINDLASS_API_KEY="+s.keys.APIKey)...)}
}

var urlLine = regexp.MustCompile(`(?m)^http://\S+$`)

func testCLI(t *testing.T, s *stack) {
	c := s.cli(t)
	// These are the first steps of a new user, with the files of the README.
	out := c.ok("deploy", "-f", example(t, "echo.yaml"))
	require.Contains(t, out, "echo v1 is ready: 4 of 4 replicas")
	urls := urlLine.FindAllString(out, -1)
	require.Len(t, urls, 4, out)
	require.Equal(t, urls[0], strings.TrimSpace(c.ok("url", "echo")))
	text, version := chat(t, urls[0], "hello from the shell")
	require.Equal(t, "hello from the shell", text)
	require.Equal(t, "v1", version)
	again := c.run("", "deploy", "-f", example(t, "echo.yaml"))
	require.Zero(t, again.code, again.stderr)
	require.Contains(t, again.stderr, "nothing changed")
	exported := filepath.Join(t.TempDir(), "apps")
	require.Contains(t, c.ok("export", "echo", "--folder", exported), "written")
	again = c.run("", "deploy", "-f", exported)
	require.Zero(t, again.code, again.stderr)
	require.Contains(t, again.stderr, "nothing changed")
	require.Contains(t, c.ok("export", "echo", "--folder", exported), "unchanged")

	// For a bad version, the command prints why it failed and which version is live, and ends with code 1.
	before := s.runningOf("echo")
	for file, reason := range map[string]string{
		"echo-crash.yaml": "CrashLoop", "echo-missing-binary.yaml": "BadCommand", "echo-never-ready.yaml": "StartupTimeout",
	} {
		c.fails(1, []string{"deploy", "-f", example(t, file)}, "failed: "+reason, "v1 is still live", "windlass history echo")
	}
	// The command ends when the version has failed. The version's instances stop after that. A crashing
	// instance has no process between two starts, so this asks the database.
	gone := func() {
		t.Helper()
		s.eventually(t, "no instance of a bad version is wanted", func(ctx context.Context) error {
			n, err := s.count(ctx, "SELECT COUNT(*) FROM deployment_topology t JOIN apps a ON a.id = t.app_id"+
				" JOIN deployments d ON d.id = t.deployment_id WHERE a.name = 'echo' AND d.version <> 1 AND t.status <> 4")
			if err == nil && n > 0 {
				err = fmt.Errorf("in %d places", n)
			}
			return err
		})
	}
	gone()
	requireSame(t, before, s.runningOf("echo"), "a bad version must not touch instances of the good one")
	c.fails(1, []string{"deploy", "-f", example(t, "echo-port-clash.yaml")}, "port 18473 is fixed", "2 instances would run there", "Set the port to 0")
	requireSame(t, before, s.runningOf("echo"), "a refused deploy must not touch instances")

	v2 := c.run("", "deploy", "-f", example(t, "echo-v2.yaml"))
	require.Zero(t, v2.code, v2.stderr)
	require.Contains(t, v2.stderr, "changes against v1, which is live")
	require.Regexp(t, `eu-west-1 .*2/2 ready`, v2.stderr, "progress by region")
	back := c.run("", "rollback", "echo", "--to", "1", "-m", "v2 is slow")
	require.Zero(t, back.code, back.stderr)
	require.Contains(t, back.stderr, "with the configuration of v1")
	for _, url := range urlLine.FindAllString(back.stdout, -1) {
		_, version := chat(t, url, "back")
		require.Equal(t, "v1", version)
	}
	require.Contains(t, c.ok("history", "echo"), "LiveMoved")

	testCLIOutput(t, c)
	testCLIErrors(t, s, c)

	require.Contains(t, c.ok("delete", "echo", "--yes"), "echo is deleted")
	require.Empty(t, s.runningOf("echo"))
	c.fails(1, []string{"status", "echo"}, "echo", "does not exist")
}

// testRealModel deploys the example with a real model.
func testRealModel(t *testing.T, s *stack) {
	node, err := exec.LookPath("node")
	require.NoError(t, err, "the example needs Node.js, and so does the build of Windlass")
	require.NoError(t, os.Symlink(node, filepath.Join(s.bin, "node")))
	require.NoError(t, os.Symlink(example(t, filepath.Join("bin", "embeddings")), filepath.Join(s.bin, "embeddings")))
	text, err := os.ReadFile(example(t, "embeddings.yaml"))
	require.NoError(t, err)
	// The model is downloaded once for this user, not once for each test.
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "embeddings.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "%s\nenv: {XDG_CACHE_HOME: %q}\n", text, cache), 0o600))

	out := s.cli(t).ok("deploy", "-f", file)
	require.Contains(t, out, "embeddings v1 is ready: 2 of 2 replicas")
	for _, url := range urlLine.FindAllString(out, -1) {
		near, far := distance(t, url, "a cat", "a kitten"), distance(t, url, "a cat", "the stock market")
		require.Less(t, near, far, "a cat is more like a kitten than like the stock market")
	}
}

// distance returns the distance between two texts by the model at the URL: 1 minus the cosine.
func distance(t *testing.T, url, a, b string) float64 {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "wink-sg-100d", "input": []string{a, b}})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/embeddings", bytes.NewReader(body))
	require.NoError(t, err)
	resp, err := plainHTTP.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Data []struct{ Embedding []float64 }
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Len(t, answer.Data, 2)
	var dot, aa, bb float64
	for i, x := range answer.Data[0].Embedding {
		y := answer.Data[1].Embedding[i]
		dot, aa, bb = dot+x*y, aa+x*x, bb+y*y
	}
	return 1 - dot/math.Sqrt(aa*bb)
}

// testCLIOutput asserts that output for programs is the API's own JSON form.
func testCLIOutput(t *testing.T, c cli) {
	var status struct {
		App struct {
			Name   string
			Status string
			Urls   []string
		}
	}
	c.json(&status, "status", "echo")
	require.Equal(t, "APP_STATUS_READY", status.App.Status)
	require.Len(t, status.App.Urls, 4)
	var rows []map[string]any
	for _, list := range [][]string{
		{"list", "apps"}, {"list", "deployments", "echo"}, {"list", "instances", "echo"}, {"list", "regions"}, {"history", "echo"}, {"audit"},
	} {
		c.json(&rows, list...)
		require.NotEmpty(t, rows, "%v", list)
		require.NotContains(t, c.ok(list...), "\x1b", "plain text when not a terminal")
		require.Contains(t, c.ok(append(list, "-o", "yaml")...), "- ", "%v", list)
	}
	c.json(&rows, "list", "instances", "echo")
	require.Len(t, rows, 4)
	require.NotEmpty(t, c.ok("logs", rows[0]["id"].(string)))

	require.Contains(t, c.ok("scale", "echo", "--replicas", "1"), "2 of 2 replicas")
	diff := c.run("", "deploy", "-f", example(t, "echo.yaml"), "--diff")
	require.Zero(t, diff.code, diff.stderr)
	require.Contains(t, diff.stderr, "~ replicas: 1 -> 2", "compared with the scaled number")
	exported := c.ok("export", "echo")
	require.Contains(t, exported, "\nreplicas: 1\n")
	again := c.run(exported, "deploy", "-f", "-")
	require.Zero(t, again.code, again.stderr)
	require.Contains(t, again.stderr, "nothing changed")
	require.Zero(t, c.run("", "env", "set", "echo", "COLOUR=red").code)
	require.Contains(t, c.ok("env", "list", "echo"), "COLOUR=red")
	set := c.run("s3cret-value", "secret", "set", "cli-token")
	require.Zero(t, set.code, set.stderr)
	require.NotContains(t, set.stdout+set.stderr, "s3cret")
	require.Contains(t, c.ok("secret", "list"), "cli-token")
	c.ok("secret", "delete", "cli-token")
	require.NotEmpty(t, c.ok("completion", "bash"))
	require.NotEmpty(t, c.ok("version"))

	var accepted struct{ DeploymentID string }
	c.json(&accepted, "deploy", "-f", example(t, "echo-v2.yaml"), "--wait=false")
	require.NotEmpty(t, accepted.DeploymentID)
	require.Zero(t, c.run("", "cancel", "echo").code)
}

// testCLIErrors asserts that each error names the fault and the fix.
func testCLIErrors(t *testing.T, s *stack, c cli) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	write := func(text string) []string {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return []string{"deploy", "-f", file}
	}
	const good = "app: bad\ncommand: [modelserver]\nregions: [us-east-1]\n"
	c.fails(1, write(good+"replcas: 2\n"), "replcas", "did you mean replicas?")
	c.fails(1, write(good+"replicas: -1\n"), "replicas")
	c.fails(1, write(good+"healthCheck: {interval: 5}\n"), "healthCheck.interval", "10s")
	c.fails(1, write("app: bad\ncommand: [x]\nregions: [atlantis]\n"), "atlantis")
	c.fails(1, write("app: Bad Name\ncommand: [x]\nregions: [us-east-1]\n"), "Bad Name")
	c.fails(1, []string{"deploy", "-f", file + ".missing"}, "no such file")
	c.fails(1, []string{"deploy"}, "file")
	c.fails(1, []string{"status", "no-such-app"}, "no-such-app")
	c.fails(1, []string{"rollback", "echo", "--to", "99"}, "99")
	c.fails(1, []string{"list", "apps", "-o", "xml"}, "table, json or yaml")
	c.fails(1, []string{"frobnicate"}, "frobnicate")

	with := func(more ...string) cli { return cli{t: t, path: c.path, env: s.environ(more...)} }
	with("WINDLASS_SERVER="+s.url, "WINDLASS_API_KEY=wl_"+strings.Repeat("x", 43)).
		fails(1, []string{"list", "apps"}, "unknown", "windlass login")
	with("WINDLASS_SERVER=http://"+address(freePort(t)), "WINDLASS_API_KEY="+s.keys.APIKey).
		fails(1, []string{"list", "apps"}, "cannot reach the control plane")
	with().fails(1, []string{"list", "apps"}, "windlass")
}
