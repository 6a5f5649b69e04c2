package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func TestNeighbours_HavePlatformRegionsByApprovedAddress(t *testing.T) {
	row := func(region, url string, platform, approved bool) model.AppRegion {
		return model.AppRegion{
			AppID: "app_1", WorkspaceID: "ws_1", RegionID: region, RegionName: region, GatewayURL: url,
			Platform: platform, GatewayApproved: approved, Ready: true,
		}
	}
	may := []model.WorkspaceRegion{
		{WorkspaceID: "ws_1", RegionID: "own-idle", RegionName: "own-idle"},
		{WorkspaceID: "ws_1", RegionID: "shared-idle", RegionName: "shared-idle", Platform: true},
	}
	for approved, want := range map[bool]map[string][]string{
		false: {
			"own": {"https://other", "https://shared"}, "own-idle": {"https://other", "https://own", "https://shared"},
			"shared": nil, "shared-idle": {"https://shared"},
		},
		true: {
			"own": {"https://other", "https://shared"}, "own-idle": {"https://other", "https://own", "https://shared"},
			"shared": {"https://own"}, "shared-idle": {"https://own", "https://shared"},
		},
	} {
		pictures := neighboursOf([]model.AppRegion{
			row("other", "https://other", false, false), row("own", "https://own", false, approved), row("shared", "https://shared", true, true),
		}, may)
		for region, urls := range want {
			var got []string
			for _, n := range pictures[region].Apps["app_1"].GetRegions() {
				got = append(got, n.GatewayUrl)
			}
			require.Equal(t, urls, got, "URLs of %s, approved %t", region, approved)
		}
	}
}
