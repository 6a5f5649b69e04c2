package mysql

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func TestResealedParts(t *testing.T) {
	values := func(n, size int) []model.ResealedValue {
		out := make([]model.ResealedValue, n)
		for i := range out {
			out[i].Version, out[i].Ciphertext, out[i].Resealed = int32(i), make([]byte, size), make([]byte, size)
		}
		return out
	}
	for name, c := range map[string]struct {
		n, size int
		want    []int
	}{
		"none":                       {0, 0, nil},
		"rows have a limit":          {bulkRows + 1, 10, []int{bulkRows, 1}},
		"bytes have a limit":         {5, bulkBytes / 4, []int{2, 2, 1}},
		"a large value is by itself": {2, bulkBytes, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			var next int32
			for part := range resealedParts(values(c.n, c.size)) {
				got = append(got, len(part))
				for _, v := range part {
					require.Equal(t, next, v.Version)
					next++
				}
			}
			require.Equal(t, c.want, got)
			require.Equal(t, int32(c.n), next)
		})
	}
}
