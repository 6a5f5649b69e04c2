package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/share"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestCompilers_AreSharedByWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &server{cfg: Config{Presets: preset.Builtin()}, compilers: share.NewSlots(maxCompilers)}
		def := &windlassv1.PresetDefinition{ModelSchemes: []string{"hf"}, Command: []string{"ember"}}
		// These requests of one workspace take all its places, and do not end.
		for range maxCompilers / 2 {
			require.NoError(t, a.compilers.Acquire(t.Context(), "ws_1"))
		}
		attempt := func(workspace string) (errs []error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _, err := a.checkDefinition(ctx, workspace, "ember", 1, def)
			_, compiled := a.compiledPresets(ctx, workspace, []model.Preset{{Name: "ember", Version: 1, Definition: def}})
			return append(errs, err, compiled)
		}
		for _, err := range attempt("ws_1") {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		for range 10 { // each request gives its place back
			for _, err := range attempt("ws_2") {
				require.NoError(t, err)
			}
		}
		a.compilers.Release("ws_1")
		for _, err := range attempt("ws_1") {
			require.NoError(t, err)
		}
	})
}
