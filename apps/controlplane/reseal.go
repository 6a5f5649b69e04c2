package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/fleet"
	"github.com/windlass-run/windlass/apps/controlplane/internal/keyset"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/seal"
)

// keyUse is a keyset, and the database with the values that its keys sealed.
type keyUse struct {
	path  string
	box   *seal.Box
	store keyset.Store
	log   *slog.Logger
}

// withKeyUse opens the keyset and the database, and calls do with them.
func (f keyUseFlags) withKeyUse(ctx context.Context, log *slog.Logger, do func(keyUse) error) error {
	box, err := seal.Load(f.KeyFile)
	if err != nil {
		return err
	}
	cfg := f.storeConfig(certfile.NewFiles(log))
	cfg.MaxOpen = 2
	db, err := mysql.Open(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	err = do(keyUse{path: f.KeyFile, box: box, store: store.Bind[keyset.Tx](db), log: log})
	return errors.Join(err, db.Close())
}

// showKeys prints the keys of the file, and keys that sealed stored values but are missing in the file.
func (u keyUse) showKeys(ctx context.Context, out io.Writer) error {
	keys, err := seal.Keys(u.path)
	if err != nil {
		return err
	}
	usage, err := keyset.ReadUsage(ctx, u.store)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "KEY\tSTATUS\tROLE\tVALUES\tLAST SEALED") // flushed below
	row := func(id uint32, status, role string) {
		sealed := "-"
		if ago, ok := usage.Sealed[id]; ok {
			sealed = ago.Round(time.Second).String() + " ago"
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%s\n", id, status, role, usage.Values[id], sealed)
	}
	for _, k := range keys {
		row(k.ID, k.Status, roleOf(k))
	}
	for _, id := range usage.MissingKeys(u.box.Keys()) {
		row(id, "missing", "its values cannot be opened with this file")
	}
	return w.Flush()
}

func roleOf(k seal.Key) string {
	if k.Primary {
		return "seals and opens"
	}
	return "opens"
}

// progressEvery is the time between two lines of progress.
const progressEvery = 2 * time.Second

func (u keyUse) resealValues(ctx context.Context, f resealFlags, out io.Writer) error {
	said := time.Now()
	result, err := keyset.Reseal(ctx, keyset.Config{
		Store: u.store, Box: u.box, Batch: f.Batch, DryRun: f.DryRun,
		Progress: func(r keyset.Result) {
			if time.Since(said) >= progressEvery {
				said = time.Now()
				u.log.InfoContext(ctx, "resealing", "values", r.Resealed, "of", r.Total)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("reseal: %w (%d values are resealed: run the command again for the rest)", err, result.Resealed)
	}
	did := "resealed"
	if f.DryRun {
		did = "would reseal"
	}
	text := fmt.Sprintf("%s %d values with key %d", did, result.Resealed, u.box.Primary())
	if result.Changed > 0 {
		text += fmt.Sprintf(", %d other values were deleted or resealed meanwhile", result.Changed)
	}
	if _, err := io.WriteString(out, text+"\n"); err != nil {
		return err
	}
	if len(result.Damaged) > 0 {
		return damagedError(result)
	}
	if f.DryRun {
		return nil
	}
	return u.sayUnused(ctx, out)
}

// namedValues is the maximum number of values that an error names.
const namedValues = 5

func damagedError(result keyset.Result) error {
	var names []string
	for _, v := range result.Damaged[:min(namedValues, len(result.Damaged))] {
		key, _ := seal.KeyOf(v.Ciphertext)
		names = append(names, fmt.Sprintf("%s version %d of environment %s (key %d)", v.Name, v.Version, v.EnvironmentID, key))
	}
	return fmt.Errorf("%d values cannot be opened with this keyset: %s: use a keyset that has their keys, or set these secrets again",
		len(result.Damaged), strings.Join(names, ", "))
}

// sayUnused prints which keys can be removed, and why other keys cannot be removed.
func (u keyUse) sayUnused(ctx context.Context, out io.Writer) error {
	keys, err := seal.Keys(u.path)
	if err != nil {
		return err
	}
	usage, err := keyset.ReadUsage(ctx, u.store)
	if err != nil {
		return err
	}
	var text strings.Builder
	var left int64
	for _, k := range keys {
		if k.Primary {
			continue
		}
		left += usage.Values[k.ID]
		if err := usage.CheckRemovable(k.ID, fleet.CredentialTTL); err != nil {
			text.WriteString(err.Error() + "\n")
			continue
		}
		_, _ = fmt.Fprintf(&text, "key %d is not used any more: remove it with keyset remove %d\n", k.ID, k.ID) // a Builder does not fail
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d values were sealed with older keys meanwhile: restart all replicas with this file, then run keyset reseal again", left)
	}
	return nil
}

func (u keyUse) remove(ctx context.Context, f removeKeyFlags, out io.Writer) error {
	usage, err := keyset.ReadUsage(ctx, u.store)
	if err != nil {
		return err
	}
	valid := fleet.CredentialTTL
	if f.EndCredentials {
		valid = 0
	}
	if err := usage.CheckRemovable(f.ID, valid); err != nil {
		return err
	}
	if err := seal.Remove(u.path, f.ID); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "removed key %d: restart all replicas with this file. Earlier backups of the database need the file as it was before\n", f.ID)
	return err
}
