package artifact

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/guard"
)

// weights is large enough to be sent in several parts.
var weights = bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// behaviour is how a server answers requests for content. Manifests and lists are not affected.
type behaviour struct {
	status int
	// cutAfter is the number of bytes after which the connection is closed, as often as fault.cuts says. 0: never.
	cutAfter int
	// stall sends nothing after half of the content.
	stall bool
	// spoil changes a byte of the content.
	spoil bool
	// whole ignores ranges.
	whole bool
}

// fault changes how a server answers.
type fault struct {
	mu  sync.Mutex // a handler may still run when its client has gone
	now behaviour
	// cuts is how often the connection is still closed.
	cuts atomic.Int32
	// ranges counts requests for a part of a file, and requests counts all requests.
	ranges, requests atomic.Int32
}

func (f *fault) set(b behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = b
}

func (f *fault) get() behaviour {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// wrap returns a handler with the fault for paths for which content returns true.
func (f *fault) wrap(inner http.Handler, content func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !content(r) {
			inner.ServeHTTP(w, r)
			return
		}
		f.requests.Add(1)
		now := f.get()
		if r.Header.Get("Range") != "" {
			f.ranges.Add(1)
			if now.whole {
				r.Header.Del("Range")
			}
		}
		if now.status != 0 {
			w.WriteHeader(now.status)
			return
		}
		seen := httptest.NewRecorder()
		inner.ServeHTTP(seen, r)
		body := seen.Body.Bytes()
		maps.Copy(w.Header(), seen.Header())
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if now.spoil && len(body) > 0 {
			body = bytes.Clone(body)
			body[len(body)/2] ^= 1
		}
		w.WriteHeader(seen.Code)
		switch {
		case now.stall:
			_, _ = w.Write(body[:len(body)/2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case now.cutAfter > 0 && f.cuts.Add(-1) >= 0:
			_, _ = w.Write(body[:min(now.cutAfter, len(body))])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			_, _ = w.Write(body)
		}
	})
}

// origin is a server of artifacts of one kind.
type origin struct {
	*httptest.Server
	fault *fault
	// put stores files, and returns a reference to them and the credentials that it needs.
	put func(t *testing.T, files map[string][]byte) (Reference, Credentials)
	// putArchive stores an archive that is unpacked.
	putArchive func(t *testing.T, archive []byte) (Reference, Credentials)
}

func listOf(files map[string][]byte) string {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&lines, "%s  %s\n", sum(files[name]), name)
	}
	return sum([]byte(lines.String()))
}

func newHTTPOrigin(t *testing.T) *origin {
	o := &origin{fault: &fault{}}
	var mu sync.Mutex
	stored := map[string][]byte{}
	o.Server = httptest.NewServer(o.fault.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		data, ok := stored[r.URL.Path]
		mu.Unlock()
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		case r.Header.Get("Authorization") != "Bearer http-token":
			w.WriteHeader(http.StatusForbidden)
		default:
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		}
	}), func(*http.Request) bool { return true }))
	t.Cleanup(o.Close)
	store := func(name string, data []byte) (Reference, Credentials) {
		mu.Lock()
		defer mu.Unlock()
		stored["/models/"+name] = data
		return Reference{URL: o.URL + "/models/" + name + "@sha256:" + sum(data)}, Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": "http-token"}}
	}
	o.put = func(t *testing.T, files map[string][]byte) (Reference, Credentials) {
		return store("fraud.tgz", tarOf(t, files, true))
	}
	o.putArchive = func(_ *testing.T, archive []byte) (Reference, Credentials) { return store("archive.tgz", archive) }
	return o
}

