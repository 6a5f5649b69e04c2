package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestShare_IsAPercentageOfAllTraffic(t *testing.T) {
	t.Parallel()
	app := &windlassv1.App{Pins: []*windlassv1.Pin{
		{DeploymentId: "p", Weight: 20, Regions: []*windlassv1.PinRegion{{Region: "us", Weight: 20}, {Region: "eu", Weight: 0}}},
		{DeploymentId: "q", Weight: 15, Regions: []*windlassv1.PinRegion{{Region: "us", Weight: 15}}},
	}}
	for _, c := range []struct {
		deployment, region string
		weight             int32
		want               string
	}{
		{"live", "us", 100, "65"},
		{"live", "eu", 100, "100"},
		{"canary", "us", 1, "0.65"},
		{"canary", "us", 10, "6.5"},
		{"p", "us", 20, "20"},
		{"p", "eu", 0, "0"},
		{"live", "us", 0, "0"},
	} {
		require.Equal(t, c.want, trafficShare(app, c.deployment, c.region, c.weight), "%s in %s", c.deployment, c.region)
	}
}

func TestPin_IsSettledIfNoChangeWillFollow(t *testing.T) {
	t.Parallel()
	pin := func(states ...windlassv1.PinRegion_State) *windlassv1.Pin {
		p := &windlassv1.Pin{Weight: 10}
		for _, s := range states {
			p.Regions = append(p.Regions, &windlassv1.PinRegion{State: s, Weight: 10})
		}
		return p
	}
	const serving, failed, starting = windlassv1.PinRegion_STATE_SERVING, windlassv1.PinRegion_STATE_FAILED, windlassv1.PinRegion_STATE_STARTING
	require.True(t, pinSettled(pin(serving, failed)))
	require.False(t, pinSettled(pin(serving, starting)))
	require.False(t, pinSettled(pin(serving, windlassv1.PinRegion_STATE_LEAVING)))
	other := pin(serving)
	other.Weight = 20
	require.False(t, pinSettled(other), "the weight still changes")
	gone := pin(failed)
	gone.Removing = true
	require.False(t, pinSettled(gone))
}

func TestPin_VersionsAndPercentsAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int32{"v3": 3, "3": 3, "0": 0, "v": 0, "-1": 0, "three": 0} {
		got, err := versionNumber(text)
		require.Equal(t, want, got, text)
		require.Equal(t, want == 0, err != nil, text)
	}
	for text, want := range map[string]int32{"10%": 10, "10": 10, "10 %": 10, "0%": 0, "100%": 0, "2.5%": 0, "": 0} {
		got, err := parsePercent("weight", text)
		require.Equal(t, want, got, text)
		require.Equal(t, want == 0, err != nil, text)
	}
}
