package backup_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/backup"
)

var header = backup.Header{Schema: 63, Program: "1.4.0", Taken: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)}

func writeBackup(t require.TestingT, rows [][][]byte, recipients ...age.Recipient) []byte {
	var out bytes.Buffer
	w, err := backup.NewWriter(&out, header, recipients...)
	require.NoError(t, err)
	require.NoError(t, w.Begin(backup.Table{Name: "apps", Columns: []string{"id", "data"}, Binary: []bool{false, true}}))
	for _, r := range rows {
		require.NoError(t, w.Row(r))
	}
	totals, err := w.Close()
	require.NoError(t, err)
	require.Equal(t, int64(len(rows)), totals.Rows)
	return out.Bytes()
}

var rows = [][][]byte{{[]byte("app_1"), {0, 1, 255}}, {nil, {}}, {[]byte("\"\n\u2028"), nil}}

func TestFormat(t *testing.T) {
	t.Run("every value can be read back", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			var in [][][]byte
			for range rapid.IntRange(0, 20).Draw(t, "rows") {
				row := [][]byte{[]byte(rapid.String().Draw(t, "text")), rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")}
				if rapid.Bool().Draw(t, "null") {
					row[rapid.IntRange(0, 1).Draw(t, "which")] = nil
				}
				in = append(in, row)
			}
			r, err := backup.NewReader(bytes.NewReader(writeBackup(t, in)))
			require.NoError(t, err)
			for _, want := range in {
				got, err := r.Next()
				require.NoError(t, err)
				if want[0] == nil {
					require.Nil(t, got.Values[0])
				} else {
					require.Equal(t, string(want[0]), got.Values[0])
				}
				if want[1] == nil {
					require.Nil(t, got.Values[1])
				} else {
					require.Equal(t, want[1], got.Values[1])
				}
			}
			_, err = r.Next()
			require.ErrorIs(t, err, io.EOF)
		})
	})
	t.Run("a backup that is truncated or changed at any byte is refused", func(t *testing.T) {
		whole := writeBackup(t, rows)
		check := func(b []byte) error {
			r, err := backup.NewReader(bytes.NewReader(b))
			if err != nil {
				return err
			}
			_, err = backup.Verify(r)
			return err
		}
		require.NoError(t, check(whole))
		for n := range whole {
			require.Error(t, check(whole[:n]), "cut at %d", n)
		}
		for n := range whole {
			changed := bytes.Clone(whole)
			changed[n] ^= 0x10
			if err := check(changed); err == nil {
				// gzip's header has fields that readers ignore: time, flags and system.
				require.Less(t, n, 10, "changed at %d", n)
			}
		}
		require.ErrorIs(t, check(whole[:len(whole)-9]), backup.ErrDamaged)
	})
	t.Run("only the key of a recipient opens an encrypted backup", func(t *testing.T) {
		mine, err := age.GenerateX25519Identity()
		require.NoError(t, err)
		other, err := age.GenerateX25519Identity()
		require.NoError(t, err)
		sealed := writeBackup(t, rows, mine.Recipient())
		require.NotContains(t, string(sealed), "app_1")

		_, err = backup.NewReader(bytes.NewReader(sealed))
		require.ErrorContains(t, err, "--identity-file")
		_, err = backup.NewReader(bytes.NewReader(sealed), other)
		var none *age.NoIdentityMatchError
		require.ErrorAs(t, err, &none)
		r, err := backup.NewReader(bytes.NewReader(sealed), other, mine)
		require.NoError(t, err)
		totals, err := backup.Verify(r)
		require.NoError(t, err)
		require.Equal(t, int64(3), totals.Rows)
		require.Equal(t, int64(63), r.Header.Schema)
		_, err = backup.NewReader(bytes.NewReader(sealed[:len(sealed)-1]), mine)
		if err == nil {
			r, _ = backup.NewReader(bytes.NewReader(sealed[:len(sealed)-1]), mine)
			_, err = backup.Verify(r)
		}
		require.Error(t, err, "cut off")
	})
	t.Run("input that is not a backup is refused", func(t *testing.T) {
		_, err := backup.NewReader(bytes.NewReader(nil))
		require.ErrorIs(t, err, backup.ErrDamaged)
		require.ErrorContains(t, err, "it is empty")
		for _, text := range []string{"", "CREATE TABLE apps", "age-encryption.org/v1\n"} {
			_, err := backup.NewReader(bytes.NewReader([]byte(text)))
			require.Error(t, err, text)
		}
	})
}