func newS3Origin(t *testing.T) *origin {
	o := &origin{fault: &fault{}}
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("models"))
	inner := gofakes3.New(backend).Server()
	o.Server = httptest.NewServer(o.fault.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// This server does not verify signatures. It checks only that a request has one, made with
		// the right key.
		if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=s3-key/") || !strings.Contains(r.Header.Get("Authorization"), "/eu-central-1/s3/aws4_request") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	}), func(r *http.Request) bool { return !r.URL.Query().Has("list-type") }))
	t.Cleanup(o.Close)
	credentials := Credentials{Variables: map[string]string{"AWS_ACCESS_KEY_ID": "s3-key", "AWS_SECRET_ACCESS_KEY": "s3-secret"}}
	put := func(t *testing.T, key string, data []byte) {
		_, err := backend.PutObject("models", key, map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}, bytes.NewReader(data), int64(len(data)), nil)
		require.NoError(t, err)
	}
	o.put = func(t *testing.T, files map[string][]byte) (Reference, Credentials) {
		for name, data := range files {
			put(t, "fraud/7/"+name, data)
		}
		put(t, "fraud/70/other", []byte("another version"))
		return Reference{URL: "s3://models/fraud/7/@sha256:" + listOf(files), Endpoint: o.URL, Region: "eu-central-1"}, credentials
	}
	o.putArchive = func(t *testing.T, archive []byte) (Reference, Credentials) {
		put(t, "archive.tgz", archive)
		return Reference{URL: "s3://models/archive.tgz@sha256:" + sum(archive), Endpoint: o.URL, Region: "eu-central-1"}, credentials
	}
	return o
}

func newOCIOrigin(t *testing.T) *origin {
	o := &origin{fault: &fault{}}
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	o.Server = httptest.NewServer(o.fault.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "puller" || password != "oci-password" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Accept-Ranges", "bytes")
		inner.ServeHTTP(w, r)
	}), func(r *http.Request) bool {
		return strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("Authorization") != ""
	}))
	t.Cleanup(o.Close)
	host := strings.TrimPrefix(o.URL, "http://")
	send := func(t *testing.T, method, path, kind string, data []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, o.URL+path, bytes.NewReader(data))
		require.NoError(t, err)
		req.SetBasicAuth("puller", "oci-password")
		req.Header.Set("Content-Type", kind)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusCreated, res.StatusCode)
	}
	push := func(t *testing.T, layers []v1.Descriptor, blobs ...[]byte) (Reference, Credentials) {
		for _, b := range append(blobs, []byte("{}")) {
			send(t, http.MethodPost, "/v2/models/fraud/blobs/uploads/?digest=sha256:"+sum(b), "application/octet-stream", b)
		}
		manifest, err := json.Marshal(v1.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, ArtifactType: "application/vnd.test.model",
			Config: v1.DescriptorEmptyJSON, Layers: layers,
		})
		require.NoError(t, err)
		send(t, http.MethodPut, "/v2/models/fraud/manifests/sha256:"+sum(manifest), v1.MediaTypeImageManifest, manifest)
		docker := fmt.Sprintf(`{"auths": {%q: {"username": "puller", "password": "oci-password"}}}`, host)
		return Reference{URL: "oci://" + host + "/models/fraud@sha256:" + sum(manifest)}, Credentials{Docker: map[string]string{"registry": docker}}
	}
	layer := func(kind string, data []byte) v1.Descriptor {
		return v1.Descriptor{MediaType: kind, Digest: digest.NewDigestFromEncoded(digest.SHA256, sum(data)), Size: int64(len(data))}
	}
	o.put = func(t *testing.T, files map[string][]byte) (Reference, Credentials) {
		var layers []v1.Descriptor
		for _, name := range slices.Sorted(maps.Keys(files)) {
			l := layer("application/octet-stream", files[name])
			l.Annotations = map[string]string{v1.AnnotationTitle: name}
			layers = append(layers, l)
		}
		return push(t, layers, slices.Collect(maps.Values(files))...)
	}
	o.putArchive = func(t *testing.T, archive []byte) (Reference, Credentials) {
		return push(t, []v1.Descriptor{layer(v1.MediaTypeImageLayerGzip, archive)}, archive)
	}
	return o
}

var origins = map[string]func(*testing.T) *origin{"https": newHTTPOrigin, "s3": newS3Origin, "oci": newOCIOrigin}

// tarOf returns a tar archive of files. compressed says whether gzip compresses it.
func tarOf(t *testing.T, files map[string][]byte, compressed bool) []byte {
	var out bytes.Buffer
	var to io.WriteCloser = nopCloser{&out}
	if compressed {
		to = gzip.NewWriter(&out)
	}
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4600, Size: int64(len(files[name]))}))
		_, err := w.Write(files[name])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, to.Close())
	return out.Bytes()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func entryOf(t *testing.T, h tar.Header) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&h))
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return out.Bytes()
}

func loopback(t *testing.T) guard.Networks {
	allow, err := guard.Parse([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	return allow
}

func newStore(t *testing.T, change func(*Config)) *Store {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "models"), Allow: loopback(t), Log: slog.New(slog.DiscardHandler), Stall: 300 * time.Millisecond, Pause: time.Millisecond, MaxBytes: 64 << 20}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	require.NoError(t, err)
	return s
}

