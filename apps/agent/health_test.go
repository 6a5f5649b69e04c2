package agent

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthCommand_NamesTheFlagThatItCannotServe(t *testing.T) {
	t.Parallel()
	good := []string{"--address=127.0.0.1", "--port=1", "--target-port=2"}
	for said, args := range map[string][]string{
		"--address: use the pod's address": {"--address=localhost"},
		"--method":                         {"--method=POST"},
		`--code="2xx"`:                     {"--code=204", "--code=2xx"},
		"unexpected argument":              {"again"},
	} {
		require.ErrorContains(t, answerHealth(t.Context(), append(slices.Clip(good), args...)), said)
	}
	require.ErrorContains(t, answerHealth(t.Context(), nil), "--address")
}
