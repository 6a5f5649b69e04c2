package kubelab

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// standIn replaces kubelab's program with a script, which must write the ready file as kubelab does. Tests of the
// real program are in its own module.
func standIn(t *testing.T, script string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelab")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv(EnvProgram, path)
}

// obedient is a script that prints its arguments, becomes ready, and ends on SIGTERM.
const obedient = `
trap 'echo asked; exit 0' TERM
echo "$@" > args
for a in "$@"; do case "$a" in --ready-file=*) touch "${a#--ready-file=}";; esac; done
while :; do sleep 0.02; done
`

func TestCluster_IsReadyAndEndsWhenAsked(t *testing.T) {
	standIn(t, obedient)
	dir := t.TempDir()
	group := "name=h100,nodes=2,gpu=nvidia.com/gpu=8"
	cluster, err := Start(t.Context(), Config{
		DataDir: dir, CIDR: "127.70.0.0/16", Groups: []string{group}, EvictAfter: 3 * time.Second, DieWithParent: true,
	})
	require.NoError(t, err)
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	require.NoError(t, err)
	require.Equal(t, []string{
		"up", "--data-dir=" + dir + "/cluster", "--kubeconfig=" + cluster.Kubeconfig, "--ready-file=" + dir + "/ready",
		"--cidr=127.70.0.0/16", "--group=" + group, "--evict-after=3s",
	}, strings.Fields(string(args)))

	require.NoError(t, cluster.Stop(t.Context()))
	require.NoError(t, cluster.Wait())
	log, err := os.ReadFile(cluster.LogFile())
	require.NoError(t, err)
	require.Contains(t, string(log), "asked")
}

func TestCluster_EarlyEndShowsTheLastLineOfTheLog(t *testing.T) {
	standIn(t, "echo first; echo 'kubelab: port 6443 is taken' >&2; exit 1")
	_, err := Start(t.Context(), Config{DataDir: t.TempDir(), DieWithParent: true})
	require.ErrorContains(t, err, "start kubelab: it ended (exit status 1): kubelab: port 6443 is taken")
}

func TestCluster_NeverReadyIsStoppedAtTheDeadline(t *testing.T) {
	standIn(t, "trap 'exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done")
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "pid")); err == nil {
				cancel()
			}
		}
	}()
	_, err := Start(ctx, Config{DataDir: dir, DieWithParent: true})
	require.ErrorIs(t, err, context.Canceled)
	content, err := os.ReadFile(filepath.Join(dir, "pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	require.NoError(t, err)
	_, err = proc.Birth(pid)
	require.Error(t, err, "the program must be stopped")
}

func TestCluster_NextStartReplacesTheLast(t *testing.T) {
	standIn(t, obedient)
	dir := t.TempDir()
	first, err := Start(t.Context(), Config{DataDir: dir, DieWithParent: true})
	require.NoError(t, err)
	second, err := Start(t.Context(), Config{DataDir: dir, DieWithParent: true})
	require.NoError(t, err)
	select {
	case <-first.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("two labs run on one directory")
	}
	require.NoError(t, second.Kill())
	require.ErrorContains(t, second.Wait(), "signal: killed")
}

func TestProgram_MissingIsNamed(t *testing.T) {
	t.Setenv(EnvProgram, filepath.Join(t.TempDir(), "nowhere"))
	_, err := Ensure(t.Context(), nil)
	require.ErrorContains(t, err, "WINDLASS_KUBELAB names no program: stat")
}

// checkout creates a tree with only the files that a build needs.
func checkout(t *testing.T) (root string, write func(path, content string)) {
	t.Helper()
	root = t.TempDir()
	write = func(path, content string) {
		file := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	write("go.work", "go 1.26\n")
	write("apps/kubelab/go.mod", "module x\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n)\n")
	write("apps/kubelab/go.sum", "")
	write("apps/kubelab/cmd/kubelab/main.go", "package main\n\nimport _ \""+prefix+"apps/kubelab\"\n")
	write("apps/kubelab/lab.go", "package kubelab\n\nimport (\n\t_ \"fmt\"\n\t_ \""+prefix+"pkg/used\"\n)\n")
	write("pkg/used/used.go", "package used\n")
	write("pkg/unused/unused.go", "package unused\n")
	return root, write
}

func TestBuild_IsNamedByItsContents(t *testing.T) {
	root, write := checkout(t)
	hash := func() string {
		h, err := hashSources(root)
		require.NoError(t, err)
		return h
	}
	before := hash()
	require.Equal(t, before, hash())
	write("pkg/unused/unused.go", "package unused // changed\n")
	write("pkg/used/used_test.go", "package used\n")
	require.Equal(t, before, hash(), "tests and packages that are not imported do not count")

	for path, content := range map[string]string{
		"pkg/used/used.go":    "package used // changed\n",
		"pkg/used/data.json":  "{}", // the file may be embedded
		"apps/kubelab/go.sum": "a\n",
	} {
		write(path, content)
		after := hash()
		require.NotEqual(t, before, after, path)
		before = after
	}
	version, err := kubernetesVersion(root)
	require.NoError(t, err)
	require.Equal(t, "v1.36.3", version)
}

func TestCheckout_IsFound(t *testing.T) {
	root, _ := checkout(t)
	t.Chdir(filepath.Join(root, "pkg", "used"))
	found, err := findSources()
	require.NoError(t, err)
	require.Equal(t, root, found)
}

func TestBuild_OldOnesAreRemovedUnlessInUse(t *testing.T) {
	all := t.TempDir()
	old := time.Now().Add(-2 * keep)
	for _, name := range []string{"current", "recent", "old", "broken"} {
		path := filepath.Join(all, name, programName)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if name == "broken" {
			continue
		}
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		if name != "recent" {
			require.NoError(t, os.Chtimes(path, old, old))
		}
	}
	removeOld(all, "current")
	entries, err := os.ReadDir(all)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"current", "recent"}, names)
}