// filesIn returns the files of a directory with their contents, and checks that servers may read
// them.
func filesIn(t *testing.T, dir string) map[string][]byte {
	out := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(at string, e os.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		if e.IsDir() {
			require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), at)
			return nil
		}
		require.Equal(t, os.FileMode(0o644), info.Mode(), at)
		name, err := filepath.Rel(dir, at)
		require.NoError(t, err)
		out[filepath.ToSlash(name)], err = os.ReadFile(at)
		return err
	}))
	return out
}

// isEmpty fails unless the store has neither complete nor partial files.
func isEmpty(t *testing.T, s *Store) {
	t.Helper()
	for _, dir := range []string{filesDir, partialDir} {
		entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, "env_1", dir))
		if err == nil {
			require.Empty(t, entries, dir)
		}
	}
	require.Zero(t, s.used)
}

func fraud() map[string][]byte {
	return map[string][]byte{"config.pbtxt": []byte("name: fraud"), "1/model.onnx": weights, "1/empty": {}}
}

func TestFetch_HasAllFiles(t *testing.T) {
	for name, make1 := range origins {
		t.Run(name, func(t *testing.T) {
			o, s := make1(t), newStore(t, nil)
			ref, c := o.put(t, fraud())
			dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
			require.NoError(t, err)
			require.Equal(t, fraud(), filesIn(t, dir))
			require.Equal(t, ScopeDir(s.cfg.Dir, "env_1")+"/files/"+DirOf(ref), dir)
			size := int64(len(weights) + len("name: fraud"))
			require.Equal(t, size, s.used)

			before := o.fault.requests.Load()
			again, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, Credentials{})
			require.NoError(t, err)
			require.Equal(t, dir, again)
			require.Equal(t, before, o.fault.requests.Load(), "it is there already")

			_, err = s.Fetch(t.Context(), "env_2", "ws_2", ref, Credentials{})
			require.ErrorContains(t, err, "check the secrets of the model", "another environment needs access of its own")

			s, err = Open(s.cfg)
			require.NoError(t, err)
			require.Equal(t, size, s.used, "after a restart")
		})
	}
}

func TestFetch_UnpacksArchives(t *testing.T) {
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	w, err := z.Create("1/model.onnx")
	require.NoError(t, err)
	_, err = w.Write(weights)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	files := map[string][]byte{"1/model.onnx": weights}
	for name, data := range map[string][]byte{"a.zip": zipped.Bytes(), "a.tar": tarOf(t, files, false), "a.tar.gz": tarOf(t, files, true)} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
			defer server.Close()
			s := newStore(t, nil)
			dir, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/" + name + "@sha256:" + sum(data)}, Credentials{})
			require.NoError(t, err)
			require.Equal(t, files, filesIn(t, dir))
			require.Equal(t, int64(len(weights)), s.used, "the archive is deleted")
		})
	}
	t.Run("an OCI layer that is an archive", func(t *testing.T) {
		o, s := newOCIOrigin(t), newStore(t, nil)
		ref, c := o.putArchive(t, tarOf(t, fraud(), true))
		dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
		require.NoError(t, err)
		require.Equal(t, fraud(), filesIn(t, dir))
	})
}

