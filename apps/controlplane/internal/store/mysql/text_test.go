package mysql

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowText_HasItsValues(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{"", "''"},
		{"plain é 🚀 ? %", "'plain é 🚀 ? %'"},
		{"a'b\"c\\d\x00e\nf\rg\x1ah", `'a\'b\"c\\d\0e\nf\rg\Zh'`},
		{`\'; DROP TABLE apps; --`, `'\\\'; DROP TABLE apps; --'`},
		{[]byte{0, 0xff, '\''}, "_binary'\\0\xff\\''"},
		{[]byte{}, "_binary''"},
		{[]byte(nil), "NULL"},
		{int32(-1), "-1"},
		{int64(1) << 62, "4611686018427387904"},
		{7, "7"},
		{true, "1"},
		{false, "0"},
	} {
		text, err := appendRow(nil, strings.Split("(?, f(?))", "?"), []any{c.value, c.value})
		require.NoError(t, err)
		require.Equal(t, "("+c.want+", f("+c.want+"))", string(text))
	}
	_, err := appendRow(nil, []string{"(", ")"}, []any{3.5})
	require.ErrorContains(t, err, "float64")
}

func TestRowText_LeavesOutUsualColumns(t *testing.T) {
	b := insertInto("Put", "t", "id", "role", "slot").withDefaults(map[string]any{"role": "main", "slot": int32(0)})
	head, row, said := b.withoutDefaults([]any{"a", "main", int32(0), "b", "main", int32(1)})
	require.Equal(t, "-- name: Put :exec\nINSERT INTO t (id, slot) VALUES ", head)
	require.Equal(t, "(?, ?)", row)
	require.Equal(t, []int{0, 2}, said)
}
