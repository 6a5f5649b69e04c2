package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
	"golang.org/x/sync/singleflight"

	"github.com/windlass-run/windlass/pkg/backoff"
)

const (
	// look is the time between two searches for hosts without a certificate.
	look = 15 * time.Second
	// callTimeout bounds one call to the ACME server; autocert bounds a whole order.
	callTimeout = 30 * time.Second
	// turnTimeout bounds the wait for another gateway's order, which takes at most that long.
	turnTimeout = 5 * time.Minute
	// atOnce bounds the orders that run at the same time before a client asks. An order takes seconds, or
	// minutes if the CA cannot reach the host, and must not delay the orders for other hosts. More than
	// atOnce would only reach the CA's limits sooner: Let's Encrypt takes 300 orders in three hours.
	atOnce = 8
)

// retry spaces out orders for one host.
var retry = backoff.Policy{Min: time.Minute, Max: 6 * time.Hour}

// Config of ACME.
type Config struct {
	// Directory is the URL of the ACME server's directory. Its terms of service are accepted.
	Directory string
	// Email is the address that the CA may write to; empty: none.
	Email string
	// TLS verifies the server's own certificate; nil: by the CAs of this machine.
	TLS *tls.Config
	// Folder keeps the account, certificates, their keys, and answers to challenges.
	Folder string
	// Routed reports whether an app has the host. Hosts returns the hosts whose certificates are
	// ordered before a client asks.
	Routed     func(host string) bool
	Hosts      func() []string
	UserAgent  string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Rand       func() float64
}

// ACME orders certificates and renews them. It is safe for concurrent use.
type ACME struct {
	cfg     Config
	folder  *folder
	manager *autocert.Manager
	orders  *prometheus.CounterVec
	firsts  singleflight.Group // by host

	mu       sync.Mutex
	failing  map[string]failure
	valid    map[string]validity
	ordering map[string]bool // hosts whose orders run before a client asks
}

// validity of a certificate that is in use.
type validity struct {
	from, to time.Time
	// told is when a log line last said that the certificate is not renewed.
	told time.Time
}

// renewalLead returns how long before its end the certificate is due for renewal. Autocert begins
// the renewal somewhat later.
func (v validity) renewalLead() time.Duration { return min(v.to.Sub(v.from)/3, 30*24*time.Hour) }

// isDue reports whether the certificate is due for renewal.
func (v validity) isDue(now time.Time) bool { return v.to.Sub(now) <= v.renewalLead() }

// isOverdue reports whether more than half of the time for renewal has passed. Autocert tries every hour
// and reports no failure. By then it has made many attempts.
func (v validity) isOverdue(now time.Time) bool { return v.to.Sub(now) < v.renewalLead()/2 }

// remind is the time between two log lines about a certificate that is overdue.
const remind = time.Hour

// failure of the last order for a host.
type failure struct {
	times int
	until time.Time
	err   error
}

// NewACME returns an ACME and creates cfg.Folder. It does not connect to the ACME server, which may start
// later.
func NewACME(cfg Config) (*ACME, error) {
	client := &acme.Client{DirectoryURL: cfg.Directory, UserAgent: cfg.UserAgent, HTTPClient: &http.Client{Timeout: callTimeout}}
	if cfg.TLS != nil {
		transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is, by its documentation
		transport.TLSClientConfig = cfg.TLS
		client.HTTPClient.Transport = transport
	}
	if err := os.MkdirAll(cfg.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("folder for certificates: %w", err)
	}
	a := &ACME{
		cfg: cfg, failing: map[string]failure{}, valid: map[string]validity{}, ordering: map[string]bool{},
	}
	orders, err := registerMetrics(cfg.Registerer, a.soonestEnd)
	if err != nil {
		return nil, err
	}
	a.orders = orders
	a.folder = &folder{DirCache: autocert.DirCache(cfg.Folder), log: cfg.Log, serves: a.hasCertificate}
	a.manager = &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: a.folder, HostPolicy: func(_ context.Context, host string) error { return a.checkKnown(host) }, Client: client, Email: cfg.Email,
	}
	return a, nil
}

