package podloader

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// KeySize is the size of keys, in bytes.
const KeySize = 32

const (
	// maxRequest and maxAnswer are the maximum sizes of requests and answers, in bytes.
	maxRequest = 2 << 20
	maxAnswer  = 64 << 10
	// server is the name of the only server of a pod in its store; see runtime.PodRepository.
	server = "self"
	// sweepEvery is the time between two sweeps of the store.
	sweepEvery = 10 * time.Minute

	preparePath = "/prepare"
	discardPath = "/discard"
)

// Request asks a loader for the files of a model.
type Request struct {
	// Name is the model's name. Adapter means that the server loads the files from their own directory, and not from its
	// repository.
	Name    string `json:"name"`
	Adapter bool   `json:"adapter,omitempty"`
	// Workspace is the workspace that pays for the fetch.
	Workspace   string               `json:"workspace,omitempty"`
	Reference   artifact.Reference   `json:"reference,omitzero"`
	Credentials artifact.Credentials `json:"credentials,omitzero"`
}

// answer is the answer of a loader. Path is the directory of an adapter.
type answer struct {
	Path  string `json:"path,omitempty"`
	Error string `json:"error,omitempty"`
}

// seal encrypts a request for a path of the loader of a pod.
func seal(key []byte, pod, path string, q Request) ([]byte, error) {
	plain, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	box, err := boxOf(key)
	if err != nil {
		return nil, err
	}
	return box.Seal(nil, nil, plain, []byte(pod+path)), nil
}

func boxOf(key []byte) (cipher.AEAD, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key has %d bytes, and needs %d", len(key), KeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Client calls loaders.
type Client struct {
	// HTTP must connect only to addresses of instances, and must have no timeout of its own.
	HTTP *http.Client
}

// Prepare returns once the server of the pod finds the files of the model. For an adapter, it returns their directory. The
// error has the words of the loader, which may have secrets of the request.
func (c *Client) Prepare(ctx context.Context, at runtime.Loader, q Request) (dir string, err error) {
	return c.call(ctx, at, preparePath, q)
}

// Discard removes a model from the repository of the pod's server.
func (c *Client) Discard(ctx context.Context, at runtime.Loader, name string) error {
	_, err := c.call(ctx, at, discardPath, Request{Name: name})
	return err
}

func (c *Client) call(ctx context.Context, at runtime.Loader, path string, q Request) (string, error) {
	sealed, err := seal(at.Key, at.Pod, path, q)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.Address+path, bytes.NewReader(sealed))
	if err != nil {
		return "", err
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		if known := (*url.Error)(nil); errors.As(err, &known) {
			err = known.Err
		}
		return "", fmt.Errorf("call the loader in the instance's pod: %w", err)
	}
	defer res.Body.Close()
	var a answer
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&a); err != nil {
		return "", fmt.Errorf("the loader in the instance's pod answered %s: %w", res.Status, err)
	}
	switch {
	case a.Error != "":
		return "", errors.New(a.Error)
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("the loader in the instance's pod answered %s", res.Status)
	}
	return a.Path, nil
}

// Config of a Loader.
type Config struct {
	// Store is the configuration of the store, in the directory of the volume.
	Store artifact.Config
	// Pod is the pod's UID, and the name of the store's only scope. Key is the key that the agent has, too.
	Pod string
	Key []byte
}

// Loader fetches files for the server of one pod. Make it with New.
type Loader struct {
	cfg   Config
	box   cipher.AEAD
	store *artifact.Store
	log   *slog.Logger

	mu sync.Mutex
	// prepared has the directory of the files of each model, by the model's name.
	prepared map[string]string
}

// New makes the repository of the server, and returns the loader.
func New(cfg Config) (*Loader, error) {
	box, err := boxOf(cfg.Key)
	if err != nil {
		return nil, err
	}
	l := &Loader{cfg: cfg, box: box, log: cfg.Store.Log, prepared: map[string]string{}}
	if l.store, err = artifact.Open(cfg.Store); err != nil {
		return nil, err
	}
	// The server has another user, so every user may read.
	scope, repository := artifact.ScopeDir(cfg.Store.Dir, cfg.Pod), runtime.PodRepository(cfg.Store.Dir, cfg.Pod)
	for _, dir := range []string{scope, filepath.Dir(repository), repository} {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			return nil, fmt.Errorf("make the repository of models: %w", err)
		}
	}
	l.store.KeepNeeded(l.needs)
	return l, nil
}

// needs implements the store's KeepNeeded.
func (l *Loader) needs(_, dir string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.prepared {
		if filepath.Base(at) == dir {
			return true
		}
	}
	return false
}

// Run deletes files that no model needs, until ctx ends.
func (l *Loader) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		err := l.store.Sweep(ctx, func(scope string) bool { return scope == l.cfg.Pod }, map[string]bool{server: true})
		if err != nil && ctx.Err() == nil {
			l.log.WarnContext(ctx, "cannot delete files of models that are not needed any more", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ServeHTTP answers the agent, and the kubelet at runtime.LoaderReadyPath.
func (l *Loader) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == runtime.LoaderReadyPath {
		return
	}
	a, status := l.answer(w, r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the agent calls again
}

func (l *Loader) answer(w http.ResponseWriter, r *http.Request) (answer, int) {
	sealed, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		return answer{Error: "the request cannot be read"}, http.StatusBadRequest
	}
	plain, err := l.box.Open(nil, nil, sealed, []byte(l.cfg.Pod+r.URL.Path))
	if err != nil {
		return answer{Error: "the loader in the instance's pod has another key than the agent: restart the instance, and let the agents of the region share a credential (--credential-secret)"}, http.StatusForbidden
	}
	var q Request
	if err := json.Unmarshal(plain, &q); err != nil {
		return answer{Error: "the request cannot be read: update the agent and its --loader-image together"}, http.StatusBadRequest
	}
	switch r.URL.Path {
	case preparePath:
		a, err := l.prepare(r.Context(), q)
		if err != nil {
			return answer{Error: err.Error()}, http.StatusBadGateway
		}
		return a, http.StatusOK
	case discardPath:
		if err := l.discard(q.Name); err != nil {
			return answer{Error: "cannot remove the model from the repository of its server"}, http.StatusInternalServerError
		}
		return answer{}, http.StatusOK
	}
	return answer{Error: "the loader does not know this request: update the agent and its --loader-image together"}, http.StatusNotFound
}

func (l *Loader) prepare(ctx context.Context, q Request) (answer, error) {
	at := artifact.DirOf(q.Reference)
	l.mu.Lock()
	was, had := l.prepared[q.Name]
	l.prepared[q.Name] = at // it is needed from now on
	l.mu.Unlock()
	dir, err := l.store.Fetch(ctx, l.cfg.Pod, q.Workspace, q.Reference, q.Credentials)
	if err == nil && !q.Adapter {
		err = l.store.Link(l.cfg.Pod, server, q.Name, dir)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		// The partial files stay for a while, because the agent tries again.
		if had {
			l.prepared[q.Name] = was
		}
		return answer{}, err
	}
	if q.Adapter {
		return answer{Path: dir}, nil
	}
	return answer{}, nil
}

func (l *Loader) discard(name string) error {
	l.mu.Lock()
	delete(l.prepared, name)
	l.mu.Unlock()
	return l.store.Unlink(l.cfg.Pod, server, name)
}
