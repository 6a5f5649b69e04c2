// Package certfile makes TLS configurations from PEM files that are read again when they
// change, so that certificates are renewed without a restart and without a broken
// connection: a new handshake uses the new files, an open connection keeps its keys.
//
// A changed file that cannot be read leaves the one before in use, and is logged. The CAs
// that a client trusts are the exception: they are read once, because crypto/tls takes them
// once, so a bundle holds the old and the new CA while a CA is replaced.
//
// The flag structs are embedded by the programs, so that every listener and every client
// has the same flags under its own prefix.
package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// ServerFlags of a listener.
type ServerFlags struct {
	Cert     string `name:"tls-cert" help:"PEM file with the certificate of the listener, and the CAs that it chains to. Read again when it changes." type:"path" env:"TLS_CERT"`
	Key      string `name:"tls-key" help:"PEM file with the key of --tls-cert." type:"path" env:"TLS_KEY"`
	ClientCA string `name:"client-ca" help:"PEM file with the CAs of client certificates. A client without a certificate from one of them is refused. Default: clients need none." type:"path" env:"CLIENT_CA"`
	Insecure bool   `name:"insecure" help:"Listen without TLS on an address that other machines reach, because TLS ends in front of this program." env:"INSECURE"`
}

// Config of a server on the address, nil for one without TLS. Keys and credentials
// travel over these connections, so an address beyond loopback without a certificate is an
// error unless Insecure says that TLS ends elsewhere.
func (f ServerFlags) Config(address string, log *slog.Logger) (*tls.Config, error) {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, errors.New("--tls-cert and --tls-key: give both or neither")
	case f.Cert == "" && f.ClientCA != "":
		return nil, errors.New("--client-ca: client certificates need TLS: give --tls-cert and --tls-key too")
	case f.Cert == "" && !f.Insecure && !loopback(address):
		return nil, fmt.Errorf("--listen=%s is reached by other machines, without TLS: give --tls-cert and --tls-key, or --insecure if TLS ends in front of this program", address)
	case f.Cert == "":
		return nil, nil //nolint:nilnil // no TLS is what was asked for
	}
	pair := &Pair{Cert: f.Cert, Key: f.Key, Log: log}
	if _, err := pair.Get(); err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get() },
	}
	if f.ClientCA == "" {
		return config, nil
	}
	cas := &Pool{Path: f.ClientCA, Log: log}
	if _, err := cas.Get(); err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	// RequireAnyClientCert and not RequireAndVerify, because ClientCAs is fixed for the life
	// of a configuration. VerifyConnection also runs for resumed sessions.
	config.ClientAuth = tls.RequireAnyClientCert
	config.VerifyConnection = func(state tls.ConnectionState) error { return verifyClient(cas, state) }
	return config, nil
}

// ClientFlags of what calls the control plane.
type ClientFlags struct {
	ServerCA string `name:"server-ca" help:"PEM file with the CAs of the server's certificate, read at the start. Default: the CAs of this machine." type:"path" env:"WINDLASS_SERVER_CA"`
	Cert     string `name:"client-cert" help:"PEM file with a client certificate, for a server that has --client-ca. Read again when it changes." type:"path" env:"WINDLASS_CLIENT_CERT"`
	Key      string `name:"client-key" help:"PEM file with the key of --client-cert." type:"path" env:"WINDLASS_CLIENT_KEY"`
	Insecure bool   `name:"insecure" help:"Call an http:// URL of another machine. Keys and secrets then travel in clear." env:"WINDLASS_INSECURE"`
}

// CheckURL refuses a URL over which a credential would travel in clear to another
// machine.
func (f ClientFlags) CheckURL(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server %q is not a URL such as https://windlass.example.com", server)
	}
	if u.Scheme == "http" && !f.Insecure && !loopback(u.Host) {
		return fmt.Errorf("server %s would get the credential in clear: use https://, or --insecure if the way there is private", server)
	}
	return nil
}

// Config of a client, nil for the defaults.
func (f ClientFlags) Config(log *slog.Logger) (*tls.Config, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("--client-cert and --client-key: give both or neither")
	}
	if f.ServerCA == "" && f.Cert == "" {
		return nil, nil //nolint:nilnil // the defaults are what was asked for
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.Cert != "" {
		pair := &Pair{Cert: f.Cert, Key: f.Key, Log: log}
		if _, err := pair.Get(); err != nil {
			return nil, fmt.Errorf("--client-cert: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get() }
	}
	if f.ServerCA != "" {
		roots, err := (&Pool{Path: f.ServerCA}).Get()
		if err != nil {
			return nil, fmt.Errorf("--server-ca: %w", err)
		}
		config.RootCAs = roots
	}
	return config, nil
}

// verifyClient verifies the client's chain against the CAs.
func verifyClient(cas *Pool, state tls.ConnectionState) error {
	roots, err := cas.Get()
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client sent no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err = state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// loopback reports whether only this machine reaches the host or host:port.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
