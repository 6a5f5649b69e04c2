package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/acme/autocert"

	"github.com/windlass-run/windlass/pkg/flock"
)

// folder keeps autocert's state, for one gateway or for several gateways that share it. Only the gateway that has a
// host's turn orders or renews the host's certificate. The other gateways use the result, because a CA limits how
// many certificates a name gets.
//
// A turn is a lock that the kernel keeps. So a gateway that died does not block the other gateways, and
// no clocks are compared. If the file system has no locks between machines, each gateway orders
// certificates for itself.
type folder struct {
	autocert.DirCache
	log *slog.Logger
	// serves reports whether autocert has a certificate of the host in memory. Autocert then
	// reads the folder only to see whether it must renew the certificate.
	serves func(host string) bool

	lockless sync.Once
}

// takeTurn waits until no other gateway has the host's turn, and takes the turn. done releases it.
func (f *folder) takeTurn(ctx context.Context, host string) (done func(), err error) {
	lock, err := flock.Acquire(ctx, filepath.Join(string(f.DirCache), "locks", host), nil)
	switch {
	case err == nil:
		return func() { _ = lock.Unlock() }, nil // even if Unlock fails, the file is closed
	case ctx.Err() != nil:
		return nil, err
	}
	f.lockless.Do(func() {
		f.log.Warn("cannot lock the folder of certificates: each gateway that shares it orders its own certificates", "error", err)
	})
	return func() {}, nil
}

// hasCertificate reports whether the folder holds a valid certificate of the host.
func (f *folder) hasCertificate(ctx context.Context, host string) bool {
	v, ok := validityOf(f.DirCache.Get(ctx, host))
	return ok && time.Now().Before(v.to)
}

// Get implements autocert.Cache. If the certificate is due for renewal, Get takes the host's turn. It keeps the turn
// until ctx ends, because autocert ends ctx when the renewal is done or has failed. While autocert reads a
// certificate that is not in its memory yet, autocert holds a lock of all hosts. Get must not wait then. It need not
// wait either, because loadOrOrder has taken the turn before.
func (f *folder) Get(ctx context.Context, key string) ([]byte, error) {
	data, err := f.DirCache.Get(ctx, key)
	v, ok := validityOf(data, err)
	if !ok || !f.serves(key) || !v.isDue(time.Now()) {
		return data, err
	}
	done, err := f.takeTurn(ctx, key)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, done)
	return f.DirCache.Get(ctx, key)
}

// validityOf returns the validity of a host's certificate. data is what autocert keeps for the host: its
// private key and certificates in PEM.
func validityOf(data []byte, err error) (v validity, ok bool) {
	if err != nil {
		return v, false
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil || pair.Leaf == nil {
		return v, false
	}
	return validity{from: pair.Leaf.NotBefore, to: pair.Leaf.NotAfter}, true
}

var _ autocert.Cache = (*folder)(nil)

// errTurn is the error of a wait for folder.takeTurn that took too long.
var errTurn = errors.New("another gateway that shares the folder of certificates is still ordering this one")
