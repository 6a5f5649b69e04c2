package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func TestNeighbours_AtZero(t *testing.T) {
	at := func(id string, ready, zero bool) model.AppRegion {
		return model.AppRegion{AppID: "app_1", WorkspaceID: "ws_1", RegionID: id, RegionName: id, GatewayURL: "https://" + id, Ready: ready, AtZero: zero}
	}
	may := []model.WorkspaceRegion{{WorkspaceID: "ws_1", RegionID: "other", RegionName: "other"}}
	told := func(rows []model.AppRegion, region string) (names []string) {
		for _, r := range neighboursOf(rows, may)[region].Apps["app_1"].Regions {
			names = append(names, r.Region)
		}
		return names
	}
	asleep := []model.AppRegion{at("a", false, true), at("b", false, true)}
	require.Equal(t, []string{"a", "b"}, told(asleep, "other"), "a request from a region without the app wakes it")
	require.Empty(t, told(asleep, "a"), "a region at zero wakes its own")
	warm := []model.AppRegion{at("a", false, true), at("b", true, false)}
	require.Equal(t, []string{"b"}, told(warm, "other"), "one that is warm goes before")
	require.Equal(t, []string{"b"}, told(warm, "a"))
	require.Empty(t, told([]model.AppRegion{at("a", false, false)}, "other"), "what starts, or fails, is not at zero")
}
