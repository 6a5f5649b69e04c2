package modelserver

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// peersFile is the file of peers of a group. The test writes it as an agent does.
type peersFile struct{ path string }

func newPeersFile(t *testing.T) *peersFile {
	t.Helper()
	p := &peersFile{filepath.Join(t.TempDir(), "peers.json")}
	p.write(t, map[string][]*endpoint{RoleDecode: nil, RolePrefill: nil})
	return p
}

func (p *peersFile) write(t *testing.T, roles map[string][]*endpoint) {
	t.Helper()
	addresses := map[string][]string{}
	for role, all := range roles {
		addresses[role] = []string{}
		for _, e := range all {
			addresses[role] = append(addresses[role], strings.TrimPrefix(e.url, "http://"))
		}
	}
	data, err := json.Marshal(map[string]any{"group": 3, "roles": addresses})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.path+".tmp", data, 0o600))
	require.NoError(t, os.Rename(p.path+".tmp", p.path))
}

func TestRoles_RequestsGoThroughTheGroup(t *testing.T) {
	file := newPeersFile(t)
	serve := func(role, version string) *endpoint {
		return startReady(t, Config{AppRole: role, Peers: file.path, Group: "3", VersionLabel: version})
	}
	router, decode, prefill := serve(RoleRouter, "v1"), serve(RoleDecode, "v1"), serve(RolePrefill, "v1")
	ask := func() (*http.Response, string) {
		res, err := router.client.Post(router.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"echo","prompt":"one two"}`))
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res, string(body)
	}

	res, body := ask()
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Contains(t, body, "no decode server of the group is ready")

	file.write(t, map[string][]*endpoint{RoleDecode: {decode}, RolePrefill: nil})
	res, body = ask()
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Contains(t, body, "no prefill server of the group is ready")

	file.write(t, map[string][]*endpoint{RoleDecode: {decode}, RolePrefill: {prefill}})
	res, body = ask()
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	require.Contains(t, body, "one two")
	require.Equal(t, []string{RoleDecode}, res.Header.Values(headerRole))
	require.Equal(t, []string{"3"}, res.Header.Values(headerGroup))
	require.Equal(t, "v1", res.Header.Get(headerPrefillVersion))
	require.Equal(t, []string{"v1"}, res.Header.Values("X-Model-Version"))

	t.Run("a peer that has ended is skipped", func(t *testing.T) {
		gone := serve(RoleDecode, "v1")
		gone.stop()
		require.NoError(t, <-gone.result)
		gone.result <- nil
		file.write(t, map[string][]*endpoint{RoleDecode: {gone, decode}, RolePrefill: {gone, prefill}})
		for range 4 {
			res, body := ask()
			require.Equal(t, http.StatusOK, res.StatusCode, body)
		}
	})
	t.Run("a pair of different versions fails with an error", func(t *testing.T) {
		file.write(t, map[string][]*endpoint{RoleDecode: {decode}, RolePrefill: {serve(RolePrefill, "v2")}})
		res, body := ask()
		require.Equal(t, http.StatusConflict, res.StatusCode)
		require.Contains(t, body, "kv_incompatible")
		require.Equal(t, "v2", res.Header.Get(headerPrefillVersion))
	})
	t.Run("a group without the role prefill", func(t *testing.T) {
		file.write(t, map[string][]*endpoint{RoleDecode: {decode}})
		res, body := ask()
		require.Equal(t, http.StatusOK, res.StatusCode, body)
		require.Empty(t, res.Header.Get(headerPrefillVersion))
	})
}

func TestRoles_AreSetByFlagOrByPeers(t *testing.T) {
	require.Nil(t, newPart(&Config{AppRole: RolePrefill}), "the name of the app's role alone has no effect")
	require.Nil(t, newPart(&Config{AppRole: "main", Peers: "x"}))
	require.Nil(t, newPart(&Config{AppRole: RoleDecode, Peers: "x", Engine: EngineConfig{Name: "vllm"}}))
	require.Equal(t, RoleRouter, newPart(&Config{AppRole: "main", Peers: "x", Role: RoleRouter}).role)
	require.ErrorContains(t, Config{Role: "x"}.Validate(), "--role must be prefill, decode or router")
	require.ErrorContains(t, Config{Role: RoleDecode}.Validate(), "--peers")
}
