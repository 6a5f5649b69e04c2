package chaos

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// backup is a copy of the database's files, taken while the server does not run. A killed server leaves files
// that it recovers from, and so does the copy.
type backup struct{ data, copied string }

// takeCopy replaces the last copy by a new one.
func (b *backup) takeCopy() error {
	tmp := b.copied + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), copyTree(b.data, tmp), os.RemoveAll(b.copied), os.Rename(tmp, b.copied)); err != nil {
		return fmt.Errorf("take a backup: %w", err)
	}
	return nil
}

// restoreCopy replaces the files by the copy. The server must not run.
func (b *backup) restoreCopy() error {
	if err := errors.Join(os.RemoveAll(b.data), copyTree(b.copied, b.data)); err != nil {
		return fmt.Errorf("restore the backup: %w", err)
	}
	return nil
}

// copyTree copies files and folders, but no sockets.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o700)
		case !entry.Type().IsRegular():
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