// Each fault has its reason, and leaves nothing that could be loaded.
func TestFetch_Faults(t *testing.T) {
	for name, make1 := range origins {
		for what, c := range map[string]struct {
			fault  behaviour
			change func(c *Config)
			// reference changes the reference, and archive replaces the files.
			reference func(r *Reference)
			archive   []byte
			says      string
			// resumes means that a later attempt continues the download.
			resumes bool
		}{
			"wrong digest": {reference: func(r *Reference) { r.URL = r.URL[:len(r.URL)-64] + strings.Repeat("0", 64) }, says: map[string]string{
				"https": "the content has the digest sha256:", "s3": "the content has the digest sha256:", "oci": "404 Not Found",
			}[name]},
			"spoiled":         {fault: behaviour{spoil: true}, says: "has the digest sha256:"},
			"not there":       {fault: behaviour{status: http.StatusNotFound}, says: "it answered 404 Not Found", resumes: true},
			"not allowed":     {fault: behaviour{status: http.StatusForbidden}, says: "it answered 403 Forbidden", resumes: true},
			"broken server":   {fault: behaviour{status: http.StatusInternalServerError}, says: "it answered 500 Internal Server Error", resumes: true},
			"slow":            {fault: behaviour{stall: true}, says: "the source sent nothing for 50ms", change: func(c *Config) { c.Stall = 50 * time.Millisecond }, resumes: true},
			"cut every time":  {fault: behaviour{cutAfter: 1, whole: true}, says: "the connection broke after", resumes: true},
			"no room":         {change: func(c *Config) { c.MaxBytes = 5 << 20 }, archive: tarOf(t, map[string][]byte{"big": make([]byte, 9<<20)}, true), says: "no room on the disk"},
			"archive up":      {archive: tarOf(t, map[string][]byte{"../../servers/ins_1/fraud/model": weights}, true), says: "leads out of the artifact's directory"},
			"archive at root": {archive: tarOf(t, map[string][]byte{"/etc/cron.d/model": weights}, true), says: "leads out of the artifact's directory"},
			"symbolic link":   {archive: entryOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "model", Linkname: "/etc/shadow"}), says: "is a link or a special file"},
			"hard link":       {archive: entryOf(t, tar.Header{Typeflag: tar.TypeLink, Name: "model", Linkname: "../../x"}), says: "is a link or a special file"},
			"device":          {archive: entryOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "model"}), says: "is a link or a special file"},
			"cut archive":     {archive: tarOf(t, fraud(), true)[:100], says: "cannot be read"},
			"no archive":      {archive: []byte("<html>"), says: "the archive cannot be read"},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				o, s := make1(t), newStore(t, c.change)
				ref, credentials := o.put(t, fraud())
				if c.archive != nil {
					ref, credentials = o.putArchive(t, c.archive)
				}
				if c.reference != nil {
					c.reference(&ref)
				}
				o.fault.cuts.Store(1 << 30)
				o.fault.set(c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				_, err := s.Fetch(ctx, "env_1", "ws_1", ref, credentials)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, "artifact from 127.0.0.1:")
				for _, secret := range []string{"http-token", "s3-secret", "oci-password", s.cfg.Dir} {
					require.NotContains(t, err.Error(), secret)
				}
				complete, err := os.ReadDir(filepath.Join(s.cfg.Dir, "env_1", filesDir))
				require.True(t, os.IsNotExist(err) || err == nil && len(complete) == 0)
				require.NoFileExists(t, filepath.Join(s.cfg.Dir, "env_1", "servers", "ins_1", "fraud", "model"))
				if !c.resumes {
					isEmpty(t, s)
					return
				}
				o.fault.set(behaviour{})
				dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, credentials)
				require.NoError(t, err, "without the fault")
				require.Equal(t, fraud(), filesIn(t, dir))
			})
		}
	}
}

func TestFetch_ContinuesAfterABrokenConnection(t *testing.T) {
	random := make([]byte, 1<<20) // it must not become small by compression
	for i, v := 0, uint32(1); i < len(random); i++ {
		v = v*1664525 + 1013904223
		random[i] = byte(v >> 24)
	}
	files := map[string][]byte{"model": random}
	for name, make1 := range origins {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/server ignores ranges: ", whole), func(t *testing.T) {
				o, s := make1(t), newStore(t, nil)
				ref, c := o.put(t, files)
				o.fault.set(behaviour{whole: whole, cutAfter: 300_000})
				o.fault.cuts.Store(2)
				dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
				require.NoError(t, err)
				require.Equal(t, files, filesIn(t, dir))
				require.Positive(t, o.fault.ranges.Load())
			})
		}
		t.Run(name+"/in another process", func(t *testing.T) {
			o, s := make1(t), newStore(t, nil)
			ref, c := o.put(t, files)
			o.fault.set(behaviour{stall: true})
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
			require.ErrorContains(t, err, "sent nothing")
			partial := s.used
			require.Greater(t, partial, int64(500_000))
			o.fault.set(behaviour{})
			o.fault.ranges.Store(0)
			s, err = Open(s.cfg)
			require.NoError(t, err)
			require.Equal(t, partial, s.used)
			_, err = s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
			require.NoError(t, err)
			require.Positive(t, o.fault.ranges.Load())
			require.Equal(t, int64(len(random)), s.used)
		})
	}
}

