package gateway_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log" //nolint:depguard // Pebble requires a log.Logger
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// acmeServer is a Pebble, the test server for ACME clients by Let's Encrypt. Its DNS resolves each name to this
// machine.
type acmeServer struct {
	*httptest.Server

	roots  *x509.CertPool // the CA of the certificates that the server issues
	file   string         // the file with the CA of the server's own certificate
	orders atomic.Int64
	// together delays the first orders until the channel is full. See hold.
	together atomic.Pointer[chan struct{}]
	handler  atomic.Pointer[http.Handler]
}

// startACME starts an ACME server. Until validate is called, it answers 503.
func startACME(t *testing.T) *acmeServer {
	s := &acmeServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "order-plz") {
			s.orders.Add(1)
			s.wait(t)
		}
		if h := s.handler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
		} else {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	s.file = filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(s.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	return s
}

// hold delays the first n orders until all of them are under way.
func (s *acmeServer) hold(n int) {
	together := make(chan struct{}, n)
	s.together.Store(&together)
}

func (s *acmeServer) wait(t *testing.T) {
	p := s.together.Load()
	if p == nil {
		return
	}
	select {
	case *p <- struct{}{}:
	default:
		return // all of the first orders are under way, or have ended
	}
	for end := time.Now().Add(patience); len(*p) < cap(*p); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d of %d orders are under way", len(*p), cap(*p))
			return
		}
	}
}

// validate makes the server issue certificates that are valid for the time valid. It validates challenges at the
// ports plain (HTTP) and secure (TLS).
func (s *acmeServer) validate(t *testing.T, plain, secure int, valid time.Duration) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	names := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1)}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = names.ActivateAndServe() }()
	t.Cleanup(func() { _ = names.Shutdown() })

	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: uint64(valid / time.Second)}})
	front := wfe.New(quiet, store, va.New(quiet, plain, secure, false, l.Addr().String(), store), issuer, []string{"ca.test"}, false, false, 1, 1)
	handler := front.Handler()
	s.handler.Store(&handler)
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(issuer.GetRootCert(0).PEM())
}

func (s *acmeServer) config(dir string) *gateway.ACME {
	return &gateway.ACME{Directory: s.URL + "/dir", Roots: s.file, Email: "ops@example.test", Folder: filepath.Join(dir, "certificates")}
}

func port(a net.Addr) int { return a.(*net.TCPAddr).Port }

// handshake returns the gateway's certificate for the host. It fails if roots did not issue the certificate.
func handshake(r *running, host string, roots *x509.CertPool) (*x509.Certificate, error) {
	d := &net.Dialer{Timeout: patience}
	c, err := tls.DialWithDialer(d, "tcp", r.gateway.Addresses()[1].String(), &tls.Config{RootCAs: roots, ServerName: host})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}

func (s *acmeServer) until(t *testing.T, r *running, host string, holds func(*x509.Certificate) bool) *x509.Certificate {
	t.Helper()
	var last error
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		cert, err := handshake(r, host, s.roots)
		if last = err; err == nil && holds(cert) {
			return cert
		}
	}
	t.Fatalf("no such certificate for %s in time: %v", host, last)
	return nil
}

func whichever(*x509.Certificate) bool { return true }

