package certfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority is a CA with its certificate in a file.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	path string
}

func newAuthority(t *testing.T, name string) authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), name+".pem")
	writePEM(t, path, "CERTIFICATE", der)
	return authority{cert: cert, key: key, path: path}
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue writes a pair for the common name and for 127.0.0.1.
func (a authority) issue(t *testing.T, certPath, keyPath, name string, usage x509.ExtKeyUsage) {
	a.issueUntil(t, certPath, keyPath, name, usage, time.Now().Add(time.Hour))
}

func (a authority) issueUntil(t *testing.T, certPath, keyPath, name string, usage x509.ExtKeyUsage, end time.Time) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	writePEM(t, keyPath, "EC PRIVATE KEY", private)
	writePEM(t, certPath, "CERTIFICATE", der)
	// Otherwise, two writes within the clock's resolution would count as one change.
	past := time.Now().Add(-time.Duration(time.Now().UnixNano() % int64(time.Hour)))
	require.NoError(t, os.Chtimes(certPath, past, past))
}

func TestPair(t *testing.T) {
	ca := newAuthority(t, "ca")
	dir := t.TempDir()
	pair := &Pair{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Log: slog.New(slog.DiscardHandler)}
	name := func() string {
		cert, err := pair.Get()
		require.NoError(t, err)
		return cert.Leaf.Subject.CommonName
	}
	elapse := func() { pair.watched.checked = time.Time{} }

	_, err := pair.Get()
	require.ErrorContains(t, err, pair.Cert, "a pair that was never read is an error")
	ca.issue(t, pair.Cert, pair.Key, "first", x509.ExtKeyUsageServerAuth)
	require.Equal(t, "first", name(), "an error is not remembered")
	ca.issue(t, pair.Cert, pair.Key, "second", x509.ExtKeyUsageServerAuth)
	require.Equal(t, "first", name(), "files are checked only every checkEvery")
	elapse()
	require.Equal(t, "second", name(), "a renewed pair is used")
	writePEM(t, pair.Cert, "CERTIFICATE", []byte("half written"))
	elapse()
	require.Equal(t, "second", name(), "while a pair cannot be read, the previous pair is used")
	ca.issue(t, pair.Cert, pair.Key, "third", x509.ExtKeyUsageServerAuth)
	elapse()
	require.Equal(t, "third", name())
}

// serve starts a server with the flags, which answers 200, and returns its URL.
func serve(t *testing.T, flags ServerFlags) string {
	config, err := flags.Config(Listener{Flag: "--listen", Address: "10.0.0.1:7700"}, nil)
	require.NoError(t, err)
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }),
	}
	go func() { _ = server.Serve(tls.NewListener(inner, config)) }()
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return "https://" + inner.Addr().String()
}

func call(t *testing.T, flags ClientFlags, url string) error {
	config, err := flags.Config(url, nil)
	require.NoError(t, err)
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return get(t, config, url)
}