func TestFetch_OnceForManyModels(t *testing.T) {
	o, s := newS3Origin(t), newStore(t, nil)
	ref, c := o.put(t, map[string][]byte{"model": weights})
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 1, o.fault.requests.Load())
}

// If the last caller leaves, the download ends. A later caller does not get its error.
func TestFetch_EndsWithItsCallers(t *testing.T) {
	o, s := newHTTPOrigin(t), newStore(t, func(c *Config) { c.Stall = time.Minute })
	ref, c := o.put(t, fraud())
	o.fault.set(behaviour{stall: true})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Fetch(ctx, "env_1", "ws_1", ref, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	o.fault.set(behaviour{})
	_, err = s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
}

// No host gets more downloads than its share, and one workspace alone cannot use the whole share.
func TestFetch_LimitsDownloadsOfAHost(t *testing.T) {
	var now, most atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		<-time.After(20 * time.Millisecond)
		now.Add(-1)
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	defer server.Close()
	s := newStore(t, nil)
	var group sync.WaitGroup
	for n := range 20 {
		group.Go(func() {
			path := fmt.Sprint("/model-", n)
			if _, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + path + "@sha256:" + sum([]byte(path))}, Credentials{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.LessOrEqual(t, most.Load(), int32(perHost/2))
	require.Empty(t, s.hosts)
	require.Empty(t, s.fetches)
}

func TestFetch_ConnectsOnlyWhereAllowed(t *testing.T) {
	t.Run("private address", func(t *testing.T) {
		for name, make1 := range origins {
			o, s := make1(t), newStore(t, func(c *Config) { c.Allow = nil })
			ref, c := o.put(t, fraud())
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
			require.ErrorContains(t, err, "with --model-allow", name)
			require.Zero(t, o.fault.requests.Load())
		}
	})
	t.Run("redirect to a private address", func(t *testing.T) {
		secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
		defer secret.Close()
		server := httptest.NewServer(http.RedirectHandler(strings.Replace(secret.URL, "127.0.0.1", "[::1]", 1)+"/latest/meta-data", http.StatusFound))
		defer server.Close()
		_, err := newStore(t, nil).Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/m@sha256:" + sum(nil)}, Credentials{})
		require.ErrorContains(t, err, "::1 is not called without TLS")
	})
	t.Run("endless redirects", func(t *testing.T) {
		var server *httptest.Server
		server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, server.URL+"/more", http.StatusFound)
		}))
		defer server.Close()
		_, err := newStore(t, nil).Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/m@sha256:" + sum(nil)}, Credentials{})
		require.ErrorContains(t, err, "it redirects more than 5 times")
	})
	t.Run("a redirect to another host gets no credentials", func(t *testing.T) {
		var got atomic.Value
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got.Store(r.Header.Get("Authorization"))
			_, _ = io.WriteString(w, "data")
		}))
		defer other.Close()
		server := httptest.NewServer(http.RedirectHandler(strings.Replace(other.URL, "127.0.0.1", "127.0.0.2", 1)+"/signed?key=1", http.StatusFound))
		defer server.Close()
		// The other server listens on 127.0.0.1 alone, so the call fails. Its error has no query.
		_, err := newStore(t, nil).Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/m@sha256:" + sum([]byte("data"))}, Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": "secret-token"}})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "key=1")
		server2 := httptest.NewServer(http.RedirectHandler(strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusFound))
		defer server2.Close()
		_, err = newStore(t, nil).Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server2.URL + "/m@sha256:" + sum([]byte("data"))}, Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": "secret-token"}})
		require.NoError(t, err)
		require.Empty(t, got.Load())
		server3 := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound)) // another port
		defer server3.Close()
		_, err = newStore(t, nil).Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server3.URL + "/m@sha256:" + sum([]byte("data"))}, Credentials{Variables: map[string]string{"ARTIFACT_TOKEN": "secret-token"}})
		require.NoError(t, err)
		require.Empty(t, got.Load())
	})
}

