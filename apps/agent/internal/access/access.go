// Package access makes the certificates between the region's agent and the gateways, Envoys and
// gRPC clients of other hosts. A client's certificate proves that the client may read the region's
// routes. The agent's certificate proves that it is the region's agent. Each agent has its own CA.
// It stores the CA together with the one client certificate that it issues:
//
//	ca.key   the CA's key, which only the agent may read
//	ca.crt   the CA's certificate, which clients trust
//	tls.crt  the clients' certificate
//	tls.key  the key of the clients' certificate
package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// The names of the files, as in a Kubernetes Secret for TLS.
const (
	caCert     = "ca.crt"
	caKey      = "ca.key"
	clientCert = "tls.crt"
	clientKey  = "tls.key"
)

// clientName is the name in the client certificate that the agent issues.
const clientName = "gateway"

// renewWithin is the remaining life at which the client certificate is issued again.
const renewWithin = authority.Life / 5

// Store stores the files. Put fails if another writer has changed the files since Get returned
// version.
type Store interface {
	Get(ctx context.Context) (files map[string][]byte, version string, err error)
	Put(ctx context.Context, files map[string][]byte, version string) error
}

// Open returns the agent's CA. It makes the files that the store does not have yet. It issues a new
// client certificate if the old one ends soon.
func Open(ctx context.Context, store Store, now time.Time) (*authority.Authority, error) {
	files, version, err := store.Get(ctx)
	if err != nil {
		return nil, err
	}
	var ca *authority.Authority
	made := map[string][]byte{}
	if len(files) == 0 {
		if ca, err = authority.New("windlass agent", now); err != nil {
			return nil, err
		}
		if made[caCert], made[caKey], err = ca.PEM(); err != nil {
			return nil, err
		}
	} else {
		for _, name := range []string{caCert, caKey} {
			if len(files[name]) == 0 {
				return nil, fmt.Errorf("access of gateways: %s is missing: remove the other files, too, and give the new files to gateways", name)
			}
		}
		if ca, err = authority.Parse(files[caCert], files[caKey]); err != nil {
			return nil, fmt.Errorf("access of gateways: %w", err)
		}
	}
	if len(made) == 0 && isGood(files, ca, now) {
		return ca, nil
	}
	made[clientCert], made[clientKey], err = ca.Issue(authority.Request{Name: clientName, Client: true, Life: authority.Life}, now)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(made)
	for name, data := range files {
		if all[name] == nil {
			all[name] = data
		}
	}
	return ca, store.Put(ctx, all, version)
}

// isGood reports whether the client certificate is still valid when renewWithin has passed.
func isGood(files map[string][]byte, ca *authority.Authority, now time.Time) bool {
	pair, err := tls.X509KeyPair(files[clientCert], files[clientKey])
	if err != nil {
		return false
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: now.Add(renewWithin),
	})
	return err == nil
}

// Config returns the TLS settings of the agent's listeners, with certificates of the CA.
func Config(ca *authority.Authority) *tls.Config {
	pool := ca.Pool()
	return certfile.Mutual(ca.Serve, func() (*x509.CertPool, error) { return pool, nil })
}

// Folder is a Store on disk.
type Folder string

// Get implements Store.
func (f Folder) Get(context.Context) (map[string][]byte, string, error) {
	out := map[string][]byte{}
	for _, name := range []string{caCert, caKey, clientCert, clientKey} {
		data, err := os.ReadFile(filepath.Join(string(f), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("access of gateways: %w", err)
		}
		out[name] = data
	}
	return out, "", nil
}

// Put implements Store. The agent's lock on its data directory prevents other writers. If the
// folder does not exist, Put makes it with all files at once.
func (f Folder) Put(_ context.Context, files map[string][]byte, _ string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("access of gateways: %w", err)
		}
	}()
	if _, err := os.Stat(string(f)); err == nil {
		return write(string(f), files)
	}
	parent, name := filepath.Split(filepath.Clean(string(f)))
	next, err := os.MkdirTemp(parent, "."+name+"-*") // its mode is 0700
	if err != nil {
		return err
	}
	if err := write(next, files); err != nil {
		return errors.Join(err, os.RemoveAll(next))
	}
	return os.Rename(next, string(f))
}

// write replaces the files in the folder. After a crash, the client certificate and its key may not
// match, and Open then issues a new pair.
func write(dir string, files map[string][]byte) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := disk.Dir(dir).Replace(name, files[name]); err != nil {
			return err
		}
	}
	return nil
}
