package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/windlass-run/windlass/apps/controlplane/internal/backup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// backupFlags are the commands for backups.
type backupFlags struct {
	Create  createBackupFlags  `cmd:"" help:"Write a consistent copy of the database to a file. The control plane may run meanwhile."`
	Verify  verifyBackupFlags  `cmd:"" help:"Check that a backup is whole, and print its time, version and size. Needs no database."`
	Restore restoreBackupFlags `cmd:"" help:"Fill a database from a backup. No control plane may use the database meanwhile. This program's version must be that of the backup or later."`
}

type createBackupFlags struct {
	File string `arg:"" help:"File to create. -: standard output."`
	databaseFlags
	Recipient      []string `help:"Public key (age1...) to encrypt for. Can be repeated. \"age-keygen\" makes a pair." env:"WINDLASS_BACKUP_RECIPIENT"`
	RecipientsFile []string `help:"File with public keys to encrypt for, one per line. Can be repeated." type:"path" env:"WINDLASS_BACKUP_RECIPIENTS_FILE"`
	Replace        bool     `help:"Replace the file if it exists, when the new backup is whole."`
	Keep           int      `help:"Number of backups to keep. When the new backup is whole, the oldest files whose names end in .backup are deleted from its folder. The new file's name must also end in .backup. 0: no file is deleted." default:"0"`
	MetricsFile    string   `help:"File for the time, size and duration of this backup as metrics, which the node exporter's textfile collector reads." type:"path" env:"WINDLASS_BACKUP_METRICS_FILE"`
}

type openBackupFlags struct {
	File         string   `arg:"" help:"The backup. -: standard input."`
	IdentityFile []string `help:"File with private keys of age, for an encrypted backup. Can be repeated." type:"path" env:"WINDLASS_BACKUP_IDENTITY_FILE"`
}

type verifyBackupFlags struct{ openBackupFlags }

type restoreBackupFlags struct {
	openBackupFlags
	databaseFlags
	Replace bool `help:"Delete all data of the database first."`
}

func (f backupFlags) run(ctx context.Context, name string, out io.Writer, log *slog.Logger) error {
	switch verb, _, _ := strings.Cut(name, " "); verb {
	case "create":
		return f.Create.run(ctx, out, log)
	case "verify":
		return f.Verify.run(out)
	default:
		return f.Restore.run(ctx, out, log)
	}
}

func (f createBackupFlags) readRecipients() ([]age.Recipient, error) {
	var out []age.Recipient
	for _, text := range f.Recipient {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, fmt.Errorf("--recipient=%q: %w: use a public key of age, which age-keygen prints", text, err)
		}
		out = append(out, r)
	}
	for _, path := range f.RecipientsFile {
		in, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("--recipients-file: %w", err)
		}
		all, err := age.ParseRecipients(in)
		_ = in.Close()
		if err != nil {
			return nil, fmt.Errorf("--recipients-file=%s: %w", path, err)
		}
		out = append(out, all...)
	}
	return out, nil
}

// backupExtension is the file extension of backups that --keep counts and deletes.
const backupExtension = ".backup"

func (f createBackupFlags) checkKeep() error {
	switch {
	case f.Keep < 0:
		return fmt.Errorf("--keep=%d: use the number of backups to keep, or 0 to keep all", f.Keep)
	case f.Keep > 0 && filepath.Ext(f.File) != backupExtension:
		return fmt.Errorf("--keep=%d: name a file that ends in %s, because only such files are counted and deleted", f.Keep, backupExtension)
	}
	return nil
}