func TestACME_CertificatesAreForRoutedHosts(t *testing.T) { //nolint:tparallel // its subtests share a port that nothing listens on
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	unused := port(dead.Addr())
	require.NoError(t, dead.Close())
	for _, way := range []string{"http-01", "tls-alpn-01"} {
		t.Run(way, func(t *testing.T) {
			server := startACME(t)
			var cfg gateway.Config
			r := start(t, func(c *gateway.Config) {
				c.TLSListen, c.ACME, c.RedirectPort = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)), 443
				cfg = *c
			})
			plain, secure := port(r.gateway.Addresses()[0]), port(r.gateway.Addresses()[1])
			if way == "http-01" {
				secure = unused
			} else {
				plain = unused
			}
			server.validate(t, plain, secure, time.Hour)
			app := echo(instance(t, named("one")))
			app.Hosts = []string{"chat.example.test", "local", "app.localhost"}
			r.put(t, app)
			cert := server.until(t, r.running, "chat.example.test", whichever)
			require.Equal(t, []string{"chat.example.test"}, cert.DNSNames)

			ordered := server.orders.Load()
			for _, host := range []string{"other.example.test", "local", "app.localhost", ""} {
				_, err := handshake(r.running, host, server.roots)
				require.Error(t, err, host)
			}
			require.Equal(t, ordered, server.orders.Load(), "a client cannot make the gateway order a certificate for a host without a route")

			// HTTPS is served with the certificate, and HTTP redirects to HTTPS.
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: server.roots, ServerName: "chat.example.test"}}
			defer transport.CloseIdleConnections()
			https := &http.Client{Transport: transport, Timeout: patience}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.gateway.Addresses()[1].String(), http.NoBody)
			require.NoError(t, err)
			req.Host = "chat.example.test"
			res, err := https.Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, "one", string(body))
			r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			for host, location := range map[string]string{"chat.example.test": "https://chat.example.test/a?b=c", "unknown.test": ""} {
				req := r.request(t, http.MethodPost, "/a?b=c", "{}")
				req.Host = host
				res, _ := r.do(t, req)
				require.Equal(t, location, res.Header.Get("Location"), host)
				if location != "" {
					require.Equal(t, http.StatusPermanentRedirect, res.StatusCode)
				}
			}

			// After a restart the gateway has the certificate without an order and without the ACME server.
			r.stop()
			r.wait(t)
			server.Close()
			again := startGateway(t, r.dir, "127.0.0.1:0", func(c *gateway.Config) {
				c.TLSListen, c.ACME = cfg.TLSListen, cfg.ACME
			})
			require.Equal(t, cert.SerialNumber, server.until(t, again, "chat.example.test", whichever).SerialNumber)
			require.Equal(t, ordered, server.orders.Load())
		})
	}
}

func TestACME_CertificatesAreRenewedWhileTheyServe(t *testing.T) {
	t.Parallel()
	server := startACME(t)
	r := start(t, func(c *gateway.Config) { c.TLSListen, c.ACME = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)) })
	server.validate(t, port(r.gateway.Addresses()[0]), port(r.gateway.Addresses()[1]), 20*time.Second)
	app := echo(instance(t, named("one")))
	app.Hosts = []string{"chat.example.test"}
	r.put(t, app)
	first := server.until(t, r.running, "chat.example.test", whichever)
	second := server.until(t, r.running, "chat.example.test", func(c *x509.Certificate) bool { return c.SerialNumber.Cmp(first.SerialNumber) != 0 })
	require.True(t, second.NotAfter.After(first.NotAfter))
}

// Package certfile reads its files again when they change, and has a metric for each file.
func TestOrder_ReadsTheCAsOfAnACMEServerAgain(t *testing.T) {
	server, files := startACME(t), certfile.NewFiles(slog.New(slog.DiscardHandler))
	start(t, func(c *gateway.Config) {
		c.TLSListen, c.ACME, c.Files = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)), files
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(files)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Contains(t, families[0].String(), fmt.Sprintf("%q", server.file))
	require.Contains(t, families[0].String(), "acme-roots")
}

// Gateways that share a folder order each certificate of a host once: the first certificate and each renewal.
func TestOrder_IsMadeOnceByGatewaysThatShareAFolder(t *testing.T) {
	t.Parallel()
	server := startACME(t)
	config := func(c *gateway.Config) { c.TLSListen, c.ACME = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)) }
	r := start(t, config)
	var others []*running
	for range 2 {
		others = append(others, startGateway(t, t.TempDir(), "127.0.0.1:0", func(c *gateway.Config) {
			c.Agent = "unix:" + filepath.Join(r.dir, "gateway.sock")
			config(c)
			c.ACME.Folder = filepath.Join(r.dir, "certificates")
		}))
	}
	// All challenges come to one gateway.
	server.validate(t, port(r.gateway.Addresses()[0]), port(r.gateway.Addresses()[1]), 30*time.Second)
	app := echo(instance(t, named("one")))
	app.Hosts = []string{"a.example.test", "b.example.test", "c.example.test"}
	server.hold(len(app.Hosts))
	r.put(t, app)
	first := map[string]*x509.Certificate{}
	for _, host := range app.Hosts {
		first[host] = server.until(t, r.running, host, whichever)
		for _, other := range others {
			require.Equal(t, first[host].SerialNumber, server.until(t, other, host, whichever).SerialNumber, host)
		}
	}
	require.EqualValues(t, len(app.Hosts), server.orders.Load())
	for _, host := range app.Hosts {
		renewed := func(c *x509.Certificate) bool { return c.SerialNumber.Cmp(first[host].SerialNumber) != 0 }
		second := server.until(t, r.running, host, renewed)
		for _, other := range others {
			require.Equal(t, second.SerialNumber, server.until(t, other, host, renewed).SerialNumber, host)
		}
	}
	require.EqualValues(t, 2*len(app.Hosts), server.orders.Load())
}

