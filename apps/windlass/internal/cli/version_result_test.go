package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestVersionResult_SaysWhatChanged(t *testing.T) {
	t.Parallel()
	same := versionResult{version: 3, effect: windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY}
	require.Equal(t, "nothing changed, v3 stays live", same.textOf())
	same.scalingChanged = true
	require.Equal(t, "its scaling changed, v3 stays live", same.textOf())
}