func TestFetch_RefusesReferences(t *testing.T) {
	s := newStore(t, nil)
	for text, says := range map[string]string{
		"https://models.test/fraud": "has no digest", "https://models.test/fraud@sha256:abc": "has no digest",
		"https://user:password@models.test/m@sha256:" + sum(nil): "has no user",
		"file:///etc/shadow@sha256:" + sum(nil):                  "needs a host",
		"ftp://models.test/m@sha256:" + sum(nil):                 "use https, s3 or oci",
		"https://models.test/@sha256:" + sum(nil):                "names no file",
		"oci://registry.test/UPPER@sha256:" + sum(nil):           "names no registry and repository",
	} {
		_, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: text}, Credentials{})
		require.ErrorContains(t, err, says, text)
	}
	_, err := s.Fetch(t.Context(), "../other", "ws_1", Reference{URL: "https://models.test/m@sha256:" + sum(nil)}, Credentials{})
	require.ErrorContains(t, err, "cannot be the name of a directory")
}

func TestStore_DeletesFilesThatNoModelNeeds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(r.URL.Path), 1<<20)) // 2 MiB
	}))
	defer server.Close()
	s := newStore(t, func(c *Config) { c.MaxBytes = 9 << 20 })
	needed := map[string]bool{}
	s.KeepNeeded(func(_, digest string) bool { return needed[digest] })
	fetch := func(name string) (string, error) {
		return s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/" + name + "@sha256:" + sum(bytes.Repeat([]byte("/"+name), 1<<20))}, Credentials{})
	}
	a, err := fetch("a")
	require.NoError(t, err)
	b, err := fetch("b")
	require.NoError(t, err)
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(a, old, old))
	require.NoError(t, os.Chtimes(b, old.Add(-time.Hour), old.Add(-time.Hour)))
	_, err = fetch("b")
	require.NoError(t, err, "this is a use")
	needed[filepath.Base(b)] = true
	for _, name := range []string{"c", "d"} {
		dir, err := fetch(name)
		require.NoError(t, err)
		needed[filepath.Base(dir)] = true
	}
	require.NoDirExists(t, a, "the least recently used one")
	_, err = fetch("e")
	require.ErrorContains(t, err, "no room on the disk")
	require.DirExists(t, b)
	require.LessOrEqual(t, s.used, s.cfg.MaxBytes)
}

func TestStore_Sweep(t *testing.T) {
	o, s := newHTTPOrigin(t), newStore(t, nil)
	ref, c := o.put(t, fraud())
	dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
	require.NoError(t, s.Link("env_1", "ins_1", "fraud", dir))
	require.NoError(t, s.Link("env_1", "ins_2", "fraud", dir))
	needed := true
	s.KeepNeeded(func(string, string) bool { return needed })
	used := func(string) bool { return true }
	require.NoError(t, s.Sweep(t.Context(), used, nil))
	for _, server := range []string{"ins_1", "ins_2"} {
		at := RepositoryDir(s.cfg.Dir, "env_1", server)
		require.DirExists(t, at, "the server may be starting")
		require.NoError(t, os.Chtimes(at, time.Time{}, time.Now().Add(-2*newRepository)))
	}
	require.NoError(t, s.Sweep(t.Context(), used, map[string]bool{"ins_1": true}))
	require.Equal(t, fraud(), filesIn(t, filepath.Join(RepositoryDir(s.cfg.Dir, "env_1", "ins_1"), "fraud")))
	require.NoDirExists(t, RepositoryDir(s.cfg.Dir, "env_1", "ins_2"))
	needed = false
	require.NoError(t, s.Sweep(t.Context(), used, map[string]bool{"ins_1": true}))
	require.DirExists(t, dir, "for a day")
	require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-25*time.Hour)))
	require.NoError(t, s.Sweep(t.Context(), used, map[string]bool{"ins_1": true}))
	require.NoDirExists(t, dir)
	require.Zero(t, s.used)
	require.Equal(t, fraud(), filesIn(t, filepath.Join(RepositoryDir(s.cfg.Dir, "env_1", "ins_1"), "fraud")), "the server keeps what it has")
	require.NoError(t, s.Sweep(t.Context(), func(string) bool { return false }, nil))
	require.NoDirExists(t, ScopeDir(s.cfg.Dir, "env_1"))
}

