package ident

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestIDs_AreValidDistinctAndAscending(t *testing.T) {
	ids := make([]string, 5000)
	for i := range ids {
		ids[i] = New("app")
		require.True(t, Valid("app", ids[i]), ids[i])
	}
	require.True(t, slices.IsSorted(ids))
	require.Len(t, slices.Compact(ids), 5000)
}

func TestIDs_AreSeparatedByTheirTime(t *testing.T) {
	earlier := time.Now().Add(-time.Millisecond)
	id := New("app")
	later := time.Now().Add(time.Millisecond)
	require.Less(t, Before("app", earlier), id)
	require.Less(t, id, Before("app", later))
	require.Equal(t, "app_0199a3f2c4d8", Before("app", time.UnixMilli(0x0199a3f2c4d8)))
	require.Equal(t, "app_000000000000", Before("app", time.UnixMilli(-1)))
}

func TestIDs_AscendWhenTheClockStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Forget()
		defer Forget()
		var last string
		for range 10_000 { // more than fit into a millisecond
			id := New("app")
			require.Less(t, last, id)
			require.True(t, Valid("app", id), id)
			last = id
		}
		require.GreaterOrEqual(t, New("app"), Before("app", time.Now().Add(2*time.Millisecond)))
		Forget()
		require.Less(t, New("app"), Before("app", time.Now().Add(time.Millisecond)))
	})
}

func TestID_HasOneSpelling(t *testing.T) {
	const good = "app_0199a3f2c4d87b1e9c3f5a6b7c8d9e0f"
	require.True(t, Valid("app", good))

	for name, bad := range map[string]string{
		"empty":            "",
		"prefix only":      "app_",
		"other prefix":     "dep" + good[3:],
		"longer prefix":    "x" + good,
		"no underscore":    strings.Replace(good, "_", "-", 1),
		"upper case":       strings.ToUpper(good),
		"upper hex":        "app_" + strings.ToUpper(good[4:]),
		"dashes":           "app_0199a3f2-c4d8-7b1e-9c3f-5a6b7c8d9e0f",
		"short":            good[:len(good)-1],
		"long":             good + "0",
		"not hex":          good[:len(good)-1] + "g",
		"unicode digit":    good[:len(good)-2] + "é",
		"version 4":        "app_0199a3f2c4d84b1e9c3f5a6b7c8d9e0f",
		"other variant":    "app_0199a3f2c4d87b1ecc3f5a6b7c8d9e0f",
		"trailing space":   good[:len(good)-1] + " ",
		"trailing newline": good + "\n",
	} {
		require.False(t, Valid("app", bad), name)
	}
}

func TestValidName_IsTheDocumentedPattern(t *testing.T) {
	pattern := regexp.MustCompile(`\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\z`)
	check := func(s string) {
		require.Equal(t, pattern.MatchString(s), ValidName(s), "%q", s)
	}
	for _, s := range []string{
		"", "a", "1", "-", "a-", "a-b", "A", "a_b", "a.b", "a\n", "é", "aé", "a b", "a'; --",
		strings.Repeat("a", 62), strings.Repeat("a", 63), strings.Repeat("a", 64), "a" + strings.Repeat("-", 62),
	} {
		check(s)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(rapid.StringMatching(`[-a-z0-9A-Z_]{0,70}`).Draw(t, "name"))
		check(rapid.String().Draw(t, "any"))
	})
}

func TestIDs_FromATimeAreValidAndSortByIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 1<<47).Draw(t, "at"))
		high, low := rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low")
		id := From("req", at, high, low)
		require.True(t, Valid("req", id), id)
		require.Less(t, Before("req", at), id)
		require.Less(t, id, Before("req", at.Add(time.Millisecond)))
		require.NotEqual(t, id, From("req", at, high, low^1))
	})
}
