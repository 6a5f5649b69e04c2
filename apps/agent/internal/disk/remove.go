package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	// removeBatch is how many entries of a directory are read at a time.
	removeBatch = 512
	// removeDepth is the depth down to which directories are opened one by one, because each open one takes a descriptor.
	removeDepth = 64
)

// RemoveAll deletes a directory or file with all that is in it, and follows no symbolic links. When ctx ends, it returns
// soon with the cause, and the rest stays. A missing path is no error. Only the caller may move the path itself meanwhile.
func RemoveAll(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.IsDir() {
		err = removeTree(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", path, err)
	}
	return ignoreMissing(os.Remove(path))
}

func removeTree(ctx context.Context, path string) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written to it
	return removeContent(ctx, root, 0)
}

// removeContent deletes everything in a directory.
func removeContent(ctx context.Context, root *os.Root, depth int) error {
	for {
		entries, err := readSome(root)
		if err != nil || len(entries) == 0 {
			return err
		}
		var failed error
		removed := 0
		for _, e := range entries {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := removeEntry(ctx, root, e, depth); err != nil {
				failed = errors.Join(failed, err)
			} else {
				removed++
			}
		}
		if removed == 0 {
			return failed
		}
	}
}

// readSome returns some entries of a directory, and none if it is empty.
func readSome(root *os.Root) ([]fs.DirEntry, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // read only
	entries, err := d.ReadDir(removeBatch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

func removeEntry(ctx context.Context, root *os.Root, e fs.DirEntry, depth int) error {
	if !e.IsDir() {
		return ignoreMissing(root.Remove(e.Name()))
	}
	if depth == removeDepth {
		return root.RemoveAll(e.Name())
	}
	inner, err := root.OpenRoot(e.Name())
	if err != nil {
		return ignoreMissing(err)
	}
	err = removeContent(ctx, inner, depth+1)
	if err = errors.Join(err, inner.Close()); err != nil {
		return err
	}
	return ignoreMissing(root.Remove(e.Name()))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
