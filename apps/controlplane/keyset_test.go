package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyset_IsOnlyCreatedOnRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyset.json")
	_, err := serveFlags{KeyFile: path}.loadKeyset()
	require.ErrorContains(t, err, "does not exist: mount the keyset of the other replicas there, or create the first keyset with")
	require.NoFileExists(t, path)
	_, err = serveFlags{KeyFile: path, CreateKeyset: true}.loadKeyset()
	require.NoError(t, err)
	_, err = serveFlags{KeyFile: path}.loadKeyset()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = serveFlags{KeyFile: path, CreateKeyset: true}.loadKeyset()
	require.ErrorContains(t, err, "has mode 0644, so users other than its owner can access it: chmod 600 it")
}

func TestKeyset_CommandsCreateAndRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyset.json")
	run := func(name string) (string, error) {
		var flags cli
		parser, err := newParser(&flags)
		require.NoError(t, err)
		_, err = parser.Parse([]string{"keyset", name, "--key-file", path})
		require.NoError(t, err)
		var out bytes.Buffer
		err = flags.Keyset.run(t.Context(), name, &out, nil)
		return out.String(), err
	}
	_, err := run("create")
	require.NoError(t, err)
	_, err = run("create")
	require.ErrorContains(t, err, "exists already")
	_, err = run("rotate")
	require.ErrorContains(t, err, "add a key first")
	_, err = run("add")
	require.NoError(t, err)
	listed, err := run("list")
	require.NoError(t, err)
	require.Regexp(t, `^\d+\tenabled\tseals and opens\n\d+\tenabled\topens\n$`, listed)
	_, err = run("rotate")
	require.NoError(t, err)
	listed, err = run("list")
	require.NoError(t, err)
	require.Regexp(t, `^\d+\tenabled\topens\n\d+\tenabled\tseals and opens\n$`, listed)
}
