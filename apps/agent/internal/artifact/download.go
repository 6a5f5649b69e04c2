package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// maxFiles is the maximum number of files of an artifact, and maxList the maximum size of a
	// manifest, in bytes.
	maxFiles = 20_000
	maxList  = 4 << 20
	// filesAtOnce is how many files of an artifact are downloaded at the same time.
	filesAtOnce = 4
	// attempts is how many requests in a row may bring nothing before a download fails.
	attempts = 5
	// longestPause is the longest delay between two attempts.
	longestPause = 10 * time.Second
	// stepBytes is how much room a download takes at a time.
	stepBytes = 4 << 20
)

// file is a file of an artifact at its source.
type file struct {
	// name is the path in the artifact, with slashes. It is "" for an archive that is unpacked into
	// the artifact's directory.
	name string
	// at identifies the file at its source.
	at string
	// size is the size in bytes, and sha256 the digest in hexadecimal. -1 and "" mean that they are
	// not known.
	size   int64
	sha256 string
	pack   pack
}

// source is where an artifact comes from.
type source interface {
	// list returns the files of the artifact.
	list(ctx context.Context) ([]file, error)
	// open returns the content of a file from an offset on. A source that cannot begin there
	// returns the whole content, and from is 0.
	open(ctx context.Context, f file, offset int64) (body io.ReadCloser, from int64, err error)
	// digestsList reports whether the artifact's digest is that of the list of its files.
	digestsList() bool
}

func (s *Store) sourceOf(p parsed, c Credentials) (source, error) {
	switch p.at.Scheme {
	case "s3":
		return newS3(s.transport, p, c)
	case "oci":
		return newOCI(s.transport, s.cfg.Allow, p, c)
	default:
		return &httpSource{client: newClient(s.transport), parsed: p, token: c.Variables["ARTIFACT_TOKEN"]}, nil
	}
}

