// Package certfile makes TLS configurations from PEM files. It reads changed files again, so that
// certificates are renewed without a restart. New handshakes use the new files, and open connections keep
// their keys.
//
// If a changed file cannot be read, the error is logged, and the old content stays in use. To replace a CA, keep
// the old and the new CA in one file for a while.
//
// Programs embed the flag structs, so that every listener and every client has the same flags under its own
// prefix.
package certfile

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// PairFlags are the flags for a listener's certificate, under a prefix that ends in "tls-". A program may set
// the variables of the help with kong's tag: set:"listener=--peer-listen".
type PairFlags struct {
	Cert string `name:"cert" help:"PEM file with the certificate of ${listener=the listener}, and the CAs that it chains to. Read again when it changes. Default: ${no_cert=no TLS}." type:"path" env:"TLS_CERT"`
	Key  string `name:"key" help:"PEM file with the key of that certificate." type:"path" env:"TLS_KEY"`
}

// ServerFlags are the flags of a listener. Their help has variables, like that of PairFlags.
type ServerFlags struct {
	PairFlags `embed:"" prefix:"tls-"`
	ClientCA  string `name:"client-ca" help:"${client_ca=PEM file with the CAs of client certificates. A client without a certificate from one of them is refused. Default: clients need none.}" type:"path" env:"CLIENT_CA"`
	Insecure  bool   `name:"insecure" help:"${insecure=Listen without TLS on an address that other machines reach, because TLS ends in front of this program.}" env:"INSECURE"`
}

// Listener names a listener in errors.
type Listener struct {
	// Prefix begins the names of its ServerFlags, such as "peer-".
	Prefix string
	// Flag is the flag of the address, such as "--listen". Address is its value.
	Flag, Address string
}

// Config returns the configuration of a server, or nil without TLS. Credentials travel over these
// connections. So an address beyond loopback needs a certificate, unless Insecure says that TLS ends
// elsewhere.
func (f ServerFlags) Config(l Listener, files *Files) (*tls.Config, error) {
	flag := "--" + l.Prefix
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, fmt.Errorf("%stls-cert and %stls-key: give both or neither", flag, flag)
	case f.Cert == "" && f.ClientCA != "":
		return nil, fmt.Errorf("%sclient-ca: client certificates need TLS: give %stls-cert and %stls-key too", flag, flag, flag)
	case f.Cert == "" && !f.Insecure && !Loopback(l.Address):
		return nil, fmt.Errorf("%s=%s is reached by other machines, without TLS: give %stls-cert and %stls-key, or %sinsecure if TLS ends in front of this program", l.Flag, l.Address, flag, flag, flag)
	case f.Cert == "":
		return nil, nil //nolint:nilnil // nil means no TLS
	}
	pair, err := files.Pair(f.Cert, f.Key, flag+"tls-cert")
	if err != nil {
		return nil, fmt.Errorf("%stls-cert: %w", flag, err)
	}
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get() }
	if f.ClientCA == "" {
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get}, nil
	}
	cas, err := files.Pool(f.ClientCA, flag+"client-ca")
	if err != nil {
		return nil, fmt.Errorf("%sclient-ca: %w", flag, err)
	}
	config := Mutual(get, cas.Get)
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error { return explainClient(verify(state), state, cas) }
	return config, nil
}

// Mutual returns the configuration of a server that requires client certificates from the CAs that cas
// returns.
func Mutual(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), cas func() (*x509.CertPool, error)) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: get,
		// RequireAnyClientCert and not RequireAndVerify, because ClientCAs is fixed for the life
		// of a configuration. VerifyConnection also runs for resumed sessions.
		ClientAuth:       tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error { return verifyClient(cas, state) },
	}
}

// ClientFlags are the flags of clients of the control plane.
type ClientFlags struct {
	ServerCA string `name:"server-ca" help:"PEM file with the CAs of the server's certificate. Read again when it changes. Default: the CAs of this machine." type:"path" env:"WINDLASS_SERVER_CA"`
	Cert     string `name:"client-cert" help:"PEM file with a client certificate, for a server that has --client-ca. Read again when it changes." type:"path" env:"WINDLASS_CLIENT_CERT"`
	Key      string `name:"client-key" help:"PEM file with the key of --client-cert." type:"path" env:"WINDLASS_CLIENT_KEY"`
	Insecure bool   `name:"insecure" help:"Allow an http:// URL of another machine. Keys and secrets are then sent without encryption." env:"WINDLASS_INSECURE"`
}

