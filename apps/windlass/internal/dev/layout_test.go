package dev

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestLayoutCommand(t *testing.T) {
	cfg := Config{Getenv: func(name string) string { return map[string]string{"XDG_DATA_HOME": "/data"}[name] }}
	for dir, want := range map[string]string{
		"": "windlass dev stop", "/data/windlass/dev": "windlass dev stop",
		"/tmp/dev":        "windlass dev stop --data-dir /tmp/dev",
		"/tmp/it's dev $": `windlass dev stop --data-dir '/tmp/it'\''s dev $'`,
	} {
		o := options{dataDir: dir}
		require.NoError(t, o.completeDataDir(cfg))
		require.Equal(t, want, o.dataLayout().shellCommand("windlass", "stop"))
	}
	l := layout{root: "/tmp/dev"}
	name := programName()
	require.ErrorContains(t, l.alreadyRuns(), "see `"+name+" dev status --data-dir /tmp/dev`, or end it with `"+name+" dev stop --data-dir /tmp/dev`")
}

// A hint can be pasted into the shell that shows it, because it names this program and the data directory.
func TestHint_CanBePasted(t *testing.T) {
	for _, args := range [][]string{{"dev"}, {"dev", "stop"}} {
		root := &cobra.Command{Use: "windlass", SilenceErrors: true}
		root.PersistentFlags().StringP("output", "o", "table", "")
		root.AddCommand(Command(Config{Getenv: func(string) string { return "" }}))
		root.SetArgs(append(args, "--data-dir", "/tmp/it's dev", "-o", "json"))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		require.ErrorContains(t, root.ExecuteContext(t.Context()), "`"+programName()+` dev status --data-dir '/tmp/it'\''s dev' -o json`+"`")
	}
	require.NotEqual(t, "windlass", programName(), "the test's program is not in PATH")
}

// The PATH of instances ends with the programs of the examples, after the programs of the host.
func TestProgramEnv_EndsWithExamples(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	dir := filepath.Join(root, "deployments", "examples")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "echo.yaml"), nil, 0o600))
	t.Setenv("PATH", "/usr/bin:/bin")
	require.Contains(t, (&run{self: "/opt/windlass/windlass"}).programEnv(), "PATH=/opt/windlass:/usr/bin:/bin:"+filepath.Join(dir, "bin"))
}

func TestExamplesDir(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	self := filepath.Join(root, "bin", "windlass")
	require.Empty(t, examplesDir(self))
	dir := filepath.Join(root, "deployments", "examples")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "echo.yaml"), nil, 0o600))
	require.Equal(t, dir, examplesDir(self))
	require.Equal(t, dir, examplesDir("/usr/bin/windlass"), "it is run in the repository")
	t.Chdir(t.TempDir())
	require.Equal(t, dir, examplesDir(self))
	require.Contains(t, (&run{self: self}).programEnv()[len((&run{self: self}).programEnv())-1], string(filepath.ListSeparator)+filepath.Join(dir, "bin"))
}