// Handler answers http-01 challenges, and passes all other requests to next. It is for listeners without TLS.
func (a *ACME) Handler(next http.Handler) http.Handler { return a.manager.HTTPHandler(next) }

// NextProto is the protocol that a tls-alpn-01 challenge offers. tls.Config.NextProtos must contain it.
const NextProto = acme.ALPNProto

func isChallenge(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == NextProto
}

// isOrderable reports whether a public CA could issue a certificate for the host.
func isOrderable(host string) bool {
	return strings.Contains(host, ".") && !strings.HasSuffix(host, ".localhost") && net.ParseIP(host) == nil
}

// checkKnown returns an error unless this gateway routes the host and a CA could issue a certificate for it.
// It is called before an order, and before a challenge is answered. A challenge's host may contain a port.
func (a *ACME) checkKnown(host string) error {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !isOrderable(host) || !a.cfg.Routed(host) {
		return errUnknown
	}
	return nil
}

var errUnknown = errors.New("it is not a host of this region")

// whyWaits returns why no certificate may be ordered for the host now. nil: one may be ordered.
func (a *ACME) whyWaits(host string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.failing[host]; time.Now().Before(f.until) {
		return fmt.Errorf("its last order failed, and the next one is not due: %w", f.err)
	}
	return nil
}

// hasCertificate reports whether a certificate of the host is in memory.
func (a *ACME) hasCertificate(host string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.valid[host]
	return ok
}

// Get returns the host's certificate. It may wait for an order, which takes up to 5 min, and before that
// for the order of another gateway.
func (a *ACME) Get(host string) (*tls.Certificate, error) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if err := a.checkKnown(host); err != nil {
		return nil, err
	}
	if err := a.whyWaits(host); err != nil {
		return nil, err
	}
	if a.hasCertificate(host) {
		return a.obtainCertificate(host)
	}
	got, err, _ := a.firsts.Do(host, func() (any, error) {
		if err := a.whyWaits(host); err != nil {
			return nil, err
		}
		return a.loadOrOrder(host)
	})
	if err != nil {
		return nil, err
	}
	return got.(*tls.Certificate), nil //nolint:forcetypeassert // loadOrOrder returns one
}

// loadOrOrder returns the host's certificate from the folder, or else orders it. It takes the host's
// turn before the order, so that no other gateway orders it at the same time.
func (a *ACME) loadOrOrder(host string) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), turnTimeout)
	defer cancel()
	if !a.folder.hasCertificate(ctx, host) {
		done, err := a.folder.takeTurn(ctx, host)
		if err != nil {
			return nil, a.noteFailure(host, errTurn)
		}
		defer done()
	}
	return a.obtainCertificate(host)
}

