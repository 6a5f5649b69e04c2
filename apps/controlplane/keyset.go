package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/windlass-run/windlass/apps/controlplane/internal/keyset"
	"github.com/windlass-run/windlass/pkg/seal"
)

// keysetFlags are the commands for the keyset.
type keysetFlags struct {
	Create keyFileFlags   `cmd:"" help:"Create the file with a new keyset. Fails if the file exists."`
	List   keyFileFlags   `cmd:"" help:"List the keys of the file. The primary key seals new values, and all keys can open values."`
	Show   keyUseFlags    `cmd:"" help:"List each key with the number of stored values that it sealed, and the time since a control plane last sealed with it."`
	Add    keyFileFlags   `cmd:"" help:"Add a key that only opens values. Give all replicas the file, and restart them before \"keyset rotate\"."`
	Rotate keyFileFlags   `cmd:"" help:"Make the newest key the primary one. Replicas seal with this key after their next start."`
	Reseal resealFlags    `cmd:"" help:"Seal stored values again with the primary key, if another key sealed them. The control plane may run meanwhile. The command can be interrupted and repeated."`
	Remove removeKeyFlags `cmd:"" help:"Remove a key from the file. Refused while stored values, control planes or credentials of agents need the key."`
}

type keyFileFlags struct {
	KeyFile string `help:"File with the keyset." required:"" type:"path" env:"WINDLASS_KEY_FILE"`
}

type keyUseFlags struct {
	keyFileFlags
	databaseFlags
}

type resealFlags struct {
	keyUseFlags
	DryRun bool `help:"Count the values that would be sealed again, check that they can be opened, and write nothing."`
	Batch  int  `help:"Values per transaction." default:"100"`
}

// Validate implements kong's check.
func (f resealFlags) Validate() error {
	if f.Batch < 1 || f.Batch > maxBatch {
		return fmt.Errorf("--batch=%d: use 1 to %d", f.Batch, maxBatch)
	}
	return nil
}

// maxBatch keeps transactions short, because a value can have 64 KiB.
const maxBatch = 1000

type removeKeyFlags struct {
	ID uint32 `arg:"" help:"ID of the key, from \"keyset show\"."`
	keyUseFlags
	EndCredentials bool `help:"Remove the key although agents may have credentials that it sealed. These agents have to join again with new tokens."`
}

func (f keysetFlags) run(ctx context.Context, name string, out io.Writer, log *slog.Logger) error {
	switch name {
	case "show":
		return f.Show.withKeyUse(ctx, log, func(use keyUse) error { return use.showKeys(ctx, out) })
	case "reseal":
		return f.Reseal.withKeyUse(ctx, log, func(use keyUse) error { return use.resealValues(ctx, f.Reseal, out) })
	case "remove <id>":
		return f.Remove.withKeyUse(ctx, log, func(use keyUse) error { return use.remove(ctx, f.Remove, out) })
	}
	return f.changeKeyset(name, out)
}

// changeKeyset runs the command name, one of the commands that need only the file.
func (f keysetFlags) changeKeyset(name string, out io.Writer) error {
	var text string
	switch name {
	case "create":
		err := seal.Create(f.Create.KeyFile)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("--key-file=%s exists already: it is not replaced, because values that its keys sealed could then not be opened", f.Create.KeyFile)
		}
		if err != nil {
			return err
		}
		text = "made " + f.Create.KeyFile + ": give it to all replicas, and keep a copy, but not with the database's backups\n"
	case "list":
		keys, err := seal.Keys(f.List.KeyFile)
		if err != nil {
			return err
		}
		for _, k := range keys {
			text += fmt.Sprintf("%d\t%s\t%s\n", k.ID, k.Status, roleOf(k))
		}
	case "add":
		id, err := seal.Add(f.Add.KeyFile)
		if err != nil {
			return err
		}
		text = fmt.Sprintf("added key %d: restart all replicas with this file, then run keyset rotate\n", id)
	case "rotate":
		id, err := seal.Rotate(f.Rotate.KeyFile)
		if err != nil {
			return err
		}
		text = fmt.Sprintf("key %d is primary: restart all replicas with this file\n", id)
	}
	_, err := io.WriteString(out, text)
	return err
}

// loadKeyset reads the keyset. It creates the keyset only if --create-keyset is set.
func (f serveFlags) loadKeyset() (*seal.Box, error) {
	if f.CreateKeyset {
		return seal.LoadOrCreate(f.KeyFile)
	}
	box, err := seal.Load(f.KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--key-file=%s does not exist: mount the keyset of the other replicas there, or create the first keyset with \"controlplane keyset create --key-file %s\"", f.KeyFile, f.KeyFile)
	}
	return box, err
}

// checkKeyset returns an error if other replicas or the database use keys that the keyset does not have.
func (f serveFlags) checkKeyset(ctx context.Context, s keyset.Store, box *seal.Box, log *slog.Logger) error {
	if f.ReplaceKeyset {
		return nil
	}
	var usage keyset.Usage
	err := retryDatabase(ctx, log, func(ctx context.Context) (err error) {
		usage, err = keyset.ReadUsage(ctx, s)
		return err
	})
	if err != nil {
		return fmt.Errorf("read which keys the database was used with: %w", err)
	}
	if err := usage.CheckStart(box.Keys(), box.Primary()); err != nil {
		return fmt.Errorf("--key-file=%s is a wrong keyset: %w. If the right keyset is lost, stop all replicas, and start them with --replace-keyset", f.KeyFile, err)
	}
	for _, key := range usage.MissingKeys(box.Keys()) {
		log.WarnContext(ctx, "stored values cannot be opened, because the keyset does not have their key: use a keyset with this key, or set these secrets again", "key", key, "values", usage.Values[key])
	}
	return nil
}