// deleteOld deletes the oldest backups of the file's folder, and returns their names. The new file counts, but is
// never deleted, even if the clock was set back.
func (f createBackupFlags) deleteOld() (deleted []string, err error) {
	if f.Keep == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Dir(f.File))
	if err != nil {
		return nil, err
	}
	var backups []fs.FileInfo
	for _, e := range entries {
		// toFile writes to a file whose name begins with a dot.
		if !e.Type().IsRegular() || filepath.Ext(e.Name()) != backupExtension || strings.HasPrefix(e.Name(), ".") || e.Name() == filepath.Base(f.File) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		backups = append(backups, info)
	}
	slices.SortFunc(backups, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, old := range backups[:max(0, len(backups)-f.Keep+1)] {
		if err := os.Remove(filepath.Join(filepath.Dir(f.File), old.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return deleted, err
		}
		deleted = append(deleted, old.Name())
	}
	return deleted, nil
}

func (f createBackupFlags) run(ctx context.Context, out io.Writer, log *slog.Logger) error {
	if err := f.checkKeep(); err != nil {
		return err
	}
	recipients, err := f.readRecipients()
	if err != nil {
		return err
	}
	began := time.Now()
	cfg := backupConfig(ctx, f.databaseFlags, log, "read")
	dump := func(to io.Writer) (backup.Totals, error) {
		return mysql.Dump(ctx, cfg, func(h backup.Header) (*backup.Writer, error) { return backup.NewWriter(to, h, recipients...) })
	}
	var totals backup.Totals
	var size int64
	if f.File == "-" {
		counted := &counter{to: out}
		totals, err = dump(counted)
		size = counted.n
	} else {
		totals, size, err = f.toFile(dump)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	log.InfoContext(ctx, "backup is complete", "rows", totals.Rows, "tables", totals.Tables, "bytes", size, "encrypted", len(recipients) > 0, "took", time.Since(began).Round(time.Millisecond))
	if f.MetricsFile != "" {
		if err := backup.WriteMetrics(f.MetricsFile, time.Now(), time.Since(began), size, totals); err != nil {
			return fmt.Errorf("--metrics-file: %w", err)
		}
	}
	deleted, err := f.deleteOld()
	if err != nil {
		return fmt.Errorf("--keep: the new backup is whole, but an old one cannot be deleted: %w", err)
	}
	if len(deleted) > 0 {
		log.InfoContext(ctx, "deleted old backups", "files", deleted)
	}
	return nil
}

// toFile writes a backup to a temporary file, and renames the file to its final name when the backup is whole.
func (f createBackupFlags) toFile(dump func(io.Writer) (backup.Totals, error)) (totals backup.Totals, size int64, err error) {
	if _, err := os.Lstat(f.File); err == nil && !f.Replace {
		return totals, 0, fmt.Errorf("%s: %w: name another file, or use --replace", f.File, fs.ErrExist)
	}
	if _, err := os.Stat(filepath.Dir(f.File)); err != nil {
		return totals, 0, fmt.Errorf("the folder of the file: %w: create it, or name a file elsewhere", err)
	}
	// CreateTemp gives the file mode 0600, because a backup holds all specs and variables.
	file, err := os.CreateTemp(filepath.Dir(f.File), "."+filepath.Base(f.File)+".*")
	if err != nil {
		return totals, 0, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	buffered := bufio.NewWriterSize(file, 1<<20)
	if totals, err = dump(buffered); err != nil {
		return totals, 0, err
	}
	if err = errors.Join(buffered.Flush(), file.Sync()); err != nil {
		return totals, 0, err
	}
	st, err := file.Stat()
	if err == nil {
		err = file.Close()
	}
	if err == nil {
		size, err = st.Size(), os.Rename(file.Name(), f.File)
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.File))
	}
	return totals, size, err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

func backupConfig(ctx context.Context, on databaseFlags, log *slog.Logger, doing string) mysql.BackupConfig {
	return mysql.BackupConfig{
		Config: on.storeConfig(certfile.NewFiles(log)), Program: Version,
		Progress: func(table string) { log.DebugContext(ctx, "next table", "doing", doing, "table", table) },
	}
}

// withBackup opens the backup, calls do with it, and closes it.
func (f openBackupFlags) withBackup(do func(*backup.Reader) error) error {
	var identities []age.Identity
	for _, path := range f.IdentityFile {
		in, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("--identity-file: %w", err)
		}
		all, err := age.ParseIdentities(in)
		_ = in.Close()
		if err != nil {
			return fmt.Errorf("--identity-file=%s: %w", path, err)
		}
		identities = append(identities, all...)
	}
	var in io.Reader = os.Stdin
	if f.File != "-" {
		file, err := os.Open(f.File)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	r, err := backup.NewReader(in, identities...)
	if err != nil {
		return fmt.Errorf("%s: %w", f.File, err)
	}
	if err := do(r); err != nil {
		return fmt.Errorf("%s: %w", f.File, err)
	}
	return nil
}

func (f verifyBackupFlags) run(out io.Writer) error {
	return f.withBackup(func(r *backup.Reader) error {
		totals, err := backup.Verify(r)
		if err != nil {
			return err
		}
		return sayBackup(out, "whole", r.Header, totals)
	})
}

func sayBackup(out io.Writer, what string, h backup.Header, totals backup.Totals) error {
	_, err := fmt.Fprintf(out, "%s: taken %s by version %s, schema %d, %d rows of %d tables, sha256 %s\n",
		what, h.Taken.Format(time.RFC3339), h.Program, h.Schema, totals.Rows, totals.Tables, totals.SHA256)
	return err
}

func (f restoreBackupFlags) run(ctx context.Context, out io.Writer, log *slog.Logger) error {
	// The whole file is verified before any data is deleted.
	if f.File != "-" {
		if err := f.withBackup(func(r *backup.Reader) error { _, err := backup.Verify(r); return err }); err != nil {
			return fmt.Errorf("restore: nothing was changed: %w", err)
		}
	}
	cfg := backupConfig(ctx, f.databaseFlags, log, "insert")
	cfg.Replace = f.Replace
	err := f.withBackup(func(r *backup.Reader) error {
		totals, err := mysql.Load(ctx, cfg, r)
		if err != nil {
			return err
		}
		return sayBackup(out, "restored", r.Header, totals)
	})
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}