// obtainCertificate returns autocert's certificate of the host: from memory, from the folder or by an order.
func (a *ACME) obtainCertificate(host string) (*tls.Certificate, error) {
	// Clients that speak TLS 1.2 accept ECDSA. With the hello of a client that supports only TLS 1.3, autocert would
	// order an RSA certificate.
	got, err := a.manager.GetCertificate(&tls.ClientHelloInfo{
		ServerName: host, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	})
	if err != nil {
		return nil, a.noteFailure(host, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failing, host)
	if got.Leaf != nil {
		v := a.valid[host]
		v.from, v.to = got.Leaf.NotBefore, got.Leaf.NotAfter
		a.valid[host] = v
	}
	return got, nil
}

// noteFailure records that the order for the host failed, and returns err.
func (a *ACME) noteFailure(host string, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.failing[host]
	if time.Now().Before(f.until) {
		return err // the failure of another handshake's order is recorded already
	}
	wait := retry.Delay(f.times, a.cfg.Rand)
	a.failing[host] = failure{times: f.times + 1, until: time.Now().Add(wait), err: err}
	a.orders.WithLabelValues(problemType(err)).Inc()
	a.cfg.Log.Error("cannot get a certificate; will try again", "host", host, "error", err, "retry_in", wait)
	return err
}

// problemType returns the last part of the problem type that the server sent, such as rateLimited.
func problemType(err error) string {
	if e, ok := errors.AsType[*acme.Error](err); ok && e.ProblemType != "" {
		return e.ProblemType[strings.LastIndexByte(e.ProblemType, ':')+1:]
	}
	if e, ok := errors.AsType[*acme.AuthorizationError](err); ok && len(e.Errors) > 0 {
		return problemType(e.Errors[len(e.Errors)-1])
	}
	return "other"
}

func (a *ACME) soonestEnd() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := time.Time{}
	for _, v := range a.valid {
		if first.IsZero() || v.to.Before(first) {
			first = v.to
		}
	}
	if first.IsZero() {
		return 0
	}
	return float64(first.Unix())
}

// forgetHosts removes the hosts that this region no longer has.
func (a *ACME) forgetHosts() {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.failing, func(host string, _ failure) bool { return !a.cfg.Routed(host) })
	maps.DeleteFunc(a.valid, func(host string, _ validity) bool { return !a.cfg.Routed(host) })
}

// Keep orders certificates for all hosts, at most atOnce at a time, until ctx ends. It loads the
// certificates of an earlier run from the folder, and autocert renews them. Keep goes through the hosts
// in a random sequence, so that gateways that share a folder seldom wait for each other.
func (a *ACME) Keep(ctx context.Context) error {
	slots := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
		a.forgetHosts()
		hosts := a.cfg.Hosts()
		slices.Sort(hosts)
		hosts = slices.Compact(hosts)
		for i := range hosts {
			j := i + int(a.cfg.Rand()*float64(len(hosts)-i))
			hosts[i], hosts[j] = hosts[j], hosts[i]
			switch host := hosts[i]; {
			case a.checkKnown(host) != nil || a.whyWaits(host) != nil:
			case a.hasCertificate(host):
				_, _ = a.Get(host) //nolint:contextcheck // Get has no context. It reads the end of a certificate that was renewed.
			default:
				a.orderCertificate(ctx, slots, host)
			}
		}
		for host, v := range a.overdueCertificates(time.Now()) {
			a.orders.WithLabelValues("renewal").Inc()
			a.cfg.Log.ErrorContext(ctx, "a certificate is not renewed: the ACME server must be able to reach this gateway at the host's port 80 or 443", "host", host, "ends", v.to)
		}
		_ = backoff.Sleep(ctx, look+time.Duration(a.cfg.Rand()*float64(look))) // the loop sees that ctx ended
	}
	return ctx.Err()
}

// overdueCertificates returns the certificates that are overdue and that no log line has named for the
// time remind.
func (a *ACME) overdueCertificates(now time.Time) map[string]validity {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]validity{}
	for host, v := range a.valid {
		if v.isOverdue(now) && now.Sub(v.told) >= remind {
			v.told = now
			a.valid[host], out[host] = v, v
		}
	}
	return out
}

// orderCertificate starts an order for the host's certificate as soon as a slot is free, unless an order
// for this host runs. When ctx ends, the order still runs to its end.
func (a *ACME) orderCertificate(ctx context.Context, slots chan struct{}, host string) {
	a.mu.Lock()
	begun := a.ordering[host]
	a.ordering[host] = true
	a.mu.Unlock()
	if begun {
		return
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	go func() { //nolint:contextcheck // the order must not end with ctx
		_, _ = a.Get(host) // noteFailure logs an error, and Keep tries again
		a.mu.Lock()
		delete(a.ordering, host)
		a.mu.Unlock()
		<-slots
	}()
}
