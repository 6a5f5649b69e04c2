package dev

import (
	"os"
	"path/filepath"
	"testing"

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
	require.ErrorContains(t, l.alreadyRuns(), "see `windlass dev status --data-dir /tmp/dev`, or end it with `windlass dev stop --data-dir /tmp/dev`")
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
