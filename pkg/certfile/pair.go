package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkEvery is how often the modification times of the files are read. A handshake costs
// far more than that, and who renews a certificate leaves days, not seconds.
const checkEvery = 10 * time.Second

// Pair is a certificate and its key in PEM files. It is safe for concurrent use.
type Pair struct {
	Cert, Key string
	// Log gets an error when a changed file cannot be read; nil: no logger.
	Log *slog.Logger

	watched watched[*tls.Certificate]
}

// Get returns the certificate, with its Leaf. It fails only if no pair was ever read.
func (p *Pair) Get() (*tls.Certificate, error) {
	return p.watched.get(p.Log, func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", p.Cert, p.Key, err)
		}
		return &pair, nil
	}, p.Cert, p.Key)
}

// Pool is a PEM file of CA certificates. It is safe for concurrent use.
type Pool struct {
	Path string
	// Log gets an error when a changed file cannot be read; nil: no logger.
	Log *slog.Logger

	watched watched[*x509.CertPool]
}

// Get returns the CAs. It fails only if the file was never read.
func (p *Pool) Get() (*x509.CertPool, error) {
	return p.watched.get(p.Log, func() (*x509.CertPool, error) {
		pem, err := os.ReadFile(p.Path)
		if err != nil {
			return nil, fmt.Errorf("CA certificates: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA certificates: %s has no certificate in PEM", p.Path)
		}
		return pool, nil
	}, p.Path)
}

// watched is a value that is read again when the files that it is read from change.
type watched[T any] struct {
	mu      sync.Mutex
	checked time.Time
	stamp   [2]time.Time
	loaded  bool
	current T
}

func (w *watched[T]) get(log *slog.Logger, load func() (T, error), paths ...string) (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.loaded && now.Sub(w.checked) < checkEvery {
		return w.current, nil
	}
	w.checked = now
	var stamp [2]time.Time
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil {
			stamp[i] = info.ModTime()
		}
	}
	if w.loaded && stamp == w.stamp {
		return w.current, nil
	}
	loaded, err := load()
	switch {
	case err == nil:
		w.current, w.stamp, w.loaded = loaded, stamp, true
	case !w.loaded:
		return w.current, err
	case log != nil:
		// The stamp stays, so that the next look tries again.
		log.Error("changed TLS file cannot be read; the one before is used", "error", err)
	}
	return w.current, nil
}
