package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSharesAreExact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   []RouteTarget
		want []int32
	}{
		{"without pins they are the weights", []RouteTarget{{"a", 90, false}, {"b", 10, false}}, []int32{90, 10}},
		{"a pin that gets nothing is none", []RouteTarget{{"a", 100, false}, {"p", 0, true}}, []int32{100, 0}},
		{"the live one has what a pin leaves", []RouteTarget{{"a", 100, false}, {"p", 10, true}}, []int32{9000, 1000}},
		{"a canary's is of what pins leave", []RouteTarget{{"a", 99, false}, {"b", 1, false}, {"p", 20, true}, {"q", 35, true}}, []int32{4455, 45, 2000, 3500}},
		{"where nothing else serves, pins share all", []RouteTarget{{"p", 10, true}, {"q", 30, true}}, []int32{1000, 3000}},
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
