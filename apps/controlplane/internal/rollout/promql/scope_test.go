package promql

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScope_RestrictsEverySelector(t *testing.T) {
	const only = `windlass_deployment=~"dep_1|dep_2"`
	for query, want := range map[string]string{
		`up`:                                          `up{` + only + `}`,
		`sum(rate(x[5m]))`:                            `sum(rate(x{` + only + `}[5m]))`,
		`x{a="b"} offset 1h / on() y`:                 `x{a="b",` + only + `} offset 1h / on () y{` + only + `}`,
		`max_over_time(sum(x)[1h:1m])`:                `max_over_time(sum(x{` + only + `})[1h:1m])`,
		`{__name__=~".+"}`:                            `{__name__=~".+",` + only + `}`,
		`x{windlass_deployment="dep_9"}`:              `x{windlass_deployment="dep_9",` + only + `}`,
		`x{windlass_deployment="dep_9"} or vector(1)`: `x{windlass_deployment="dep_9",` + only + `} or vector(1)`,
		`absent(x) + scalar(y @ end())`:               `absent(x{` + only + `}) + scalar(y{` + only + `} @ end())`,
		`1`:                                           `1`,
	} {
		got, err := restrictQuery(query, []string{"dep_2", "dep_1", "dep_2"})
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
	got, err := restrictQuery("x", []string{"a.b|.*"})
	require.NoError(t, err)
	require.Equal(t, `x{windlass_deployment=~"a\\.b\\|\\.\\*"}`, got)
	_, err = restrictQuery("sum(", []string{"dep_1"})
	require.ErrorContains(t, err, "parse error")
	_, err = restrictQuery("x", nil)
	require.ErrorContains(t, err, "no deployment")
}
