package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestGrantRegion(t *testing.T) {
	const none, workspaces, unknown = windlassv1.Isolation_ISOLATION_NONE, windlassv1.Isolation_ISOLATION_WORKSPACE, windlassv1.Isolation_ISOLATION_UNSPECIFIED
	for name, c := range map[string]struct {
		runtime   string
		features  []string
		isolation windlassv1.Isolation
	}{
		"a host without isolation":           {"process", nil, none},
		"a host that isolates instances":     {"process", []string{agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String()}, workspaces},
		"a cluster with an older agent":      {"kubernetes", nil, workspaces},
		"an unknown runtime":                 {"microvm", nil, none},
		"an unknown runtime that isolates":   {"microvm", []string{agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String()}, workspaces},
		"a region that has had no agent yet": {"", nil, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			ctx := t.Context()
			made, err := w.regionService(w.operator).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared", Platform: true})
			require.NoError(t, err)
			if c.runtime != "" {
				w.update(func(tx store.Tx) error {
					_, _, err := tx.StartSession(made.GetRegion().GetId(), "session", 60_000, model.Region{AgentRuntime: c.runtime, AgentFeatures: c.features})
					return err
				})
			}
			got, err := w.regionService(w.operator).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: made.GetRegion().GetId()})
			require.NoError(t, err)
			require.Equal(t, c.isolation, got.GetRegion().GetIsolation())

			grant := func(workspace string, trust bool) (bool, error) {
				res, err := w.regionService(w.operator).GrantRegion(ctx, &windlassv1.GrantRegionRequest{Region: "shared", Workspace: workspace, TrustAllTenants: trust})
				return res.GetUnchanged(), err
			}
			_, err = grant("rival", false)
			require.NoError(t, err, "one workspace alone needs no isolation")
			unchanged, err := grant("rival", false)
			require.NoError(t, err)
			require.True(t, unchanged)
			_, err = grant("acme", false)
			if c.isolation != none {
				require.NoError(t, err)
				return
			}
			refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOT_ISOLATED, "region")
			require.ErrorContains(t, err, "its agent does not isolate instances")
			_, err = grant("acme", true)
			require.NoError(t, err)
		})
	}
}
