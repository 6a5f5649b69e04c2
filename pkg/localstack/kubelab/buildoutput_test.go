package kubelab

import (
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBuildOutput(t *testing.T) {
	t.Run("counts fetched modules and built packages, and keeps other lines for errors", func(t *testing.T) {
		o := &buildOutput{}
		write := func(s string) {
			n, err := io.WriteString(o, s)
			require.NoError(t, err)
			require.Len(t, s, n)
		}
		require.Empty(t, o.progressText())
		write("go: downloading k8s.io/api v0.37.2\ngo: down")
		require.Equal(t, "fetching modules: 1 so far", o.progressText())
		write("loading k8s.io/client-go v0.37.2\n")
		require.Equal(t, "fetching modules: 2 so far", o.progressText())
		o.expectPackages(300)
		write("k8s.io/api/core/v1\nk8s.io/api/apps/v1\n")
		require.Equal(t, "building kubelab: 2 of at most 300 packages", o.progressText())
		write("# k8s.io/api/apps/v1\nfile.go:1:2: syntax error\nno end")
		require.Equal(t, "# k8s.io/api/apps/v1\nfile.go:1:2: syntax error\nno end", o.otherLines())
	})
	t.Run("is reported every 15 s until it is stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o := &buildOutput{}
			var told []string
			stop := o.reportProgress(func(line string) { told = append(told, line) })
			_, err := io.WriteString(o, "std\n")
			require.NoError(t, err)
			o.expectPackages(9)
			time.Sleep(40 * time.Second)
			stop()
			time.Sleep(time.Minute)
			require.Equal(t, []string{"building kubelab: 1 of at most 9 packages, 15 s", "building kubelab: 1 of at most 9 packages, 30 s"}, told)
		})
	})
}

func TestBuild_CountsWhatTheCacheLacks(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
	}
	goCommand := func(args ...string) []string {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.Fields(string(out))
	}
	write("go.mod", "module example.com/x\n")
	write("a/a.go", "package a\n\nconst A = `"+rand.Text()+"`\n")
	write("b/b.go", "package b\n\nimport \"example.com/x/a\"\n\nconst B = a.A\n")
	require.Equal(t, []string{"example.com/x/a", "example.com/x/b"}, goCommand("list", "-deps", "-f", notBuilt, "./b"))
	require.Equal(t, []string{"example.com/x/a"}, goCommand("build", "-v", "./a"))
	require.Equal(t, []string{"example.com/x/b"}, goCommand("list", "-deps", "-f", notBuilt, "./b"))
	require.Equal(t, []string{"example.com/x/b"}, goCommand("build", "-v", "./b"))
	require.Empty(t, goCommand("list", "-deps", "-f", notBuilt, "./b"))
}
