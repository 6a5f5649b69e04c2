package secrets

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func TestCache_ServesOnlyAssignedVersionsDuringAnOutage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	var unreachable bool
	version, fetched := int32(1), 0
	fetch := func(context.Context, *agentv1.GetSecretsRequest) (*agentv1.GetSecretsResponse, error) {
		if fetched++; unreachable {
			return nil, errors.New("unreachable")
		}
		return &agentv1.GetSecretsResponse{Secrets: []*agentv1.SecretValue{{Secret: "key", Version: version, Value: "hunter2"}}}, nil
	}
	open := func() *Cache {
		c, err := Open(dir, fetch)
		require.NoError(t, err)
		return c
	}
	deploymentWith := func(v int32) *agentv1.Deployment {
		return &agentv1.Deployment{Id: "../dep_1", Secrets: []*agentv1.SecretVersion{{Secret: "key", Version: v}}}
	}
	values, err := open().Values(t.Context(), deploymentWith(1), 1)
	require.NoError(t, err)
	require.Equal(t, "hunter2", values["key"])

	unreachable = true
	values, err = open().Values(t.Context(), deploymentWith(1), 1) // after a restart of the agent
	require.NoError(t, err)
	require.Equal(t, "hunter2", values["key"])
	require.Equal(t, 1, fetched)

	_, err = open().Values(t.Context(), deploymentWith(2), 2)
	var rejection *runtime.Rejection
	require.ErrorAs(t, err, &rejection)
	require.True(t, rejection.Retryable)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the key and one file, although the id has a path separator")
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		require.NotContains(t, string(data), "hunter2")
		if e.Name() != "key" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, e.Name()), []byte("damaged"), 0o600))
		}
	}
	unreachable = false
	_, err = open().Values(t.Context(), deploymentWith(1), 1)
	require.NoError(t, err, "damaged values are fetched again")
	require.NoError(t, open().Forget("../dep_1"))
	require.NoError(t, open().Forget("../dep_1"))
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