func copyFile(t *testing.T, from, to string) {
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

func get(t *testing.T, config *tls.Config, url string) error {
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func TestConfig(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ours.issue(t, file("cert"), file("key"), "server", x509.ExtKeyUsageServerAuth)
	ours.issue(t, file("client-cert"), file("client-key"), "client", x509.ExtKeyUsageClientAuth)
	theirs.issue(t, file("their-cert"), file("their-key"), "client", x509.ExtKeyUsageClientAuth)
	server := ServerFlags{PairFlags: PairFlags{Cert: file("cert"), Key: file("key")}}
	trusting := ClientFlags{ServerCA: ours.path}

	t.Run("only a client that knows the CA trusts the server", func(t *testing.T) {
		url := serve(t, server)
		require.NoError(t, call(t, trusting, url))
		require.ErrorContains(t, call(t, ClientFlags{ServerCA: theirs.path}, url), "unknown authority")
		require.ErrorContains(t, call(t, ClientFlags{}, url), "unknown authority")
	})
	t.Run("with client CAs only a client of one of them is served", func(t *testing.T) {
		mutual := server
		mutual.ClientCA = ours.path
		url := serve(t, mutual)
		require.Error(t, call(t, trusting, url), "no certificate")
		known, foreign, wrong := trusting, trusting, trusting
		known.Cert, known.Key = file("client-cert"), file("client-key")
		foreign.Cert, foreign.Key = file("their-cert"), file("their-key")
		wrong.Cert, wrong.Key = file("cert"), file("key")
		require.NoError(t, call(t, known, url))
		require.Error(t, call(t, foreign, url), "another CA's certificate")
		require.Error(t, call(t, wrong, url), "a server's certificate is not for clients")
	})
	t.Run("an invalid combination of flags is refused with the flag's name", func(t *testing.T) {
		for want, flags := range map[string]ServerFlags{
			"--tls-cert and --tls-key: give both":   {PairFlags: PairFlags{Cert: "a"}},
			"--client-ca: client certificates":      {ClientCA: "a"},
			"--tls-cert: certificate":               {PairFlags: PairFlags{Cert: file("none"), Key: file("none")}},
			"--client-ca: CA certificates":          {PairFlags: PairFlags{Cert: file("cert"), Key: file("key")}, ClientCA: file("key")},
			"--listen=:7700 is reached by other":    {},
			"or --insecure if TLS ends in front of": {},
		} {
			_, err := flags.Config(Listener{Flag: "--listen", Address: ":7700"}, nil)
			require.ErrorContains(t, err, want)
		}
		_, err := ClientFlags{Key: "a"}.Config("https://127.0.0.1", nil)
		require.ErrorContains(t, err, "--client-cert and --client-key: give both")
		_, err = ClientFlags{ServerCA: file("none")}.Config("https://127.0.0.1", nil)
		require.ErrorContains(t, err, "--server-ca: ")
	})
	t.Run("a listener's own prefix is in its errors", func(t *testing.T) {
		_, err := ServerFlags{}.Config(Listener{Prefix: "peer-", Flag: "--peer-listen", Address: ":7702"}, nil)
		require.ErrorContains(t, err, "--peer-listen=:7702 is reached by other machines, without TLS: give --peer-tls-cert and --peer-tls-key, or --peer-insecure")
	})
	t.Run("a CA that a client trusts is read again", func(t *testing.T) {
		url := serve(t, server)
		bundle := file("bundle")
		copyFile(t, theirs.path, bundle)
		cas := &Pool{Path: bundle}
		config := opened{cas: cas}.clientConfig("127.0.0.1")
		require.ErrorContains(t, get(t, config, url), "unknown authority")
		copyFile(t, ours.path, bundle)
		require.NoError(t, os.Chtimes(bundle, time.Unix(1, 0), time.Unix(1, 0)))
		cas.watched.checked = time.Time{}
		require.NoError(t, get(t, config, url))
	})
	t.Run("a certificate for another host is refused", func(t *testing.T) {
		_, port, err := net.SplitHostPort(strings.TrimPrefix(serve(t, server), "https://"))
		require.NoError(t, err)
		require.ErrorContains(t, call(t, trusting, "https://localhost:"+port), "localhost")
	})
	t.Run("without TLS only this machine is served and called, unless a flag allows more", func(t *testing.T) {
		for address, private := range map[string]bool{
			"127.0.0.1:7700": true, "localhost:7700": true, "[::1]:7700": true, "[::1]": true, "127.8.0.1": true, "[::ffff:127.0.0.1]:1": true,
			"0.0.0.0:7700": false, ":7700": false, "[::]:7700": false, "10.0.0.1:7700": false, "localhost.example.com:7700": false,
		} {
			_, err := ServerFlags{}.Config(Listener{Flag: "--listen", Address: address}, nil)
			require.Equal(t, private, err == nil, address)
			config, err := ServerFlags{Insecure: true}.Config(Listener{Flag: "--listen", Address: address}, nil)
			require.NoError(t, err)
			require.Nil(t, config)
			if host, _, err := net.SplitHostPort(address); err != nil || host != "" {
				require.Equal(t, private, ClientFlags{}.CheckURL("http://"+address) == nil, address)
				require.NoError(t, ClientFlags{Insecure: true}.CheckURL("http://"+address))
				require.NoError(t, ClientFlags{}.CheckURL("https://"+address))
			}
		}
		for _, bad := range []string{"", "windlass.example.com", "ftp://localhost", "http://"} {
			require.ErrorContains(t, ClientFlags{Insecure: true}.CheckURL(bad), "is not a URL such as")
		}
	})
}
