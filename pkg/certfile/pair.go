package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkEvery is the minimum time between checks of the files' modification times. It may be long, because
// certificates are renewed days before they end.
const checkEvery = 10 * time.Second

// Pair is a certificate and its key in PEM files. It is safe for concurrent use.
type Pair struct {
	Cert, Key string
	// Flag is the flag that names Cert, for errors and metrics.
	Flag string
	// Log receives an error when a changed file cannot be read, and when the certificate has ended. It may be
	// nil.
	Log *slog.Logger

	watched watched[*tls.Certificate]
	mu      sync.Mutex
	ended   *tls.Certificate // the certificate whose end was logged last
}

// Get returns the certificate, with its Leaf. It fails only if no pair was ever read.
func (p *Pair) Get() (*tls.Certificate, error) {
	pair, err := p.watched.get(p.Log, func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", p.Cert, p.Key, err)
		}
		return &pair, nil
	}, p.Cert, p.Key)
	if err == nil && p.Log != nil {
		p.logEnd(pair, time.Now())
	}
	return pair, err
}

// logEnd logs once that the certificate has ended. It is still used, because some clients do not check it,
// and because a program that refused to start could not use a renewed certificate.
func (p *Pair) logEnd(pair *tls.Certificate, now time.Time) {
	if !now.After(pair.Leaf.NotAfter) {
		return
	}
	p.mu.Lock()
	said := p.ended == pair
	p.ended = pair
	p.mu.Unlock()
	if !said {
		p.Log.Error("the certificate has ended and the other side refuses it; replace the file with a new certificate, which is used without a restart",
			"file", p.Cert, "flag", p.Flag, "ended", pair.Leaf.NotAfter.UTC())
	}
}

// getValid returns the certificate of a client. It returns an error if the certificate has ended, because the
// server would only say that the certificate is bad.
func (p *Pair) getValid(now time.Time) (*tls.Certificate, error) {
	pair, err := p.Get()
	if err != nil {
		return nil, err
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("the client certificate %s (%s) ended on %s: replace the file with a new certificate, which is used without a restart",
			p.Cert, p.Flag, dateText(pair.Leaf.NotAfter))
	}
	return pair, nil
}

func (p *Pair) expiresAt() (time.Time, bool) {
	pair, err := p.Get()
	if err != nil {
		return time.Time{}, false
	}
	return pair.Leaf.NotAfter, true
}

// Pool is a PEM file of CA certificates. It is safe for concurrent use.
type Pool struct {
	Path string
	// Flag is the flag that names Path, for errors and metrics.
	Flag string
	// Log receives an error when a changed file cannot be read. It may be nil.
	Log *slog.Logger

	watched watched[bundle]
}

// bundle is the content of a Pool's file. firstEnd is when the first of its CAs ends.
type bundle struct {
	pool     *x509.CertPool
	firstEnd time.Time
}

// Get returns the CAs. It fails only if the file was never read.
func (p *Pool) Get() (*x509.CertPool, error) {
	b, err := p.get()
	return b.pool, err
}

func (p *Pool) get() (bundle, error) {
	return p.watched.get(p.Log, func() (bundle, error) {
		data, err := os.ReadFile(p.Path)
		if err != nil {
			return bundle{}, fmt.Errorf("CA certificates: %w", err)
		}
		out := bundle{pool: x509.NewCertPool()}
		if !out.pool.AppendCertsFromPEM(data) {
			return bundle{}, fmt.Errorf("CA certificates: %s has no certificate in PEM", p.Path)
		}
		out.firstEnd = firstEnd(data)
		return out, nil
	}, p.Path)
}

func (p *Pool) expiresAt() (time.Time, bool) {
	b, err := p.get()
	return b.firstEnd, err == nil
}

// firstEnd returns the time at which the first of the certificates ends.
func firstEnd(data []byte) (first time.Time) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if block.Type == "CERTIFICATE" && err == nil && (first.IsZero() || cert.NotAfter.Before(first)) {
			first = cert.NotAfter
		}
	}
	return first
}

// watched is a value that is read from files, and read again when they change.
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
		// The stamp is not changed, so that the next check tries again.
		log.Error("cannot read a changed TLS file; using the previous content", "error", err)
	}
	return w.current, nil
}
