package api_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAudit_HasRefusedCallsAndReadsOfLogs(t *testing.T) {
	on := newStore(t)
	written, err := trail.New(store.Bind[trail.Tx](on), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	w := setupOn(t, on, func(c *api.Config) { c.Trail = written })
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return []byte("hello"), nil }
	w.deploy("chat")
	w.settle("chat")
	instance := w.instance("chat")
	ctx := t.Context()
	for range 3 {
		_, err = w.access("wl_"+strings.Repeat("x", 43)).WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
		require.Error(t, err)
		_, err = w.access(w.viewer).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "mine", Role: windlassv1.Role_ROLE_OWNER})
		require.Error(t, err)
	}
	w.shared("shared-1")
	_, err = w.regionService(w.owner).CreateJoinToken(ctx, &windlassv1.CreateJoinTokenRequest{Region: "shared-1"})
	require.Error(t, err, "the handler must refuse it")
	_, err = w.deployments(w.viewer).GetLogs(ctx, &windlassv1.GetLogsRequest{Instance: instance})
	require.NoError(t, err)
	stopped, stop := context.WithCancel(ctx)
	stop()
	require.NoError(t, written.Run(stopped))

	counted := func(key string) (out []string) {
		got, err := w.history(key).ListAudit(ctx, &windlassv1.ListAuditRequest{})
		require.NoError(t, err)
		for _, e := range got.GetEntries() {
			if text, _, ok := strings.Cut(e.GetAfter(), `,"until"`); ok {
				require.Equal(t, "127.0.0.1", e.GetSource())
				out = append(out, e.GetActor()+e.GetProcedure()[strings.LastIndex(e.GetProcedure(), "/"):]+" "+e.GetResourceId()+text)
			}
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{
		`owner/CreateJoinToken {"outcome":"permission_denied","count":1`,
		`role-1/CreateApiKey {"outcome":"permission_denied","count":3`,
		`role-1/GetLogs ` + instance + `{"outcome":"done","count":1`,
	}, counted(w.owner))
	require.Equal(t, []string{`/WhoAmI {"outcome":"unauthenticated","count":3`}, counted(w.operator))
}
