package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// secures reports whether the stack of a test has TLS on its ports, except those of instances. Without
// WINDLASS_TLS, half of the tests have TLS, selected by their names. So one run covers both cases.
func secures(test string) bool {
	if v := os.Getenv("WINDLASS_TLS"); v != "" {
		return v == "1"
	}
	name, _, _ := strings.Cut(test, "/")
	return crc32.ChecksumIEEE([]byte(name))%2 == 0
}

// web returns the URL of an address of a stack.
func (s *stack) web(address string) string {
	if s.secure {
		return "https://" + address
	}
	return "http://" + address
}

// hostOf returns the host and port of a URL.
func hostOf(url string) string {
	_, host, _ := strings.Cut(url, "://")
	return host
}

// trust is the TLS of the tests' own clients, which trust both CAs.
var trust = sync.OnceValues(func() (*tls.Config, error) {
	if w := work(); w.err != nil {
		return nil, w.err
	}
	cas, err := rootCAs()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(work().root, "ca.crt")
	if err := atomicfile.Write(file, slices.Concat(cas[0].CertPEM(), cas[1].CertPEM()), 0o644); err != nil {
		return nil, err
	}
	return certfile.ClientFlags{ServerCA: file}.Config("https://127.0.0.1", nil)
})

// rootCAs are the CA of all stacks of this process, and the CA that may replace it.
var rootCAs = sync.OnceValues(func() (cas [2]*authority.Authority, err error) {
	for i, name := range []string{"windlass e2e", "windlass e2e, the next"} {
		// Their expiry times differ, so the metric of a file shows which of them the file has.
		if cas[i], err = authority.New(name, time.Now().AddDate(0, 0, -i)); err != nil {
			return cas, err
		}
	}
	return cas, nil
})

// caFile returns the path of the file with the CAs that the parts of the stack trust.
func (s *stack) caFile() string { return filepath.Join(s.dir, "tls", "ca.crt") }

// trustInStack makes the parts trust the CAs.
func (s *stack) trustInStack(cas ...*authority.Authority) {
	s.t.Helper()
	var data []byte
	for _, ca := range cas {
		data = append(data, ca.CertPEM()...)
	}
	require.NoError(s.t, os.MkdirAll(filepath.Dir(s.caFile()), 0o700))
	require.NoError(s.t, atomicfile.Write(s.caFile(), data, 0o644))
}

// trustHere makes the shared clients of all tests trust the CAs.
func trustHere() error {
	config, err := trust()
	clientTLS = config
	plainHTTP.Transport.(*http.Transport).TLSClientConfig = config //nolint:forcetypeassert // it is created with this type
	return err
}

// certificate returns the path of the file with certificate and key of a part.
func (s *stack) certificate(part string) string { return filepath.Join(s.dir, "tls", part+".pem") }

// certify issues the certificate of a part. It also covers the hosts of apps, which are below the control
// plane's domain.
func (s *stack) certify(ca *authority.Authority, part string) {
	s.t.Helper()
	cert, key, err := ca.Issue(authority.Request{
		Name: part, Hosts: []string{"127.0.0.1", "localhost", "*.windlass.local"}, Server: true, Client: true, Life: time.Hour,
	}, time.Now())
	require.NoError(s.t, err)
	require.NoError(s.t, atomicfile.Write(s.certificate(part), append(cert, key...), 0o600))
}

// tlsArgs returns the flags of a part's certificate, with prefixes such as "--metrics-tls-".
func (s *stack) tlsArgs(part string, prefixes ...string) (out []string) {
	s.t.Helper()
	if !s.secure {
		return nil
	}
	if _, err := os.Stat(s.certificate(part)); err != nil {
		cas, err := rootCAs()
		require.NoError(s.t, err)
		s.certify(cas[0], part)
	}
	for _, prefix := range prefixes {
		out = append(out, prefix+"cert="+s.certificate(part), prefix+"key="+s.certificate(part))
	}
	return out
}

// caArgs returns the flags with the path of the CAs.
func (s *stack) caArgs(flags ...string) (out []string) {
	if !s.secure {
		return nil
	}
	for _, flag := range flags {
		out = append(out, flag+"="+s.caFile())
	}
	return out
}

// secureServers adds TLS to the servers that are not part of Windlass: MariaDB has its own TLS, and Restate
// gets a proxy.
func (s *stack) secureServers() {
	s.t.Helper()
	if !s.secure {
		return
	}
	cas, err := rootCAs()
	require.NoError(s.t, err)
	s.trustInStack(cas[0])
	s.tlsArgs(partMariaDB)
	s.tlsArgs(partRestate)
	s.mariadbConfig.TLS = &mariadb.TLS{CA: s.caFile(), Cert: s.certificate(partMariaDB), Key: s.certificate(partMariaDB)}
	s.restateConfig.Sockets, s.restateConfig.CA = true, s.caFile()
	s.restateConfig.IdentityKey = filepath.Join(s.dir, "tls", "identity.pem")
	key, err := restate.NewIdentity()
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(s.restateConfig.IdentityKey, key, 0o600))
	s.restateIdentity, err = restate.PublicIdentity(key)
	require.NoError(s.t, err)
	pair := s.certificate(partRestate)
	config, err := certfile.ServerFlags{PairFlags: certfile.PairFlags{Cert: pair, Key: pair}}.Config(certfile.Listener{}, nil)
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(context.Background())
	var fronts sync.WaitGroup
	s.stopFronts = func() { stop(); fronts.Wait() }
	for port, socket := range map[int]string{
		s.restateConfig.IngressPort: restate.IngressSocket(s.restateConfig.Dir), s.restateConfig.AdminPort: restate.AdminSocket(s.restateConfig.Dir),
	} {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address(port))
		require.NoError(s.t, err)
		fronts.Go(func() { _ = restate.Front{Listener: listener, TLS: config, Socket: socket}.Serve(ctx) })
	}
}

// httpsClient returns a client that trusts the CAs in the file. It verifies the certificate at the address
// for the host, without the port.
func httpsClient(caFile, address, host string) (*http.Client, error) {
	data, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s contains no CA certificate", caFile)
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = address
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: name}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}, nil
}
