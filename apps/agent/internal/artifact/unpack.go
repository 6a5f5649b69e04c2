package artifact

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// unpacker writes the files of archives into a directory. It refuses names that lead out of the
// directory, links and special files.
type unpacker struct {
	ctx   context.Context //nolint:containedctx // it ends the work of this unpacker
	store *Store
	by    *fetch
	root  *os.Root
	// entries counts all entries of all archives.
	entries int
}

// unpackArchive unpacks an archive.
func (u *unpacker) unpackArchive(archive string, form pack) error {
	f, err := os.Open(archive)
	if err != nil {
		return diskError(err)
	}
	defer f.Close() //nolint:errcheck // read only
	from := &archiveFile{ctx: u.ctx, file: f, left: math.MaxInt64}
	switch form {
	case packZip:
		return u.unpackZip(from)
	case packGzip:
		z, err := gzip.NewReader(from)
		if err != nil {
			return u.unreadableError("the archive", err)
		}
		return u.unpackTar(z)
	default:
		return u.unpackTar(from)
	}
}

// unreadableError returns the error of content that cannot be read.
func (u *unpacker) unreadableError(what string, err error) error {
	if u.ctx.Err() != nil {
		return context.Cause(u.ctx)
	}
	return &contentError{fmt.Sprintf("%s cannot be read: %v", what, err)}
}

// archiveFile is an archive that is read until ctx ends.
type archiveFile struct {
	ctx  context.Context //nolint:containedctx // io.Reader takes none
	file *os.File
	// left is how many bytes ReadAt may still read.
	left int64
}

func (a *archiveFile) Read(p []byte) (int, error) {
	if a.ctx.Err() != nil {
		return 0, context.Cause(a.ctx)
	}
	return a.file.Read(p)
}

func (a *archiveFile) ReadAt(p []byte, offset int64) (int, error) {
	if a.ctx.Err() != nil {
		return 0, context.Cause(a.ctx)
	}
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, fmt.Errorf("its list of entries has more than %d bytes", maxList)
	}
	return a.file.ReadAt(p, offset)
}

func (u *unpacker) unpackTar(r io.Reader) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return u.unreadableError("the archive", err)
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = u.writeFile(h.Name, archive)
		case tar.TypeDir:
			err = u.unpackDir(h.Name)
		case tar.TypeXGlobalHeader:
			_, err = u.checkEntry(".") // It counts as an entry, because an archive may have any number of such headers.
		default:
			err = &contentError{fmt.Sprintf("the archive's entry %q is a link or a special file: only files and folders are allowed", h.Name)}
		}
		if err != nil {
			return err
		}
	}
}

func (u *unpacker) unpackZip(from *archiveFile) error {
	info, err := from.file.Stat()
	if err != nil {
		return diskError(err)
	}
	// NewReader holds the list of all entries in memory.
	from.left = maxList
	archive, err := zip.NewReader(from, info.Size())
	if err != nil {
		return u.unreadableError("the archive", err)
	}
	from.left = math.MaxInt64
	for _, e := range archive.File {
		switch mode := e.Mode(); {
		case mode.IsDir():
			err = u.unpackDir(e.Name)
		case mode.IsRegular():
			err = u.unpackZipEntry(e)
		default:
			err = &contentError{fmt.Sprintf("the archive's entry %q is a link or a special file: only files and folders are allowed", e.Name)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) unpackZipEntry(e *zip.File) error {
	r, err := e.Open()
	if err != nil {
		return u.unreadableError("the archive", err)
	}
	defer r.Close()
	return u.writeFile(e.Name, r)
}

// checkEntry counts an entry, and returns its path.
func (u *unpacker) checkEntry(name string) (string, error) {
	if u.entries++; u.entries > maxFiles {
		return "", &contentError{fmt.Sprintf("the archive has more than %d entries", maxFiles)}
	}
	if !filepath.IsLocal(filepath.FromSlash(path.Clean(name))) {
		return "", &contentError{fmt.Sprintf("the archive's entry %q leads out of the artifact's directory", name)}
	}
	return filepath.FromSlash(path.Clean(name)), nil
}

func (u *unpacker) unpackDir(name string) error {
	at, err := u.checkEntry(name)
	if err != nil {
		return err
	}
	return u.makeAll(at)
}

// makeAll makes a directory and those above it, all readable for servers.
func (u *unpacker) makeAll(at string) error {
	if at == "." {
		return nil
	}
	if err := u.root.MkdirAll(at, 0o755); err != nil {
		return entryError(err)
	}
	for ; at != "."; at = filepath.Dir(at) {
		if err := u.root.Chmod(at, 0o755); err != nil {
			return entryError(err)
		}
	}
	return nil
}

func (u *unpacker) writeFile(name string, from io.Reader) error {
	at, err := u.checkEntry(name)
	if err != nil {
		return err
	}
	if err := u.makeAll(filepath.Dir(at)); err != nil {
		return err
	}
	out, err := u.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return entryError(err)
	}
	defer out.Close() //nolint:errcheck // closed below
	w := &meteredFile{ctx: u.ctx, store: u.store, by: u.by, file: out}
	defer w.returnUnused()
	buffer := make([]byte, 128<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.unreadableError(fmt.Sprintf("the archive's entry %q", name), err)
		}
	}
	return diskError(errors.Join(out.Chmod(0o644), out.Sync(), out.Close()))
}

// moveFile moves a downloaded file to its name.
func (u *unpacker) moveFile(from, staged, name string) error {
	at, err := u.checkEntry(name)
	if err != nil {
		return err
	}
	if err := u.makeAll(filepath.Dir(at)); err != nil {
		return err
	}
	to := filepath.Join(staged, at)
	if _, err := u.root.Lstat(at); err == nil {
		return &contentError{fmt.Sprintf("the artifact has two files with the name %q", name)}
	}
	return diskError(os.Rename(from, to))
}

// entryError returns the error of an entry for people. The entry may, for example, have the same
// name as another one.
func entryError(err error) error {
	if errors.Is(err, os.ErrExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) {
		return &contentError{"the archive has two entries with the same name"}
	}
	if errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.EINVAL) {
		return &contentError{"the archive has an entry whose name the host does not allow"}
	}
	return diskError(err)
}

// isFull reports whether the error means that the disk is full.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
