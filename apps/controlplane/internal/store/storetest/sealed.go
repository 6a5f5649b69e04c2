package storetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/seal"
)

// Ids of keys; the second has a byte that is a letter of LIKE's patterns, and one that ends text.
const (
	oldKey = uint32(7)
	newKey = uint32(0x25005f01)
)

func testSealed(t *testing.T, setup setup) {
	// sealed is a secret whose value begins as the old key seals, resealed as the new one does.
	begun := func(w *fixture, name string, version int32, key uint32) model.Secret {
		s := w.newSecret(name, version)
		s.Ciphertext = append(seal.Prefix(key), s.Ciphertext...)
		return s
	}
	sealed := func(w *fixture, name string, version int32) model.Secret { return begun(w, name, version, oldKey) }
	fill := func(w *fixture) {
		w.update(func(tx store.Tx) error {
			for _, s := range []model.Secret{
				sealed(w, "b", 1), begun(w, "b", 2, newKey), sealed(w, "b", 3), sealed(w, "a", 1), w.newSecret("plain", 1),
			} {
				if err := tx.InsertSecretVersion(s); err != nil {
					return err
				}
			}
			return nil
		})
	}
	list := func(w *fixture, key uint32, after model.SealedValue, limit int) []model.SealedValue {
		return read(w, func(tx store.Tx) ([]model.SealedValue, error) { return tx.ListSealedValues(key, after, limit) })
	}
	value := func(s model.Secret) model.SealedValue {
		return model.SealedValue{EnvironmentID: s.EnvironmentID, Name: s.Name, Version: s.Version, Ciphertext: s.Ciphertext}
	}

	t.Run("values are counted by key, and listed without the values of one key", func(t *testing.T) {
		w := setup(t)
		fill(w)
		require.Equal(t, map[uint32]int64{oldKey: 3, newKey: 1, 0: 1}, read(w, func(tx store.Tx) (map[uint32]int64, error) { return tx.CountSealedValues() }))
		want := []model.SealedValue{
			value(sealed(w, "a", 1)), value(sealed(w, "b", 1)), value(sealed(w, "b", 3)), value(w.newSecret("plain", 1)),
		}
		var got []model.SealedValue
		var after model.SealedValue
		for {
			page := list(w, newKey, after, 1)
			if len(page) == 0 {
				break
			}
			got, after = append(got, page...), page[0]
		}
		require.Equal(t, want, got)
		require.Equal(t, want[1:3], list(w, newKey, want[0], 2))
		require.Len(t, list(w, oldKey, model.SealedValue{}, 100), 2)
	})

	t.Run("values are replaced together, each only while it is the one that was read", func(t *testing.T) {
		w := setup(t)
		fill(w)
		fresh := append(seal.Prefix(newKey), 0, 1, 2)
		replace := func(values ...model.SealedValue) int64 {
			var resealed []model.ResealedValue
			for _, v := range values {
				resealed = append(resealed, model.ResealedValue{SealedValue: v, Resealed: append(slices.Clip(fresh), v.Name[0], byte(v.Version))})
			}
			return write(w, func(tx store.Tx) (int64, error) { return tx.ResealValues(resealed) })
		}
		b1, b3, a1, gone := value(sealed(w, "b", 1)), value(sealed(w, "b", 3)), value(sealed(w, "a", 1)), value(sealed(w, "b", 9))
		changed := a1
		changed.Ciphertext = []byte("of another run")
		require.Zero(t, replace())
		require.Equal(t, int64(2), replace(b1, gone, changed, b3))
		require.Zero(t, replace(b1, b3))
		for _, v := range []model.SealedValue{b1, b3} {
			got := read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, v.Name, v.Version) })
			require.Equal(t, append(slices.Clip(fresh), v.Name[0], byte(v.Version)), got.Ciphertext)
			require.Equal(t, sealed(w, v.Name, v.Version).UpdatedAt, got.UpdatedAt, "it is the same version")
		}
		got := read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "a", 1) })
		require.Equal(t, a1.Ciphertext, got.Ciphertext)
		require.Equal(t, map[uint32]int64{oldKey: 1, newKey: 3, 0: 1}, read(w, func(tx store.Tx) (map[uint32]int64, error) { return tx.CountSealedValues() }))
	})

	t.Run("processes note their keys and are forgotten by age", func(t *testing.T) {
		w := setup(t)
		keys := func() []model.PeerKey {
			rows := read(w, func(tx store.Tx) ([]model.PeerKey, error) { return tx.ListPeerKeys() })
			for i := range rows {
				require.Less(t, rows[i].UnseenFor, int64(60_000))
				rows[i].UnseenFor = 0
			}
			return rows
		}
		put := func(peer string, rows ...model.PeerKey) {
			w.update(func(tx store.Tx) error { return tx.PutPeerKeys(peer, rows) })
		}
		put("cp_2", model.PeerKey{KeyID: oldKey, Seals: true}, model.PeerKey{KeyID: 0xfffffffe})
		put("cp_1", model.PeerKey{KeyID: oldKey})
		require.Equal(t, []model.PeerKey{
			{PeerID: "cp_1", KeyID: oldKey}, {PeerID: "cp_2", KeyID: oldKey, Seals: true}, {PeerID: "cp_2", KeyID: 0xfffffffe},
		}, keys())
		put("cp_1", model.PeerKey{KeyID: oldKey, Seals: true})
		require.True(t, keys()[0].Seals)
		forget := func(unseen int64) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeletePeerKeys(unseen) })
		}
		require.Equal(t, 0, forget(60_000))
		require.Equal(t, 3, forget(-60_000))
		require.Empty(t, keys())
	})
}
