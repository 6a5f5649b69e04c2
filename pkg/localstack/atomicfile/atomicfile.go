// Package atomicfile replaces small files in one step. A reader sees the old or the new content, even after a
// kill -9.
package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces the content of path with data and its permissions with mode. It creates missing folders, for
// this user only. It waits for the disk, so that a power failure does not leave an empty file.
func Write(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // already renamed after success
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
