package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testPresets(t *testing.T, setup setup) {
	preset := func(w *fixture, name string, version int32) model.Preset {
		return model.Preset{
			WorkspaceID: w.ws, Name: name, Version: version, SetBy: "ada", SetAt: now + int64(version),
			Definition: &windlassv1.PresetDefinition{Title: name, Image: "r/e:1", Args: []*windlassv1.PresetArg{{Flag: "--a", Values: []string{"${context}"}}}},
		}
	}
	insert := func(w *fixture, rows ...model.Preset) {
		for _, p := range rows {
			w.update(func(tx store.Tx) error { return tx.InsertPreset(p) })
		}
	}
	get := func(w *fixture, name string, version int32) model.Preset {
		return read(w, func(tx store.Tx) (model.Preset, error) { return tx.GetPreset(w.ws, name, version) })
	}
	floor := func(w *fixture) int32 {
		return read(w, func(tx store.Tx) (int32, error) { return tx.PresetFloor(w.ws) })
	}

	t.Run("a version stays what it was, and the newest one is found without its number", func(t *testing.T) {
		w := setup(t)
		requireMissing(w, func(tx store.Tx) (model.Preset, error) { return tx.GetPreset(w.ws, "a", 0) })
		one, two, other := preset(w, "a", 1), preset(w, "a", 2), preset(w, "b", 1)
		insert(w, one, two, other)
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertPreset(one) })
		requireEqualPresets(t, []model.Preset{one, two, two}, []model.Preset{get(w, "a", 1), get(w, "a", 2), get(w, "a", 0)})
		requireMissing(w, func(tx store.Tx) (model.Preset, error) { return tx.GetPreset(w.ws, "a", 3) })
		requireMissing(w, func(tx store.Tx) (model.Preset, error) { return tx.GetPreset("ws_other", "a", 0) })
		requireEqualPresets(t, []model.Preset{two, other}, read(w, func(tx store.Tx) ([]model.Preset, error) { return tx.ListPresets(w.ws) }))
		one.Definition, two.Definition = nil, nil
		versions := func() []model.Preset {
			return read(w, func(tx store.Tx) ([]model.Preset, error) { return tx.ListPresetVersions(w.ws, "a") })
		}
		require.Equal(t, []model.Preset{two, one}, versions())

		w.update(func(tx store.Tx) error { return tx.ForgetPresetVersions(w.ws, "a", 1) })
		require.Equal(t, []model.Preset{two}, versions())
		require.Equal(t, int32(1), get(w, "b", 0).Version)
	})

	t.Run("a deleted preset leaves its highest version as the floor of new ones", func(t *testing.T) {
		w := setup(t)
		require.Zero(t, floor(w))
		insert(w, preset(w, "a", 1), preset(w, "a", 7), preset(w, "b", 3))
		w.update(func(tx store.Tx) error { return tx.DeletePreset(w.ws, "a") })
		require.Equal(t, int32(7), floor(w))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeletePreset(w.ws, "a") })
		w.update(func(tx store.Tx) error { return tx.DeletePreset(w.ws, "b") })
		require.Equal(t, int32(7), floor(w))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Preset, error) { return tx.ListPresets(w.ws) }))
	})

	t.Run("presets end with their workspace", func(t *testing.T) {
		w := setup(t)
		insert(w, preset(w, "a", 1), preset(w, "b", 1))
		w.update(func(tx store.Tx) error { return tx.DeletePreset(w.ws, "b") })
		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		requireMissing(w, func(tx store.Tx) (model.Preset, error) { return tx.GetPreset(w.ws, "a", 0) })
		require.Zero(t, floor(w))
	})
}

func requireEqualPresets(t *testing.T, want, got []model.Preset) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, proto.Equal(want[i].Definition, got[i].Definition), "%v", got[i].Definition)
		want[i].Definition, got[i].Definition = nil, nil
		require.Equal(t, want[i], got[i])
	}
}
