// Package atomicfile replaces small files in one step: a reader sees the old content or the
// new, also after a kill -9.
package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"
)

// Write makes path hold data, with the given permissions whatever it had before.
// Folders that are missing are made for this user alone. It waits for the disk,
// so that a power failure does not leave the new name with no content.
func Write(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}
