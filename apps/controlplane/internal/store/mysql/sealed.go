package mysql

import (
	"iter"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	"github.com/windlass-run/windlass/pkg/seal"
)

// ListSealedValues reads the primary, because a value that is missing in the list keeps its old key.
func (t *tx) ListSealedValues(keyID uint32, after model.SealedValue, n int) ([]model.SealedValue, error) {
	return list(t, "list sealed values", "", func(r gen.ListSealedValuesRow) (model.SealedValue, error) {
		return model.SealedValue{EnvironmentID: r.EnvironmentID, Name: r.Name, Version: r.Version, Ciphertext: r.Ciphertext}, nil
	})(t.primary.ListSealedValues(t.ctx, gen.ListSealedValuesParams{
		Prefix: seal.Prefix(keyID), EnvironmentID: after.EnvironmentID, Name: after.Name, Version: after.Version, Limit: limitOrAll(n),
	}))
}

const resealedRow = "SELECT CONVERT(? USING ascii) COLLATE ascii_bin AS environment_id, CONVERT(? USING ascii) COLLATE ascii_bin AS name, ? AS version, ? AS was, ? AS resealed"

// ResealValues is an UPDATE joined with a list of values, because an upsert would restore a version that was
// deleted meanwhile. MariaDB may write a list of ciphertexts to a temporary file, which is cheaper than a
// statement for each value.
func (t *tx) ResealValues(values []model.ResealedValue) (int64, error) {
	var replaced int64
	for part := range resealedParts(values) {
		args := make([]any, 0, 5*len(part))
		for _, v := range part {
			args = append(args, v.EnvironmentID, v.Name, v.Version, v.Ciphertext, v.Resealed)
		}
		q := `-- name: ResealValues :execrows
UPDATE secret_versions s JOIN (` + strings.Repeat(resealedRow+" UNION ALL ", len(part)-1) + resealedRow + `) v
    ON v.environment_id = s.environment_id AND v.name = s.name AND v.version = s.version AND v.was = s.ciphertext
SET s.ciphertext = v.resealed`
		result, err := t.db.ExecContext(t.ctx, q, args...)
		if err != nil {
			return replaced, t.queryError(err, "reseal secret", part[0].Name)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return replaced, t.queryError(err, "reseal secret", part[0].Name)
		}
		replaced += n
	}
	return replaced, nil
}

// resealedParts splits the values into the parts that one statement takes.
func resealedParts(values []model.ResealedValue) iter.Seq[[]model.ResealedValue] {
	return func(yield func([]model.ResealedValue) bool) {
		for len(values) > 0 {
			n, size := 0, 0
			for n < min(len(values), bulkRows) && (n == 0 || size < bulkBytes) {
				size += len(values[n].Ciphertext) + len(values[n].Resealed)
				n++
			}
			if !yield(values[:n]) {
				return
			}
			values = values[n:]
		}
	}
}

// CountSealedValues reads the primary, because a key is removed when it sealed no stored value.
func (t *tx) CountSealedValues() (map[uint32]int64, error) {
	rows, err := t.primary.CountSealedValues(t.ctx)
	if err != nil {
		return nil, t.queryError(err, "count sealed values", "")
	}
	counts := map[uint32]int64{}
	for _, r := range rows {
		id, _ := seal.KeyOf([]byte(r.Prefix))
		counts[id] += r.Sealed
	}
	return counts, nil
}