// CheckURL returns an error for a URL over which a credential would travel in clear to another machine.
func (f ClientFlags) CheckURL(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server %q is not a URL such as https://windlass.example.com", server)
	}
	if u.Scheme == "http" && !f.Insecure && !Loopback(u.Host) {
		return fmt.Errorf("server %s would get the credential in clear: use https://, or --insecure if the way there is private", server)
	}
	return nil
}

// Config returns the configuration of a client of the server, or nil without TLS.
func (f ClientFlags) Config(server string, files *Files) (*tls.Config, error) {
	return Client{
		CA: f.ServerCA, Cert: f.Cert, Key: f.Key, CAFlag: "--server-ca", CertFlag: "--client-cert", KeyFlag: "--client-key",
	}.Config(server, files)
}

// Client has the TLS files of a client of one server. The flags name the files in errors.
type Client struct {
	CA, Cert, Key             string
	CAFlag, CertFlag, KeyFlag string
}

// Config returns the configuration of a client of the URL, or nil without TLS.
func (c Client) Config(server string, files *Files) (*tls.Config, error) {
	opened, err := c.open(files)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("server %q is not a URL: %w", server, err)
	}
	if u.Scheme != "https" {
		return nil, nil //nolint:nilnil // nil means no TLS
	}
	return opened.clientConfig(u.Hostname()), nil
}

// opened has the opened files of a client.
type opened struct {
	own    *Pair // nil without a client certificate
	cas    *Pool // nil for the CAs of this machine
	caFlag string
}

func (c Client) open(files *Files) (out opened, err error) {
	if (c.Cert == "") != (c.Key == "") {
		return out, fmt.Errorf("%s and %s: give both or neither", c.CertFlag, c.KeyFlag)
	}
	out.caFlag = c.CAFlag
	if c.Cert != "" {
		if out.own, err = files.Pair(c.Cert, c.Key, c.CertFlag); err != nil {
			return out, fmt.Errorf("%s: %w", c.CertFlag, err)
		}
	}
	if c.CA != "" {
		if out.cas, err = files.Pool(c.CA, c.CAFlag); err != nil {
			return out, fmt.Errorf("%s: %w", c.CAFlag, err)
		}
	}
	return out, nil
}

// clientConfig returns the configuration of a client of one host. At each handshake it verifies the server against
// the present CAs. host is verified when ConnectionState has no ServerName, which is so for IP addresses.
func (o opened) clientConfig(host string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.own != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.own.getValid(time.Now()) }
	}
	config.InsecureSkipVerify = true // VerifyConnection verifies, because RootCAs is fixed for the life of a configuration
	config.VerifyConnection = func(state tls.ConnectionState) error {
		var roots *x509.CertPool // nil for this machine's CAs
		if o.cas != nil {
			var err error
			if roots, err = o.cas.Get(); err != nil {
				return err
			}
		}
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server sent no certificate")
		}
		leaf, intermediates := peerChain(state)
		name := cmp.Or(state.ServerName, host)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: name}); err != nil {
			// The error has crypto/tls's type, so that callers can handle it.
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: explainServer(err, leaf, name, o.cas, o.caFlag)}
		}
		return nil
	}
	return config
}

func peerChain(state tls.ConnectionState) (leaf *x509.Certificate, intermediates *x509.CertPool) {
	intermediates = x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	return state.PeerCertificates[0], intermediates
}

// Holder returns the name in the certificate of a verified peer: the common name, or else the first DNS name,
// the first URI or the serial number.
func Holder(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	leaf := state.PeerCertificates[0]
	switch {
	case leaf.Subject.CommonName != "":
		return leaf.Subject.CommonName
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.URIs) > 0:
		return leaf.URIs[0].String()
	default:
		return "serial-" + leaf.SerialNumber.Text(16)
	}
}

// verifyClient verifies the client's chain against the CAs.
func verifyClient(cas func() (*x509.CertPool, error), state tls.ConnectionState) error {
	roots, err := cas()
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client sent no certificate")
	}
	leaf, intermediates := peerChain(state)
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// Loopback reports whether only this machine can reach the host or host:port.
func Loopback(address string) bool {
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