// TestFetch_LargeDownloadsGiveWay has two workspaces on a disk that has no room for both of their models.
func TestFetch_LargeDownloadsGiveWay(t *testing.T) {
	large, small := bytes.Repeat([]byte("l"), 40<<20), bytes.Repeat([]byte("s"), 6<<20)
	sent, goOn := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = w.Write(small)
			return
		}
		_, _ = w.Write(large[:17<<20])
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/alone" {
			panic(http.ErrAbortHandler)
		}
		close(sent)
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(goOn)
	fetch := func(ctx context.Context, s *Store, scope, workspace, path string, data []byte) error {
		_, err := s.Fetch(ctx, scope, workspace, Reference{URL: server.URL + path + "@sha256:" + sum(data)}, Credentials{})
		return err
	}
	needAll := func(c *Config) { c.MaxBytes, c.Stall = 21<<20, time.Minute }
	t.Run("a running one", func(t *testing.T) {
		s := newStore(t, needAll)
		s.KeepNeeded(func(string, string) bool { return true })
		failed := make(chan error, 1)
		go func() { failed <- fetch(t.Context(), s, "env_1", "ws_large", "/large", large) }()
		<-sent
		require.Eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.used >= 17<<20
		}, time.Minute, time.Millisecond)
		require.NoError(t, fetch(t.Context(), s, "env_2", "ws_small", "/small", small))
		require.ErrorContains(t, <-failed, "a fetch of another workspace needs the room")
		require.EqualValues(t, len(small), s.used)
	})
	t.Run("one that broke", func(t *testing.T) {
		s := newStore(t, needAll)
		s.KeepNeeded(func(string, string) bool { return true })
		require.ErrorContains(t, fetch(t.Context(), s, "env_1", "ws_large", "/alone", large), "broke")
		require.Greater(t, s.used, int64(16<<20), "its next attempt goes on from there")
		require.NoError(t, fetch(t.Context(), s, "env_2", "ws_small", "/small", small))
		require.EqualValues(t, len(small), s.used)
	})
	t.Run("not to a larger one", func(t *testing.T) {
		s := newStore(t, needAll)
		s.KeepNeeded(func(string, string) bool { return true })
		require.NoError(t, fetch(t.Context(), s, "env_2", "ws_small", "/small", small))
		require.ErrorContains(t, fetch(t.Context(), s, "env_1", "ws_large", "/alone", large), "no room on the disk")
		require.EqualValues(t, len(small), s.used)
	})
}

// TestStore_DeletesWithoutItsLock leaves a directory to be deleted, as an agent does that ends meanwhile.
func TestStore_DeletesWithoutItsLock(t *testing.T) {
	o, s := newHTTPOrigin(t), newStore(t, nil)
	ref, c := o.put(t, fraud())
	dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
	used := s.used
	require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-25*time.Hour)))
	s.KeepNeeded(func(string, string) bool { return false })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	inUse := func(string) bool { return true }
	require.ErrorIs(t, s.Sweep(ended, inUse, nil), context.Canceled)
	require.NoDirExists(t, dir, "it is gone at once")
	require.Equal(t, used, s.used, "its files still take room")
	again, err := Open(s.cfg)
	require.NoError(t, err)
	require.Equal(t, used, again.used)
	require.NoError(t, again.Sweep(t.Context(), inUse, nil))
	require.Zero(t, again.used)
	left, err := os.ReadDir(filepath.Join(s.cfg.Dir, goneDir))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestStore_SweepAndFetchesMakeRoomInTurn: while a Sweep deletes files, their room still counts as used. A fetch that needs it
// must not end the fetches of others, or fail.
func TestStore_SweepAndFetchesMakeRoomInTurn(t *testing.T) {
	o, s := newHTTPOrigin(t), newStore(t, nil)
	ref, c := o.put(t, fraud())
	dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
	require.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-25*time.Hour)))
	s.KeepNeeded(func(string, string) bool { return false })
	inUse := func(string) bool { return true }
	s.freeing <- struct{}{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Sweep(ended, inUse, nil), context.Canceled)
	require.DirExists(t, dir, "a fetch makes room")
	require.ErrorIs(t, s.reserveBytes(ended, &fetch{}, 1<<62), context.Canceled, "it waits for its turn")
	<-s.freeing
	require.NoError(t, s.Sweep(t.Context(), inUse, nil))
	require.NoDirExists(t, dir)
	require.Zero(t, s.used)
	require.Empty(t, s.freeing)
}

