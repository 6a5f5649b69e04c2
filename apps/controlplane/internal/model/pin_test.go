package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShares_AreExact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   []RouteTarget
		want []int32
	}{
		{"without pins they are the weights", []RouteTarget{{DeploymentID: "a", Weight: 90}, {DeploymentID: "b", Weight: 10}}, []int32{90, 10}},
		{"a pin with weight 0 changes nothing", []RouteTarget{{DeploymentID: "a", Weight: 100}, {DeploymentID: "p", Weight: 0, Pinned: true}}, []int32{100, 0}},
		{"the live version gets the share that a pin leaves", []RouteTarget{{DeploymentID: "a", Weight: 100}, {DeploymentID: "p", Weight: 10, Pinned: true}}, []int32{9000, 1000}},
		{"a canary's weight is a share of the rest", []RouteTarget{{DeploymentID: "a", Weight: 99}, {DeploymentID: "b", Weight: 1}, {DeploymentID: "p", Weight: 20, Pinned: true}, {DeploymentID: "q", Weight: 35, Pinned: true}}, []int32{4455, 45, 2000, 3500}},
		{"pins share all traffic if nothing else serves", []RouteTarget{{DeploymentID: "p", Weight: 10, Pinned: true}, {DeploymentID: "q", Weight: 30, Pinned: true}}, []int32{1000, 3000}},
	} {
		before := append([]RouteTarget{}, c.in...)
		var got []int32
		for _, s := range Shares(c.in) {
			got = append(got, s.Weight)
		}
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, before, c.in, c.name)
	}
}
