package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestRegion_PlaceIsDegreesInTwoLabels(t *testing.T) {
	w := setup(t)
	create := func(name string, labels map[string]string) error {
		_, err := w.regionService(w.owner).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: name, Labels: labels})
		return err
	}
	for name, c := range map[string]struct {
		labels map[string]string
		says   string
	}{
		"not a number":    {map[string]string{"latitude": "north", "longitude": "4.9"}, `label latitude="north" is not a number of degrees from -90 to 90`},
		"NaN":             {map[string]string{"latitude": "NaN", "longitude": "4.9"}, `label latitude="NaN" is not a number`},
		"not on earth":    {map[string]string{"latitude": "52.4", "longitude": "-180.1"}, `label longitude="-180.1" is not a number of degrees from -180 to 180`},
		"empty":           {map[string]string{"latitude": "", "longitude": "4.9"}, `label latitude=""`},
		"only one of two": {map[string]string{"longitude": "4.9"}, "only one of the labels latitude and longitude is set"},
	} {
		t.Run(name, func(t *testing.T) {
			err := create("basement", c.labels)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "labels")
			require.ErrorContains(t, err, c.says)
			require.NotEmpty(t, detailOf(err).GetFix())
		})
	}
	require.NoError(t, create("basement", map[string]string{"latitude": "-52.4", "longitude": "180", "tier": "small"}))
}