func TestStore_Links(t *testing.T) {
	o, s := newHTTPOrigin(t), newStore(t, nil)
	ref, c := o.put(t, fraud())
	dir, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
	require.NoError(t, s.Link("env_1", "ins_1", "fraud", dir))
	ref, c = o.put(t, map[string][]byte{"2/model.onnx": []byte("new")})
	next, err := s.Fetch(t.Context(), "env_1", "ws_1", ref, c)
	require.NoError(t, err)
	require.NoError(t, s.Link("env_1", "ins_1", "fraud", next))
	at := filepath.Join(RepositoryDir(s.cfg.Dir, "env_1", "ins_1"), "fraud")
	require.Equal(t, map[string][]byte{"2/model.onnx": []byte("new")}, filesIn(t, at), "nothing of the old version is left")
	require.NoError(t, s.Unlink("env_1", "ins_1", "fraud"))
	require.NoDirExists(t, at)
	require.NoError(t, s.Unlink("env_1", "ins_1", "fraud"))
	require.Error(t, s.Link("env_1", "ins_1", "../ins_2", next))
}

// A full disk gives the same error as a full store, and no partial files stay.
func TestFetch_FullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("cannot mount a file system: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10<<20)) }))
	defer server.Close()
	for name, most := range map[string]int64{"with a limit above the disk's size": 1 << 40, "without a limit": 0} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, func(c *Config) { c.Dir, c.MaxBytes = dir, most })
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/m@sha256:" + sum(make([]byte, 10<<20))}, Credentials{})
			require.ErrorContains(t, err, "no room on the disk")
			isEmpty(t, s)
		})
	}
}

// The list of a ZIP archive is held in memory, and headers that make no file take time only.
func TestFetch_LimitsListsOfArchives(t *testing.T) {
	var list, headers bytes.Buffer
	z := zip.NewWriter(&list)
	for i := range 80_000 {
		_, err := z.Create(fmt.Sprintf("entry-%032d", i))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	w := tar.NewWriter(&headers)
	for range maxFiles + 1 {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}))
	}
	require.NoError(t, w.Close())
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"m.zip": {list.Bytes(), "the archive cannot be read: its list of entries has more than 4194304 bytes"},
		"m.tar": {headers.Bytes(), "the archive has more than 20000 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(c.data) }))
			defer server.Close()
			s := newStore(t, nil)
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/" + name + "@sha256:" + sum(c.data)}, Credentials{})
			require.ErrorContains(t, err, c.says)
			isEmpty(t, s)
		})
	}
}

// The S3 client holds a whole page of a list in memory, so the size of pages is limited.
func TestFetch_LimitsPagesOfLists(t *testing.T) {
	for name, part := range map[string]string{"many objects": strings.Repeat("<Contents/>", 1000), "a long name": strings.Repeat("a", 10_000)} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, err := io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>`)
				if name == "many objects" {
					_, err = io.WriteString(w, `bucket</Name>`)
				}
				for err == nil {
					_, err = io.WriteString(w, part)
				}
			}))
			defer server.Close()
			s := newStore(t, nil)
			_, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: "s3://bucket/fraud/@sha256:" + sum(nil), Endpoint: server.URL}, Credentials{})
			require.ErrorContains(t, err, "a page of the list of objects is too long")
			isEmpty(t, s)
		})
	}
}

func TestOCIError_HasNoSignatures(t *testing.T) {
	err := ociError(fmt.Errorf("GET %q: mismatch Content-Length: %w", "https://blobs.test/x?X-Amz-Signature=secret&y=1", io.ErrUnexpectedEOF))
	require.EqualError(t, err, `GET "https://blobs.test/x": mismatch Content-Length: unexpected EOF`)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A source chooses parts of these texts, which are shown and logged.
func TestErrors_AreShort(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for _, err := range []error{&contentError{long}, &statusError{http.StatusBadRequest, long}, &digestError{long, sum(nil), sum(nil)}} {
		require.Less(t, len(err.Error()), 2*maxText)
	}
}

// The digest of a file says nothing about its name.
func TestFetch_NamesFilesAsTheURL(t *testing.T) {
	data := tarOf(t, map[string][]byte{"model.onnx": []byte("weights")}, false)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	defer server.Close()
	s := newStore(t, nil)
	for name, files := range map[string]map[string][]byte{
		"a.bin": {"a.bin": data}, "b.bin": {"b.bin": data}, "m.tar": {"model.onnx": []byte("weights")},
	} {
		dir, err := s.Fetch(t.Context(), "env_1", "ws_1", Reference{URL: server.URL + "/" + name + "@sha256:" + sum(data)}, Credentials{})
		require.NoError(t, err)
		require.Equal(t, files, filesIn(t, dir))
	}
}
