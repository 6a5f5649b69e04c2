package memory

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/seal"
)

func (t *tx) ListSealedValues(keyID uint32, after model.SealedValue, limit int) ([]model.SealedValue, error) {
	var values []model.SealedValue
	for _, v := range secretVersionTable.overlayIn(t).list(func(v secretVersion) bool {
		id, ok := seal.KeyOf(v.ciphertext)
		return !ok || id != keyID
	}) {
		value := model.SealedValue{EnvironmentID: v.key.name.a, Name: v.key.name.b, Version: v.key.version, Ciphertext: v.ciphertext}
		if compareSealed(value, after) > 0 {
			values = append(values, value)
		}
	}
	slices.SortFunc(values, compareSealed)
	return values[:min(limit, len(values))], nil
}

func compareSealed(a, b model.SealedValue) int {
	return cmp.Or(cmp.Compare(a.EnvironmentID, b.EnvironmentID), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
}

func (t *tx) ResealValues(values []model.ResealedValue) (n int64, err error) {
	for _, v := range values {
		stored, ok, err := secretVersionTable.overlayIn(t).lock(versionKey{pair{v.EnvironmentID, v.Name}, v.Version})
		if err != nil {
			return n, err
		}
		if !ok || !bytes.Equal(stored.ciphertext, v.Ciphertext) {
			continue
		}
		stored.ciphertext = v.Resealed
		if err := secretVersionTable.overlayIn(t).put(stored); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (t *tx) CountSealedValues() (map[uint32]int64, error) {
	counts := map[uint32]int64{}
	for _, v := range secretVersionTable.overlayIn(t).list(func(secretVersion) bool { return true }) {
		id, _ := seal.KeyOf(v.ciphertext)
		counts[id]++
	}
	return counts, nil
}
