package choices_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/choices"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestNames_AreAsAppFilesWriteThem(t *testing.T) {
	require.Equal(t, "blueGreen", choices.Of(windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN))
	require.Equal(t, "rolling", choices.Of(windlassv1.RolloutPolicy_STRATEGY_ROLLING))
	require.Equal(t, "scaleToZero", choices.Of(windlassv1.Feature_FEATURE_SCALE_TO_ZERO))
	require.Equal(t, "unspecified", choices.Of(windlassv1.Feature_FEATURE_UNSPECIFIED))
	require.Equal(t, "4000", choices.Of(windlassv1.Feature(4000)))
}
