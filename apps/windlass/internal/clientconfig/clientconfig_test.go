package clientconfig_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
)

func env(kv map[string]string) func(string) string {
	return func(key string) string { return kv[key] }
}

func TestConfig_OnlyItsUserCanReadIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "windlass", "config.yaml")
	want := clientconfig.Context{
		Name: "dev", Server: "http://127.0.0.1:7400", APIKey: "key",
		Workspace: "w", Project: "p", Environment: "production",
	}
	require.NoError(t, clientconfig.Update(t.Context(), path, func(f *clientconfig.File) error {
		f.Put(clientconfig.Context{Name: "dev", Server: "http://old"})
		f.Put(want)
		f.Current = "dev"
		return nil
	}))
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())

	f, err := clientconfig.Load(path)
	require.NoError(t, err)
	require.Len(t, f.Contexts, 1)
	got, err := f.Resolve("", env(nil))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestConfig_LosesNoConcurrentUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			errs[i] = clientconfig.Update(t.Context(), path, func(f *clientconfig.File) error {
				f.Put(clientconfig.Context{Name: fmt.Sprint("c", i), Server: "http://h"})
				return nil
			})
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	f, err := clientconfig.Load(path)
	require.NoError(t, err)
	require.Len(t, f.Contexts, len(errs))
}

func TestConfig_FailedChangeWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.Error(t, clientconfig.Update(t.Context(), path, func(f *clientconfig.File) error {
		f.Current = "x"
		return errors.New("no")
	}))
	require.NoFileExists(t, path)
}

func TestConfig_BrokenFileIsNamedAndKept(t *testing.T) {
	for _, content := range []string{"contexts: 3", "contexts: [{server: http://h}]", "contxts: []", "current: a\n---\ncontexts: []"} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := clientconfig.Load(path)
		require.ErrorContains(t, err, path)
		require.Error(t, clientconfig.Update(t.Context(), path, func(*clientconfig.File) error { return nil }))
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(b))
	}
}

func TestResolve(t *testing.T) {
	f := clientconfig.File{Current: "one", Contexts: []clientconfig.Context{
		{Name: "one", Server: "https://one/", APIKey: "k1", Workspace: "w1"},
		{Name: "two", Server: "https://two", APIKey: "k2"},
		{Name: "bad", Server: "ftp://three"},
	}}
	for _, c := range []struct {
		name, flag  string
		env         map[string]string
		file        clientconfig.File
		server, key string
		err         string
	}{
		{name: "the current one", file: f, server: "https://one", key: "k1"},
		{name: "the environment's", file: f, env: map[string]string{clientconfig.EnvContext: "two"}, server: "https://two", key: "k2"},
		{name: "the flag before the environment", file: f, flag: "one", env: map[string]string{clientconfig.EnvContext: "two"}, server: "https://one", key: "k1"},
		{name: "another key", file: f, env: map[string]string{clientconfig.EnvAPIKey: "k"}, server: "https://one", key: "k"},
		{name: "another server does not get the key", file: f, env: map[string]string{clientconfig.EnvServer: "https://evil"}, server: "https://evil", key: ""},
		{name: "the same server keeps the key", file: f, env: map[string]string{clientconfig.EnvServer: "https://one"}, server: "https://one", key: "k1"},
		{name: "the environment alone", env: map[string]string{clientconfig.EnvServer: "https://s", clientconfig.EnvAPIKey: "k"}, server: "https://s", key: "k"},
		{name: "nothing", err: "windlass dev"},
		{name: "unknown", file: f, flag: "nope", err: `context "nope" is not configured: the contexts are bad, one, two`},
		{name: "current is gone", file: clientconfig.File{Current: "gone"}, err: `current context "gone" is not configured: there are no contexts`},
		{name: "in clear to another machine", env: map[string]string{clientconfig.EnvServer: "http://s"}, err: "in clear: use https://"},
		{name: "in clear on purpose", env: map[string]string{clientconfig.EnvServer: "http://s", clientconfig.EnvInsecure: "true"}, server: "http://s"},
		{name: "neither true nor false", file: f, env: map[string]string{clientconfig.EnvInsecure: "perhaps"}, err: "use true or false"},
		{name: "not a URL", file: f, flag: "bad", err: "is not a URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.file.Resolve(c.flag, env(c.env))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.server, got.Server)
			require.Equal(t, c.key, got.APIKey)
		})
	}
}

func TestConfig_HasNoCurrentContextAfterItsRemoval(t *testing.T) {
	f := clientconfig.File{Current: "one", Contexts: []clientconfig.Context{{Name: "one"}}}
	require.True(t, f.Remove("one"))
	require.False(t, f.Remove("one"))
	require.Empty(t, f.Current)
}

func TestConfig_PathComesFromTheEnvironment(t *testing.T) {
	path, err := clientconfig.Path(env(map[string]string{clientconfig.EnvFile: "/x/y.yaml"}))
	require.NoError(t, err)
	require.Equal(t, "/x/y.yaml", path)
	path, err = clientconfig.Path(env(nil))
	require.NoError(t, err)
	require.Equal(t, "config.yaml", filepath.Base(path))
}
