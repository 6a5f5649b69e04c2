package dev

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

const (
	// certificateLife is short, because dev renews certificates by itself. It is long enough for a machine that sleeps
	// overnight.
	certificateLife = 24 * time.Hour
	renewWithin     = 12 * time.Hour
	// renewPoll is the time between two checks of the certificates.
	renewPoll = time.Minute
)

// certificates are the files of `dev --tls`, in one folder:
//
//	ca.key, ca.crt    the CA of this data directory
//	PART.pem          certificate and key of a part, in one file, so that both change at once
//	identity.pem      key by which Restate signs its calls of the control plane
type certificates struct {
	dir string
	ca  *authority.Authority
}

func (l layout) tlsDir() string { return filepath.Join(l.root, "tls") }

// caFile returns the path of the CA that clients trust.
func (l layout) caFile() string { return filepath.Join(l.tlsDir(), "ca.crt") }

// openCertificates reads the CA, or creates one.
func openCertificates(l layout, now time.Time) (*certificates, error) {
	c := &certificates{dir: l.tlsDir()}
	keyFile := filepath.Join(c.dir, "ca.key")
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("--tls: %w", err)
	}
	key, keyErr := os.ReadFile(keyFile)
	cert, certErr := os.ReadFile(l.caFile())
	switch {
	case errors.Is(certErr, fs.ErrNotExist): // the certificate is written last
		var err error
		if c.ca, err = authority.New("windlass dev "+l.root, now); err != nil {
			return nil, err
		}
		if cert, key, err = c.ca.PEM(); err != nil {
			return nil, err
		}
		if err := atomicfile.Write(keyFile, key, 0o600); err != nil {
			return nil, err
		}
		return c, atomicfile.Write(l.caFile(), cert, 0o644)
	case keyErr != nil || certErr != nil:
		return nil, fmt.Errorf("--tls: read the CA: %w; remove %s for a new CA", errors.Join(keyErr, certErr), c.dir)
	}
	var err error
	if c.ca, err = authority.Parse(cert, key); err != nil {
		return nil, fmt.Errorf("--tls: read the CA: %w; remove %s for a new CA", err, c.dir)
	}
	return c, nil
}

// pairFile returns the file with certificate and key of a part, such as agent/us-east-1.
func (c *certificates) pairFile(part string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(part, "/", "-")+".pem")
}

// certificateHosts returns the hosts that every certificate contains. All parts are on this machine, and the hosts of
// apps are below hostsBelowTLS.
func certificateHosts() []string {
	return []string{"127.0.0.1", "::1", "localhost", "*.localhost", "*." + hostsBelowTLS}
}

// renewPairs writes the certificates that are missing or near their end, and returns their parts.
func (c *certificates) renewPairs(parts []string, now time.Time) (renewed []string, err error) {
	for _, part := range parts {
		if c.isCurrent(part, now) {
			continue
		}
		cert, key, err := c.ca.Issue(authority.Request{Name: part, Hosts: certificateHosts(), Server: true, Client: true, Life: certificateLife}, now)
		if err != nil {
			return renewed, err
		}
		if err := atomicfile.Write(c.pairFile(part), append(cert, key...), 0o600); err != nil {
			return renewed, fmt.Errorf("renew the certificate of %s: %w", part, err)
		}
		renewed = append(renewed, part)
	}
	return renewed, nil
}

// isCurrent reports whether a part has a certificate of the CA that is not near its end.
func (c *certificates) isCurrent(part string, now time.Time) bool {
	pair, err := tls.LoadX509KeyPair(c.pairFile(part), c.pairFile(part))
	if err != nil {
		return false
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: c.ca.Pool(), CurrentTime: now})
	return err == nil && now.Add(renewWithin).Before(pair.Leaf.NotAfter)
}

// ensureIdentity returns the path of the file with Restate's key, and the public key. It creates the key if
// it is missing.
func (c *certificates) ensureIdentity() (file, public string, err error) {
	file = filepath.Join(c.dir, "identity.pem")
	key, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if key, err = restate.NewIdentity(); err == nil {
			err = atomicfile.Write(file, key, 0o600)
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("--tls: %w", err)
	}
	public, err = restate.PublicIdentity(key)
	return file, public, err
}

// tlsParts returns the parts that have a certificate.
func (r *run) tlsParts() []string {
	out := []string{partMariaDB, partRestate, partControlPlane}
	for _, region := range r.regions {
		out = append(out, partAgent(region), partGateway(region))
	}
	return out
}

// These are the names of parts in the state file.
const (
	partMariaDB      = "mariadb"
	partRestate      = "restate"
	partControlPlane = "controlplane"
)

func partAgent(region string) string   { return "agent/" + region }
func partGateway(region string) string { return "gateway/" + region }

// openTLS creates the CA and the certificates for --tls, before any process starts.
func (r *run) openTLS() (err error) {
	if !r.tls {
		return nil
	}
	if r.certs, err = openCertificates(r.layout, time.Now()); err != nil {
		return err
	}
	_, err = r.certs.renewPairs(r.tlsParts(), time.Now())
	return err
}

// keepRenewing renews certificates until ctx ends. Programs reload their certificates by themselves.
func (r *run) keepRenewing(ctx context.Context) {
	said := ""
	tick := time.NewTicker(renewPoll)
	defer tick.Stop()
	reload := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed, err := r.certs.renewPairs(r.tlsParts(), time.Now())
		for _, part := range renewed {
			reload = reload || part == partMariaDB
		}
		if reload {
			if s := r.runningDatabase(); s != nil {
				bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
				reloadErr := s.ReloadTLS(bounded)
				cancel()
				reload = reloadErr != nil
				err = errors.Join(err, reloadErr)
			}
		}
		if err == nil {
			said = ""
		} else if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			r.reportWarning("certificates could not be renewed; trying again: " + said)
		}
	}
}

// tlsArgs returns the flags of a part's certificate, with prefixes such as "--metrics-tls-".
func (r *run) tlsArgs(part string, prefixes ...string) (out []string) {
	if !r.tls {
		return nil
	}
	for _, prefix := range prefixes {
		out = append(out, prefix+"cert="+r.certs.pairFile(part), prefix+"key="+r.certs.pairFile(part))
	}
	return out
}

// caArgs returns the given flags with the path of the CA, or nil without TLS.
func (r *run) caArgs(flags ...string) (out []string) {
	if !r.tls {
		return nil
	}
	for _, flag := range flags {
		out = append(out, flag+"="+r.layout.caFile())
	}
	return out
}

// caFile returns the path of the CA that clients of the dev trust. It is empty without TLS.
func (s State) caFile(l layout) string {
	if !s.TLS {
		return ""
	}
	return l.caFile()
}
