package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/windlass-run/windlass/apps/gateway/internal/certificates"
	"github.com/windlass-run/windlass/apps/gateway/internal/proxy"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// certificateChooser returns the chooser between the gateway's own certificate and ACME certificates. The chooser
// uses each of the two only if the config enables it.
func (g *Gateway) certificateChooser() (choose certificates.Chooser, err error) {
	if g.cfg.TLSCert != "" {
		if choose.Own, err = g.cfg.Files.Pair(g.cfg.TLSCert, g.cfg.TLSKey, "--tls-cert"); err != nil {
			return choose, fmt.Errorf("--tls-cert: %w", err)
		}
	}
	c := g.cfg.ACME
	if c == nil {
		return choose, nil
	}
	var serverTLS *tls.Config
	if c.Roots != "" {
		if serverTLS, err = (certfile.Client{CA: c.Roots, CAFlag: "--acme-roots"}).Config(c.Directory, g.cfg.Files); err != nil {
			return choose, err
		}
	}
	g.acme, err = certificates.NewACME(certificates.Config{
		Directory: c.Directory, Email: c.Email, TLS: serverTLS, Folder: c.Folder,
		Routed:    func(host string) bool { return g.table.Lookup(host) != nil },
		Hosts:     func() []string { return g.hostsWithout(choose.Own) },
		UserAgent: "windlass-gateway/" + g.cfg.Version, Log: g.cfg.Log, Registerer: g.cfg.Registerer, Rand: g.cfg.Rand,
	})
	choose.ACME = g.acme
	return choose, err
}

// hostsWithout returns the hosts that the gateway's own certificate does not cover. It leaves out previews. It also
// leaves out hosts of apps that only other regions have, because DNS may lead only to those regions.
func (g *Gateway) hostsWithout(own *certfile.Pair) (out []string) {
	covered := func(string) bool { return false }
	if own != nil {
		if cert, err := own.Get(); err == nil {
			covered = func(host string) bool { return cert.Leaf.VerifyHostname(host) == nil }
		}
	}
	for _, spec := range g.table.Specs() {
		if spec.Elsewhere {
			continue
		}
		for _, host := range spec.Hosts {
			if !covered(host) {
				out = append(out, host)
			}
		}
	}
	return out
}

// newHandler returns the handler of all requests: the proxy, and for requests without TLS also the redirect and the
// answers to ACME challenges.
func (g *Gateway) newHandler() http.Handler {
	plain := http.Handler(g.proxy)
	if g.cfg.RedirectPort != 0 {
		plain = http.HandlerFunc(g.redirectToTLS)
	}
	if g.acme != nil {
		plain = g.acme.Handler(plain)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil {
			g.proxy.ServeHTTP(w, r)
			return
		}
		if proxy.Doubtful(r) { // for redirects and challenges; the proxy does the same for its requests
			w.Header().Set("Connection", "close")
		}
		plain.ServeHTTP(w, r)
	})
}

// redirectsPlain reports whether listeners without TLS redirect or answer ACME challenges.
func (g *Gateway) redirectsPlain() bool { return g.cfg.RedirectPort != 0 || g.acme != nil }

// redirectToTLS redirects the client to HTTPS, unless a trusted proxy says that the client already came by
// HTTPS.
func (g *Gateway) redirectToTLS(w http.ResponseWriter, r *http.Request) {
	host := table.Host(r.Host)
	if g.table.Lookup(host) == nil || r.Header.Get("X-Forwarded-Proto") == "https" && g.isTrusted(r.RemoteAddr) {
		g.proxy.ServeHTTP(w, r)
		return
	}
	if g.cfg.RedirectPort != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(g.cfg.RedirectPort))
	}
	target := r.URL.RequestURI()
	if !strings.HasPrefix(target, "/") { // as in OPTIONS *
		target = "/"
	}
	// After 308 a client repeats a POST as a POST.
	http.Redirect(w, r, "https://"+host+target, http.StatusPermanentRedirect)
}

func (g *Gateway) isTrusted(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range g.cfg.Trusted {
		if p.Contains(at.Addr().Unmap()) {
			return true
		}
	}
	return false
}
