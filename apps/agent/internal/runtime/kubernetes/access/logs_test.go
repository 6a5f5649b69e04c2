package access

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogs_EndIsReadInWholeLines(t *testing.T) {
	var b strings.Builder
	for i := range 10000 {
		_, _ = fmt.Fprintf(&b, "line %d\n", i)
	}
	got, err := lastBytes(strings.NewReader(b.String()), 1000)
	require.NoError(t, err)
	require.LessOrEqual(t, len(got), 1000)
	require.True(t, strings.HasPrefix(string(got), "line "))
	require.True(t, strings.HasSuffix(string(got), "line 9999\n"))
	short, err := lastBytes(strings.NewReader("a\nb"), 1000)
	require.NoError(t, err)
	require.Equal(t, "a\nb", string(short))
}