// downloadArtifact downloads, verifies and unpacks an artifact.
func (s *Store) downloadArtifact(ctx context.Context, k key, f *fetch, p parsed, c Credentials) error {
	from, err := s.sourceOf(p, c)
	if err != nil {
		return err
	}
	files, err := from.list(ctx)
	if err != nil {
		return err
	}
	if err := checkList(files); err != nil {
		return err
	}
	dir := s.partialOf(k)
	if err := s.makeScope(k.scope); err != nil {
		return diskError(err)
	}
	for _, at := range []string{filepath.Dir(dir), filepath.Dir(s.filesOf(k)), dir} {
		if err := makeDir(at); err != nil {
			return diskError(err)
		}
	}
	there, err := sizeOf(dir)
	if err != nil {
		return diskError(err)
	}
	s.mu.Lock()
	f.bytes = there
	s.mu.Unlock()
	sums := make([]string, len(files))
	group, loading := errgroup.WithContext(ctx)
	group.SetLimit(filesAtOnce)
	for i, one := range files {
		group.Go(func() (err error) {
			sums[i], err = s.downloadFile(loading, f, from, one, partialFile(dir, i), p.sourceLabel())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return s.downloadError(ctx, k, err)
	}
	got := sums[0]
	switch {
	case from.digestsList():
		got = listDigest(files, sums)
	case p.at.Scheme == "oci": // The manifest was verified, and it has the digests of the files.
		got = p.digest
	}
	if got != p.digest {
		return s.downloadError(ctx, k, &digestError{want: p.digest, got: got})
	}
	if err := s.finishDownload(ctx, k, f, files); err != nil {
		return s.downloadError(ctx, k, err)
	}
	return nil
}

func partialFile(dir string, i int) string { return filepath.Join(dir, strconv.Itoa(i)) }

// downloadError returns the error of a failed download. It keeps the partial files, so that the next
// attempt continues with them, unless their content is wrong or the disk has no room for the rest.
func (s *Store) downloadError(ctx context.Context, k key, err error) error {
	var wrong *digestError
	var invalid *contentError
	if !errors.As(err, &wrong) && !errors.As(err, &invalid) && !errors.Is(err, errNoRoom) {
		return err
	}
	return errors.Join(err, s.evictArtifact(context.WithoutCancel(ctx), k))
}

// digestError means that a source has other content than the reference says.
type digestError struct{ name, want, got string }

func (e *digestError) Error() string {
	what := "the content"
	if e.name != "" {
		what = strconv.Quote(shortText(e.name))
	}
	return fmt.Sprintf("%s has the digest sha256:%s, and not sha256:%s", what, e.got, e.want)
}

// contentError means that the content cannot be used.
type contentError struct{ text string }

func (e *contentError) Error() string { return shortText(e.text) }

// maxText is the maximum length of a text that has words of a source, in bytes.
const maxText = 512

// shortText shortens a text to maxText.
func shortText(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

// checkList refuses lists whose files could be written outside of the artifact, or over each other.
func checkList(files []file) error {
	if len(files) == 0 {
		return &contentError{"the artifact has no files"}
	}
	if len(files) > maxFiles {
		return &contentError{fmt.Sprintf("the artifact has more than %d files", maxFiles)}
	}
	seen := map[string]bool{}
	for _, f := range files {
		if f.name == "" {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(f.name)) || strings.Contains(f.name, "\n") {
			return &contentError{fmt.Sprintf("the file name %q leads out of the artifact's directory, or has a line break", f.name)}
		}
		if seen[f.name] {
			return &contentError{fmt.Sprintf("the artifact has two files with the name %q", f.name)}
		}
		seen[f.name] = true
	}
	return nil
}

// listDigest returns the digest of the list of files, in the form that sha256sum writes.
func listDigest(files []file, sums []string) string {
	order := make([]int, len(files))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(files[a].name, files[b].name) })
	h := sha256.New()
	for _, i := range order {
		_, _ = fmt.Fprintf(h, "%s  %s\n", sums[i], files[i].name) // a hash returns no error
	}
	return hex.EncodeToString(h.Sum(nil))
}

// downloadFile downloads a file, and returns its digest. It continues where an earlier attempt
// ended.
func (s *Store) downloadFile(ctx context.Context, by *fetch, from source, f file, to, kind string) (string, error) {
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", diskError(err)
	}
	defer out.Close() //nolint:errcheck // closed below
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	w := &meteredFile{ctx: ctx, store: s, by: by, file: out, at: at, kind: kind}
	defer w.returnUnused()
	if at > 0 && f.size >= 0 && at > f.size {
		if err := w.emptyFile(); err != nil {
			return "", err
		}
	}
	for failed := 0; f.size < 0 || w.at < f.size || w.at == 0; {
		before := w.at
		done, err := s.attemptDownload(ctx, from, f, w)
		if done {
			break
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if failed++; w.at > before {
			failed = 1
		}
		if failed == attempts || isFinal(err) {
			return "", err
		}
		select {
		case <-time.After(min(s.cfg.Pause<<(failed-1), longestPause)):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	sum, err := digestOf(out)
	if err == nil {
		err = errors.Join(out.Chmod(0o644), out.Sync(), out.Close())
	}
	if err != nil {
		return "", diskError(err)
	}
	if f.sha256 != "" && sum != f.sha256 {
		return "", &digestError{f.name, f.sha256, sum}
	}
	return sum, nil
}

// attemptDownload makes one request for the rest of a file. done means that the file is complete.
func (s *Store) attemptDownload(ctx context.Context, from source, f file, w *meteredFile) (done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(s.cfg.Stall, func() { cancel(&stallError{s.cfg.Stall}) })
	defer stalled.Stop()
	body, at, err := from.open(ctx, f, w.at)
	if err != nil {
		return false, causeOf(ctx, err)
	}
	defer body.Close()
	if at != w.at {
		if at != 0 {
			return false, errors.New("the source sent another part of the file than requested")
		}
		if err := w.emptyFile(); err != nil {
			return false, err
		}
	}
	buffer := make([]byte, 128<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			stalled.Reset(s.cfg.Stall)
			if f.size >= 0 && w.at+int64(n) > f.size {
				return false, &contentError{fmt.Sprintf("the source sent more than the %d bytes that the file has", f.size)}
			}
			if _, err := w.Write(buffer[:n]); err != nil {
				return false, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if f.size >= 0 && w.at < f.size {
				return false, fmt.Errorf("the source ended after %d of %d bytes", w.at, f.size)
			}
			return true, nil
		case err != nil:
			return false, causeOf(ctx, fmt.Errorf("the connection broke after %d bytes: %w", w.at, withoutURL(err)))
		}
	}
}

// stallError means that a source sent nothing for too long.
type stallError struct{ after time.Duration }

func (e *stallError) Error() string { return fmt.Sprintf("the source sent nothing for %s", e.after) }

// causeOf returns why a request ended, if its context ended it.
func causeOf(ctx context.Context, err error) error {
	if stalled, ok := errors.AsType[*stallError](context.Cause(ctx)); ok {
		return stalled
	}
	return err
}

// statusError is an answer with a status that is not the expected one.
type statusError struct {
	status int
	detail string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("it answered %d %s", e.status, http.StatusText(e.status))
	if e.detail != "" {
		text += " (" + shortText(e.detail) + ")"
	}
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += ": check the secrets of the model"
	case http.StatusNotFound:
		text += ": check model.artifact.url"
	}
	return text
}

// isFinal reports whether another attempt would end in the same way.
func isFinal(err error) bool {
	var invalid *contentError
	var refused *refusedError
	if status, ok := errors.AsType[*statusError](err); ok {
		return status.status >= 300 && status.status < 500 && status.status != http.StatusRequestTimeout && status.status != http.StatusTooManyRequests
	}
	return errors.As(err, &invalid) || errors.As(err, &refused) || errors.Is(err, errNoRoom)
}

// meteredFile is a file that takes room from the store as it grows.
type meteredFile struct {
	ctx   context.Context //nolint:containedctx // it ends the wait for room
	store *Store
	by    *fetch
	file  *os.File
	// at is the size of the file. room is how much more may be written without another reservation.
	at, room int64
	kind     string
}

func (w *meteredFile) Write(p []byte) (int, error) {
	if n := int64(len(p)); w.room < n {
		step := max(n, stepBytes)
		if err := w.store.reserveBytes(w.ctx, w.by, step); err != nil {
			return 0, err
		}
		w.room += step
	}
	n, err := w.file.Write(p)
	w.at += int64(n)
	w.room -= int64(n)
	if w.kind != "" {
		w.store.metrics.received.WithLabelValues(w.kind).Add(float64(n))
	}
	return n, diskError(err)
}

// emptyFile empties the file.
func (w *meteredFile) emptyFile() error {
	if err := w.file.Truncate(0); err != nil {
		return diskError(err)
	}
	if _, err := w.file.Seek(0, io.SeekStart); err != nil {
		return diskError(err)
	}
	w.room += w.at
	w.at = 0
	return nil
}

// returnUnused returns room that was not used.
func (w *meteredFile) returnUnused() {
	w.store.giveBack(w.by, w.room)
	w.room = 0
}

// diskError returns err for people: errNoRoom if the disk is full, and otherwise an error without
// paths.
func diskError(err error) error {
	if err == nil {
		return nil
	}
	if isFull(err) {
		return fmt.Errorf("%w: the disk is full", errNoRoom)
	}
	return fmt.Errorf("write the files of the artifact: %w", withoutPath(err))
}

// withoutPath removes paths of this host from an error.
func withoutPath(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	if l := (*os.LinkError)(nil); errors.As(err, &l) {
		return l.Err
	}
	return err
}

func digestOf(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// finishDownload unpacks the downloaded files, and moves the result to its place.
func (s *Store) finishDownload(ctx context.Context, k key, by *fetch, files []file) error {
	dir := s.partialOf(k)
	staged := filepath.Join(dir, "out")
	size, err := sizeOf(staged)
	if err == nil {
		err = removeAll(staged)
	}
	if err == nil {
		s.giveBack(by, size)
		err = makeDir(staged)
	}
	if err != nil {
		return diskError(err)
	}
	root, err := os.OpenRoot(staged)
	if err != nil {
		return diskError(err)
	}
	defer root.Close() //nolint:errcheck // nothing is written to it
	u := &unpacker{ctx: ctx, store: s, by: by, root: root}
	for i, f := range files {
		at := partialFile(dir, i)
		if f.pack != packNone {
			err = u.unpackArchive(at, f.pack)
		} else {
			err = u.moveFile(at, staged, f.name)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Rename(staged, s.filesOf(k)); err != nil {
		return diskError(err)
	}
	// Only archives are left in dir. They were unpacked, so they are deleted.
	left, err := sizeOf(dir)
	if err == nil {
		err = removeAll(dir)
	}
	if err == nil {
		s.giveBack(by, left)
	}
	return diskError(err)
}
