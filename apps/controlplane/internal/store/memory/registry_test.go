package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegistry(t *testing.T) {
	t.Run("every table has a name of its own and is counted", func(t *testing.T) {
		s := New(func() int64 { return 0 })
		rows := s.Rows()
		require.Len(t, rows, len(registry), "two tables have one name")
		require.Len(t, s.state.tables, len(registry))
	})
	t.Run("a snapshot keeps every table as it is", func(t *testing.T) {
		s := newState()
		at := s.snapshotState()
		for i := range s.tables {
			require.Same(t, at.tables[i], s.tables[i])
		}
		headTable.thawTable(s).set("reg_1", &head{}, 1)
		require.Empty(t, headTable.tableOf(at).rows)
		require.Len(t, headTable.tableOf(s).rows, 1)
	})
}
