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
	require.Equal(t, []string{"a", "b"}, told(asleep, "other"), "a region without the app gets regions at zero")
	require.Empty(t, told(asleep, "a"), "a region at zero wakes its own instances")
	warm := []model.AppRegion{at("a", false, true), at("b", true, false)}
	require.Equal(t, []string{"b"}, told(warm, "other"), "a ready region is preferred")
	require.Equal(t, []string{"b"}, told(warm, "a"))
	require.Empty(t, told([]model.AppRegion{at("a", false, false)}, "other"), "a region that starts or fails is not at zero")
}
