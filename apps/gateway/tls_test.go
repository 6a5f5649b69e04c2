package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

// certify writes a certificate for echo.local and its key, and returns a pool that trusts the certificate.
func certify(t *testing.T, dir string) *x509.CertPool {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"echo.local"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	write := func(name, kind string, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
	}
	write("cert.pem", "CERTIFICATE", der)
	write("key.pem", "PRIVATE KEY", private)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

func TestHTTP2_ServesAndStreamsOverTLS(t *testing.T) {
	dir := t.TempDir()
	roots := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.HSTS = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), time.Hour
		c.SlowClient = 2 * time.Second
	})
	next := make(chan struct{})
	r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		_, _ = io.WriteString(w, q.Header.Get("X-Forwarded-Proto")+" "+string(body)+" ")
		w.(http.Flusher).Flush()
		<-next // longer than SlowClient, but it is the instance that is slow
		_, _ = io.WriteString(w, "end")
	})))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "echo.local"}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	r.url = "https://" + r.gateway.Addresses()[1].String()
	res, err := client.Do(r.request(t, http.MethodPost, "/", "hello"))
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 2, res.ProtoMajor)
	require.Equal(t, []string{"max-age=3600"}, res.Header["Strict-Transport-Security"])
	begun := make([]byte, len("https hello "))
	_, err = io.ReadFull(res.Body, begun)
	require.NoError(t, err)
	require.Equal(t, "https hello ", string(begun))
	time.AfterFunc(2500*time.Millisecond, func() { close(next) })
	rest, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, "end", string(rest))
}

func TestHTTP3_IsAdvertisedAndServed(t *testing.T) {
	dir := t.TempDir()
	roots := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.HTTP3 = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), true
	})
	release := make(chan struct{})
	r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		_, _ = io.WriteString(w, string(body)+" ")
		if q.URL.Path == "/stream" {
			w.(http.Flusher).Flush()
			<-release
		}
		_, _ = io.WriteString(w, "end")
	})))
	config := &tls.Config{RootCAs: roots, ServerName: "echo.local"}
	over2 := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer over2.CloseIdleConnections()
	address := r.gateway.Addresses()[1].String()
	r.url = "https://" + address
	r.client = &http.Client{Transport: over2, Timeout: patience}
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
		return strings.HasPrefix(res.Header.Get("Alt-Svc"), `h3=":`+port+`"`)
	}, patience, 10*time.Millisecond)

	over3 := &http3.Transport{TLSClientConfig: config}
	defer over3.Close()
	r.client = &http.Client{Transport: over3, Timeout: patience}
	res, body := r.do(t, r.request(t, http.MethodPost, "/", "hello"))
	require.Equal(t, 3, res.ProtoMajor)
	require.Equal(t, "hello end", body)

	// A gateway that stops lets a stream continue to its end.
	stream, err := r.client.Do(r.request(t, http.MethodPost, "/stream", "long"))
	require.NoError(t, err)
	defer stream.Body.Close()
	begun := make([]byte, len("long "))
	_, err = io.ReadFull(stream.Body, begun)
	require.NoError(t, err)
	r.stop()
	r.until(t, func() bool {
		for _, leaving := range r.leaving {
			if leaving {
				return true
			}
		}
		return false
	})
	close(release)
	rest, err := io.ReadAll(stream.Body)
	require.NoError(t, err)
	require.Equal(t, "end", string(rest))
	r.wait(t)
}

func TestFlags_ErrorsNameTheInvalidFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"--agent":                                 {},
		"use unix:PATH":                           {"--agent", "somewhere"},
		"--tls-listen needs":                      {"--agent", "unix:/x", "--tls-listen", "127.0.0.1:0"},
		"--tls-cert and --tls-key: set both":      {"--agent", "unix:/x", "--tls-cert", "/x"},
		"need --tls-listen":                       {"--agent", "unix:/x", "--tls-cert", "/x", "--tls-key", "/x"},
		"--acme-directory needs --tls-listen":     {"--agent", "unix:/x", "--acme-directory", "https://a.test/dir"},
		"--acme-directory needs --acme-agree":     {"--agent", "unix:/x", "--acme-directory", "https://a.test/dir", "--tls-listen", "127.0.0.1:0"},
		"--acme-directory needs --acme-folder":    {"--agent", "unix:/x", "--acme-directory", "https://a.test/dir", "--tls-listen", "127.0.0.1:0", "--acme-agree"},
		"--acme-directory=\"http://a.test\": use": {"--agent", "unix:/x", "--acme-directory", "http://a.test", "--tls-listen", "127.0.0.1:0", "--acme-agree"},
		"--acme-folder need --acme-directory":     {"--agent", "unix:/x", "--acme-email", "a@b.test"},
		"--https-redirect needs --tls-listen":     {"--agent", "unix:/x", "--https-redirect", "443"},
		"--https-redirect=-1: use":                {"--agent", "unix:/x", "--https-redirect=-1"},
		"--engine must be one of":                 {"--agent", "unix:/x", "--engine", "iouring"},
		"--engine=epoll cannot be combined with":  {"--agent", "unix:/x", "--listen", "127.0.0.1:0", "--engine", "epoll", "--tls-listen", "127.0.0.1:0", "--tls-cert", "/x", "--tls-key", "/x", "--https-redirect", "443"},
		"--max-header-bytes=1: use 4096":          {"--agent", "unix:/x", "--max-header-bytes", "1"},
		"--slow-client=1ms: use 1s or more":       {"--agent", "unix:/x", "--slow-client", "1ms"},
		"--min-body-rate and --min-answer-rate:":  {"--agent", "unix:/x", "--min-body-rate=-1"},
		"--max-connections=-2: use":               {"--agent", "unix:/x", "--max-connections=-2"},
		"--upgraded-idle=1ms: use 1s or more":     {"--agent", "unix:/x", "--upgraded-idle", "1ms"},
		"--drain-timeout=0s: use a positive":      {"--agent", "unix:/x", "--drain-timeout", "0s"},
		"--drain-delay=-1s: use 0":                {"--agent", "unix:/x", "--drain-delay=-1s"},
		"--http3 needs --tls-listen":              {"--agent", "unix:/x", "--http3"},
		"--payload-log-max-mib and":               {"--agent", "unix:/x", "--payload-log-keep", "0"},
		"--hsts=-1s: use 0":                       {"--agent", "unix:/x", "--hsts=-1s"},
		`--trusted-proxies="10.0.0.0/99"`:         {"--agent", "unix:/x", "--trusted-proxies", "10.0.0.0/99"},
		`listen for HTTP on "nowhere.invalid:x"`:  {"--agent", "unix:/x", "--listen", "nowhere.invalid:x"},
		"certificate /none with key /none":        {"--agent", "unix:/x", "--tls-listen", "127.0.0.1:0", "--tls-cert", "/none", "--tls-key", "/none", "--listen", "127.0.0.1:0"},
	} {
		err := gateway.Main(t.Context(), args)
		require.ErrorContains(t, err, want)
	}
}
