package digest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHash_MatchesTheProtocolsTestVector(t *testing.T) {
	require.Equal(t, 31, Bucket("dep_1"))
	require.Equal(t, uint64(0x4e7beac4eeab5fac), Hash(1, "dep_1", 3, []byte{1, 2}))
}

func TestDigest_IgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct {
			kind int32
			key  string
			hash uint64
		}
		items := rapid.SliceOfDistinct(rapid.Custom(func(t *rapid.T) item {
			return item{
				kind: rapid.Int32Range(1, 2).Draw(t, "kind"),
				key:  rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "key"),
				hash: rapid.Uint64().Draw(t, "hash"),
			}
		}), func(i item) indexKey { return indexKey{i.kind, i.key} }).Draw(t, "items")

		forward, backward := NewIndex(), NewIndex()
		for _, it := range items {
			forward.Put(it.kind, it.key, it.hash+1)
			forward.Put(it.kind, it.key, it.hash)
		}
		backward.Put(9, "gone", 7)
		for i := range items {
			it := items[len(items)-1-i]
			backward.Put(it.kind, it.key, it.hash)
		}
		backward.Delete(9, "gone")

		a, b := forward.Sums(), backward.Sums()
		require.Equal(t, a, b)
		require.Equal(t, a.Total(), b.Total())
		require.Empty(t, a.Differing(b[:]))
		require.Equal(t, len(items), forward.Len())
	})
}

func TestDigest_OtherItemDiffersInItsBucket(t *testing.T) {
	var a, b Sums
	a.Add("x", 5)
	require.Equal(t, []int32{int32(Bucket("x"))}, a.Differing(b[:]))
	require.Len(t, a.Differing(nil), Buckets)
}