func TestACME_OrdersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	server := startACME(t)
	r := start(t, func(c *gateway.Config) { c.TLSListen, c.ACME = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)) })
	server.validate(t, port(r.gateway.Addresses()[0]), port(r.gateway.Addresses()[1]), time.Hour)
	app := echo(instance(t, named("one")))
	app.Hosts = []string{"a.example.test", "b.example.test", "c.example.test"}
	server.hold(len(app.Hosts))
	r.put(t, app)
	for end := time.Now().Add(2 * patience); server.orders.Load() < int64(len(app.Hosts)); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d were ordered", server.orders.Load())
	}
	for _, host := range app.Hosts {
		server.until(t, r.running, host, whichever)
	}
	require.EqualValues(t, len(app.Hosts), server.orders.Load())
}

func TestCertificate_OwnIsPreferredToACME(t *testing.T) {
	t.Parallel()
	server := startACME(t)
	dir := t.TempDir()
	own := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		c.ACME = server.config(filepath.Dir(c.StateFile))
	})
	server.validate(t, port(r.gateway.Addresses()[0]), port(r.gateway.Addresses()[1]), time.Hour)
	app := echo(instance(t, named("one")))
	app.Hosts = []string{"chat.example.test", "echo.local"}
	r.put(t, app)
	server.until(t, r.running, "chat.example.test", whichever)
	_, err := handshake(r.running, "echo.local", own)
	require.NoError(t, err)
	require.EqualValues(t, 1, server.orders.Load(), "no certificate is ordered for a host of the operator's own certificate")
}

func TestOrder_FailedIsRetriedLater(t *testing.T) {
	server := startACME(t)
	r := start(t, func(c *gateway.Config) { c.TLSListen, c.ACME = "127.0.0.1:0", server.config(filepath.Dir(c.StateFile)) })
	server.Close()
	app := echo(instance(t, named("one")))
	app.Hosts = []string{"chat.example.test"}
	r.put(t, app)
	failed := func() float64 {
		n := 0.0
		families, err := r.registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "windlass_gateway_certificate_failures_total" {
				for _, m := range f.Metric {
					n += m.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	for end := time.Now().Add(2 * patience); failed() == 0; time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "no order has failed yet")
		_, _ = handshake(r.running, "chat.example.test", x509.NewCertPool())
	}
	for range 20 {
		_, err := handshake(r.running, "chat.example.test", x509.NewCertPool())
		require.Error(t, err)
	}
	require.InDelta(t, 1, failed(), 0, "the next order is due after some time")
	want := bytes.NewBufferString("# HELP windlass_gateway_certificate_expires_seconds Unix time at which the first of the ACME certificates in use expires. 0: none is in use.\n" +
		"# TYPE windlass_gateway_certificate_expires_seconds gauge\nwindlass_gateway_certificate_expires_seconds 0\n")
	require.NoError(t, testutil.GatherAndCompare(r.registry, want, "windlass_gateway_certificate_expires_seconds"))
	_, body := r.do(t, func() *http.Request {
		req := r.request(t, http.MethodGet, "/", "")
		req.Host = "chat.example.test"
		return req
	}())
	require.Equal(t, "one", body, "requests without TLS are served")
}
