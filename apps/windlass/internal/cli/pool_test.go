package cli

import (
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// poolPicture is a rollout from v1 to v2 of a pool of 8 prefill and 2 decode servers, which is half done in eu.
func poolPicture() *windlassv1.WatchAppResponse {
	version := func(n, percent int32, live bool) *windlassv1.Deployment {
		roles := []*windlassv1.RoleTopology{{Role: "prefill", Ready: 4, Wanted: 4, Instances: 4}, {Role: "decode", Entry: true, Ready: 1, Wanted: n, Instances: 1}}
		return &windlassv1.Deployment{
			Id: versionText(n), Version: n, Live: live, Spec: &windlassv1.DeploymentSpec{Layout: windlassv1.Layout_LAYOUT_POOLED},
			Regions: []*windlassv1.RegionTopology{{
				Region: "eu", Replicas: 50, Ready: percent, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, Instances: 5, Roles: roles,
			}},
		}
	}
	return &windlassv1.WatchAppResponse{
		App:         &windlassv1.App{Name: "pool", LiveVersion: 1, Replicas: 50, ReadyReplicas: 50, Regions: []string{"eu"}},
		Deployments: []*windlassv1.Deployment{version(1, 50, true), version(2, 25, false)},
		Rollout: &windlassv1.Rollout{Version: 2, FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, Progress: &windlassv1.RolloutProgress{
			Waves: []*windlassv1.WaveProgress{{State: windlassv1.WaveProgress_STATE_ROLLING, Regions: []*windlassv1.RegionProgress{{
				Region: "eu", State: windlassv1.RegionProgress_STATE_ROLLING, Replicas: 100,
				Old: &windlassv1.VersionProgress{Version: 1, Replicas: 50, Ready: 50, Weight: 50, Outdated: 12},
				New: &windlassv1.VersionProgress{Version: 2, Replicas: 50, Ready: 25, Weight: 50},
			}}}},
		}},
	}
}

func TestPool_IsShownByInstancesOfRoles(t *testing.T) {
	r := poolPicture()
	rollout := printTable(func(w *tabwriter.Writer) { rolloutTable(w, r) })
	require.Regexp(t, `eu +\S.* prefill 4/4, decode 1/1 \(12% old\) +prefill 4/4, decode 1/2 +100% +50/50`, rollout)

	status := printTable(func(w *tabwriter.Writer) { statusTable(w, r) })
	require.Regexp(t, `Live: +v1, prefill 4/4, decode 1/1 ready\n`, status)
	require.Regexp(t, `v2 +eu +started +25/50% +5`, status)

	lines := strings.Join(progressLines(r, "", "v2", time.Unix(0, 0)), "\n")
	require.Contains(t, lines, "[#####.....] prefill 4/4, decode 1/2 ready")
	require.Equal(t, "pool v1 is ready: prefill 4/4, decode 1/1 in eu, after 1s", readyLine(r, time.Second))
}

func TestPool_OtherLayoutsAreShownByReplicas(t *testing.T) {
	r := poolPicture()
	for _, d := range r.Deployments {
		d.Spec.Layout = windlassv1.Layout_LAYOUT_REPLICAS
	}
	require.Regexp(t, `eu +\S.* 50/50: prefill 4/4, decode 1/1 \(12 old\) +25/50: prefill 4/4, decode 1/2 +100 +50/50`, printTable(func(w *tabwriter.Writer) { rolloutTable(w, r) }))
	require.Equal(t, "pool v1 is ready: 50 of 50 replicas in eu, after 1s", readyLine(r, time.Second))
}

func TestPool_RolesAreAddedUpOverRegions(t *testing.T) {
	r := poolPicture()
	r.Deployments[0].Regions = append(r.Deployments[0].Regions, &windlassv1.RegionTopology{Region: "us", Roles: []*windlassv1.RoleTopology{{Role: "decode", Ready: 2, Wanted: 3}}})
	require.Equal(t, "prefill 4/4, decode 3/4", rolesText(poolRoles(r, 1, "")))
	require.Equal(t, "decode 2/3", rolesText(poolRoles(r, 1, "us")))
	require.Empty(t, poolRoles(r, 1, "asia"))
	require.Empty(t, poolRoles(r, 3, ""))
}

func TestSetRole(t *testing.T) {
	for text, want := range map[string]string{
		"decode=0": "--role decode=0: a role has at least 1 instance",
		"decode":   "--role decode is not NAME=N, such as decode=6",
		"=2":       "--role =2 is not NAME=N, such as decode=6",
		"decode=x": "--role decode=x is not NAME=N, such as decode=6",
	} {
		require.EqualError(t, setRole(&windlassv1.ScaleRequest{}, text), want)
	}
}
