package render

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

func unitOf(role string, group, slot int) runtime.Assignment {
	a := minimal()
	a.Unit = &runtime.Unit{Role: role, Group: group, Slot: slot}
	return a
}

func TestUnit_LongNamesAreValidStableAndDistinct(t *testing.T) {
	app, role := strings.Repeat("a", 63), strings.Repeat("r", 62)
	seen := map[string]string{}
	for _, r := range []string{role + "1", role + "2", "r"} {
		for _, group := range []int{0, 1, 11, 9999} {
			for _, slot := range []int{0, 1, 11, 255} {
				a := unitOf(r, group, slot)
				a.Deployment.AppName, a.WorkloadVersion = app, 2147483647
				a.WorkloadKey = "dep_01a2217b04827c5488e6e13eb69d3ac512345678"
				name, at := WorkloadName(a), fmt.Sprintf("%s/%d.%d", r, group, slot)
				require.Empty(t, validation.IsDNS1035Label(name), name)
				require.LessOrEqual(t, len(name), maxWorkload, name)
				require.Equal(t, name, WorkloadName(a))
				require.Empty(t, seen[name], "%s and %s have the name %s", at, seen[name], name)
				seen[name] = at

				key := workloadKey(a)
				require.Empty(t, validation.IsValidLabelValue(key), key)
				require.Equal(t, a.WorkloadKey, ParentKey(key))
				require.Empty(t, seen[key], "%s and %s have the key %s", at, seen[key], key)
				seen[key] = at
				require.Empty(t, validation.IsDNS1123Label(PeersName(a, group)))
				require.Empty(t, validation.IsDNS1123Label(variablesName(name, strings.Repeat("x", contentHash))), "the names of the Secrets fit")
			}
		}
	}
}

func TestUnit_RanksHaveNamesOfTheirOwn(t *testing.T) {
	app, role := strings.Repeat("a", 63), strings.Repeat("r", 63)
	seen := map[string]bool{}
	for _, rank := range []int{0, 1, 11, 99} {
		a := unitOf(role, 9999, 255)
		a.Unit.Hosts, a.Unit.Rank, a.Unit.Epoch = 100, rank, 7
		a.Deployment.AppName, a.WorkloadVersion = app, 2147483647
		a.WorkloadKey = "dep_01a2217b04827c5488e6e13eb69d3ac512345678"
		name, key, host := WorkloadName(a), workloadKey(a), RankHost(a, rank)
		require.Empty(t, validation.IsDNS1035Label(name), name)
		require.LessOrEqual(t, len(name), maxWorkload, name)
		require.Empty(t, validation.IsValidLabelValue(key), key)
		require.Empty(t, validation.IsDNS1035Label(RanksName(a)), RanksName(a))
		require.Empty(t, validation.IsDNS1123Label(host), host)
		require.Equal(t, a.WorkloadKey, ParentKey(key))
		of, ok := RankOf(key)
		require.True(t, ok)
		require.Equal(t, rank, of)
		for _, one := range []string{name, key, host} {
			require.False(t, seen[one], one)
			seen[one] = true
		}
		again := a
		again.Unit = &runtime.Unit{Role: role, Group: 9999, Slot: 255, Hosts: 100, Rank: rank, Epoch: 8}
		require.NotEqual(t, host, RankHost(again, rank), "another epoch")
		again = a
		again.TemplateHash = "other"
		require.NotEqual(t, host, RankHost(again, rank), "another template")
		require.Equal(t, RanksName(a), RanksName(again))
	}
	_, ok := RankOf(UnitKey("dep_1", "shard", 0, 1))
	require.False(t, ok)
}

func TestUnit_ShortNamesAreReadable(t *testing.T) {
	require.Regexp(t, `^chat-v3-decode-1-0-[a-z2-7]{5}$`, WorkloadName(unitOf("decode", 1, 0)))
	require.Regexp(t, `^dep_01\.1\.0\.[a-z2-7]{6}$`, workloadKey(unitOf("decode", 1, 0)))
}

func TestUnit_ParentOfAnotherKeyIsItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`dep_[0-9a-f]{1,36}`).Draw(t, "key")
		require.Equal(t, key, ParentKey(key))
	})
}
