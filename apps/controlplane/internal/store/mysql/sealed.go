package mysql

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	"github.com/windlass-run/windlass/pkg/seal"
)

// ListSealedValues reads the primary: what is missing in the list keeps its old key.
func (t *tx) ListSealedValues(keyID uint32, after model.SealedValue, n int) ([]model.SealedValue, error) {
	return list(t, "list sealed values", "", func(r gen.ListSealedValuesRow) (model.SealedValue, error) {
		return model.SealedValue{EnvironmentID: r.EnvironmentID, Name: r.Name, Version: r.Version, Ciphertext: r.Ciphertext}, nil
	})(t.primary.ListSealedValues(t.ctx, gen.ListSealedValuesParams{
		Prefix: seal.Prefix(keyID), EnvironmentID: after.EnvironmentID, Name: after.Name, Version: after.Version, Limit: limit(n),
	}))
}

func (t *tx) ResealValue(v model.SealedValue, ciphertext []byte) (bool, error) {
	n, err := t.q.ResealValue(t.ctx, gen.ResealValueParams{
		Resealed: ciphertext, EnvironmentID: v.EnvironmentID, Name: v.Name, Version: v.Version, Ciphertext: v.Ciphertext,
	})
	return n > 0, t.err(err, "reseal secret", v.Name)
}

// CountSealedValues reads the primary: a key is removed by what it returns.
func (t *tx) CountSealedValues() (map[uint32]int64, error) {
	rows, err := t.primary.CountSealedValues(t.ctx)
	if err != nil {
		return nil, t.err(err, "count sealed values", "")
	}
	counts := map[uint32]int64{}
	for _, r := range rows {
		id, _ := seal.KeyOf([]byte(r.Prefix))
		counts[id] += r.Sealed
	}
	return counts, nil
}
