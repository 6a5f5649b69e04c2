package controlplane

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/windlass-run/windlass/pkg/seal"
)

// keysetFlags are the commands about the keyset's file.
type keysetFlags struct {
	Create keyFileFlags `cmd:"" help:"Make the file with a new keyset. It fails if the file exists."`
	List   keyFileFlags `cmd:"" help:"List the keys: what is primary seals, all open."`
	Add    keyFileFlags `cmd:"" help:"Add a key that only opens. Give all replicas the file and restart them before \"keyset rotate\"."`
	Rotate keyFileFlags `cmd:"" help:"Make the newest key primary: from their next start, replicas seal with it."`
}

type keyFileFlags struct {
	KeyFile string `help:"The keyset." required:"" type:"path" env:"WINDLASS_KEY_FILE"`
}

func (f keysetFlags) run(name string, out io.Writer) error {
	var text string
	switch name {
	case "create":
		err := seal.Create(f.Create.KeyFile)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("--key-file=%s exists already: it is not replaced, because what it sealed could not be opened any more", f.Create.KeyFile)
		}
		if err != nil {
			return err
		}
		text = "made " + f.Create.KeyFile + ": give it to all replicas, and keep a copy apart from the database's backups\n"
	case "list":
		keys, err := seal.Keys(f.List.KeyFile)
		if err != nil {
			return err
		}
		for _, k := range keys {
			role := "opens"
			if k.Primary {
				role = "seals and opens"
			}
			text += fmt.Sprintf("%d\t%s\t%s\n", k.ID, k.Status, role)
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

// loadKeyset reads the keyset, and makes it only if that was asked for.
func (f serveFlags) loadKeyset() (*seal.Box, error) {
	if f.CreateKeyset {
		return seal.LoadOrCreate(f.KeyFile)
	}
	box, err := seal.Load(f.KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--key-file=%s does not exist: mount the keyset of the other replicas there, or make a first one with \"controlplane keyset create --key-file %s\"", f.KeyFile, f.KeyFile)
	}
	return box, err
}
