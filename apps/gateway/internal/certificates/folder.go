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

// folder keeps autocert's state, for one gateway or for several that share it. Of those, one at
// a time orders a host's certificate, or renews it, and the others use what it got, because a CA
// limits how many certificates a name gets.
//
// A turn is a lock that the kernel keeps. So a gateway that died does not hold up the others, and
// no clocks are compared. Where a file system has no locks between hosts, each gateway orders for
// itself.
type folder struct {
	autocert.DirCache
	log *slog.Logger
	// serves reports whether autocert has a certificate of the host in memory. Autocert then
	// reads the folder only to see whether it must renew the certificate.
	serves func(host string) bool

	lockless sync.Once
}

// takeTurn waits until no other gateway has the host's turn, and takes it. done gives it up.
func (f *folder) takeTurn(ctx context.Context, host string) (done func(), err error) {
	lock, err := flock.Acquire(ctx, filepath.Join(string(f.DirCache), "locks", host), nil)
	switch {
	case err == nil:
		return func() { _ = lock.Unlock() }, nil // it closes a file, and what fails then has closed it
	case ctx.Err() != nil:
		return nil, err
	}
	f.lockless.Do(func() {
		f.log.Warn("cannot lock the folder of certificates: gateways that share it order their own", "error", err)
	})
	return func() {}, nil
}

// hasCertificate reports whether the folder holds a valid certificate of the host.
func (f *folder) hasCertificate(ctx context.Context, host string) bool {
	v, ok := validityOf(f.DirCache.Get(ctx, host))
	return ok && time.Now().Before(v.to)
}

// Get implements autocert.Cache. If the certificate is due for renewal, Get takes the host's turn,
// and keeps it until the renewal is done or has failed, which ends ctx. Autocert holds a lock of
// all hosts while it reads a certificate that is not in its memory yet. Get must not wait then:
// ACME.first has taken the turn before.
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

// validityOf returns the validity of what autocert keeps for a host: its key and certificates in PEM.
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

// errTurn: see folder.turn.
var errTurn = errors.New("another gateway with the same folder of certificates is ordering it")
