package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/certfile"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// These are the results of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
	// checkSkip means that the check was skipped, because an earlier check failed.
	checkSkip = "skipped"
)

// check is a line of `windlass doctor`.
type check struct {
	Name   string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	// Fix describes what the user can do about the result.
	Fix string `json:"fix,omitempty"`
}

const (
	// Doctor warns when a certificate or a key expires within these times.
	certificateWarning = 14 * 24 * time.Hour
	keyWarning         = 7 * 24 * time.Hour
	// Tokens, leases and certificates tolerate clocks that differ by a few seconds.
	skewWarning = 5 * time.Second
	skewFailure = time.Minute
	// doctorTimeout is the timeout of requests that doctor sends without the API's clients.
	doctorTimeout = 10 * time.Second
)

var errCheckFailed = errors.New("a check failed: see the fix above")

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check the connection to the control plane, the key, clocks, versions and regions", Args: cobra.NoArgs,
		Long: `Doctor checks, in this order, the configuration of this command, the server's name, its
certificate, the key, the clocks, the versions of this command, the control plane and the
agents, and the regions. Each finding says what to do. Nothing is changed.

The exit code is 1 if a check fails. Warnings are not failures.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := a.runChecks(cmd.Context())
			if err := a.showChecks(checks); err != nil {
				return err
			}
			for _, c := range checks {
				if c.Result == checkFail {
					return errCheckFailed
				}
			}
			return nil
		},
	}
}

func (a *app) showChecks(checks []check) error {
	if a.output != "table" {
		return a.showValue(map[string][]check{"checks": checks})
	}
	return a.showMessage(nil, func(w *tabwriter.Writer) {
		writeRow(w, "CHECK", "RESULT", "DETAIL")
		for _, c := range checks {
			writeRow(w, c.Name, c.Result, c.Detail)
			if c.Fix != "" {
				writeRow(w, "", "", "fix: "+c.Fix)
			}
		}
	})
}

// runChecks runs the checks. It skips checks that depend on a failed check.
func (a *app) runChecks(ctx context.Context) []check {
	var checks []check
	add := func(c check) bool {
		checks = append(checks, c)
		return c.Result != checkFail
	}
	skip := func(names ...string) []check {
		for _, name := range names {
			add(check{Name: name, Result: checkSkip, Detail: "a check that it needs has failed"})
		}
		return checks
	}
	if !add(a.checkContext(ctx)) {
		return skip("name", "certificate", "key", "clock", "versions", "regions")
	}
	if !add(checkName(ctx, a.target.Server)) {
		return skip("certificate", "key", "clock", "versions", "regions")
	}
	p, err := a.probeServer(ctx)
	if !add(checkCertificate(a.target.Server, p, err)) {
		return skip("key", "clock", "versions", "regions")
	}
	who, err := a.clients.access.WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	if !add(checkKey(who, err, time.Now())) {
		return skip("clock", "versions", "regions")
	}
	add(checkClock(p))
	add(checkVersions(a.Version, who.ServerVersion))
	return append(checks, a.checkRegions(ctx, who.ServerVersion)...)
}

// checkContext checks that there is a context, and that other users cannot read its key.
func (a *app) checkContext(ctx context.Context) check {
	c := check{Name: "context", Result: checkOK}
	if err := a.connect(ctx); err != nil {
		return check{c.Name, checkFail, firstLine(err.Error()), "Run `windlass login`, or set WINDLASS_SERVER and WINDLASS_API_KEY."}
	}
	c.Detail = a.target.Server
	if a.target.Name != "" {
		c.Detail = a.target.Name + ": " + c.Detail
	}
	path, err := a.configPath()
	if err != nil {
		return c
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		c.Result = checkWarn
		c.Detail += fmt.Sprintf("; other users can read the keys in %s (mode %04o)", path, info.Mode().Perm())
		c.Fix = "chmod 600 " + path
	}
	return c
}

// checkName resolves the server's name.
func checkName(ctx context.Context, server string) check {
	c := check{Name: "name", Result: checkOK}
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" {
		return check{c.Name, checkFail, fmt.Sprintf("%q is not the URL of a server", server), "Give `windlass login` a URL such as https://windlass.example.com."}
	}
	if net.ParseIP(u.Hostname()) != nil {
		c.Detail = u.Hostname() + " is an address"
		return c
	}
	if proxy := proxyOf(u); proxy != nil {
		c.Detail = "the proxy " + proxy.Host + " resolves " + u.Hostname()
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, u.Hostname())
	if err != nil {
		return check{c.Name, checkFail, firstLine(err.Error()), "Correct the server's name with `windlass login`, or the DNS of this machine."}
	}
	c.Detail = u.Hostname() + " is " + strings.Join(addresses, ", ")
	return c
}

// proxyOf returns the proxy of the clients' calls to a server, nil for none. Calls without TLS have
// none, because they are h2c (rpc.NewHTTPClient).
func proxyOf(server *url.URL) *url.URL {
	if server.Scheme != "https" {
		return nil
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: server})
	if err != nil {
		return nil
	}
	return proxy
}

// probe is the server's answer to any request.
type probe struct {
	date string
	// certificates is empty without TLS.
	certificates []*x509.Certificate
	// before and after are the times between which the server answered.
	before, after time.Time
}

// probeServer sends a request to the server, with the proxy and the TLS configuration of the clients.
func (a *app) probeServer(ctx context.Context) (probe, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(a.target.Server, "/")+"/", http.NoBody)
	if err != nil {
		return probe{}, err
	}
	p := probe{before: time.Now()}
	answer, err := a.http.Do(req)
	if err != nil {
		return probe{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	p.after, p.date = time.Now(), answer.Header.Get("Date")
	if answer.TLS != nil {
		p.certificates = answer.TLS.PeerCertificates
	}
	return p, nil
}

// checkCertificate checks the connection and when the server's certificates expire.
func checkCertificate(server string, p probe, err error) check {
	c := check{Name: "certificate", Result: checkOK}
	if err != nil {
		return check{c.Name, checkFail, firstLine(err.Error()), reachHint(err)}
	}
	if len(p.certificates) == 0 {
		c.Detail = "none: the server uses plain HTTP"
		if u, err := url.Parse(server); err != nil || !certfile.Loopback(u.Host) {
			c.Result, c.Fix = checkWarn, "Keys cross the network without encryption. Give the control plane --tls-cert and --tls-key."
		}
		return c
	}
	first := p.certificates[0]
	for _, cert := range p.certificates {
		if cert.NotAfter.Before(first.NotAfter) {
			first = cert
		}
	}
	left := time.Until(first.NotAfter)
	c.Detail = fmt.Sprintf("valid until %s", first.NotAfter.UTC().Format(time.RFC3339))
	if left < certificateWarning {
		c.Result, c.Fix = checkWarn, fmt.Sprintf("Renew the control plane's --tls-cert: %s expires in %s.", first.Subject.CommonName, durationText(left))
	}
	return c
}

// checkKey checks the answer to WhoAmI: whether the API answers, accepts the key, and when the key expires.
func checkKey(who *windlassv1.WhoAmIResponse, err error, now time.Time) check {
	c := check{Name: "key", Result: checkOK}
	if err != nil {
		detail, fix, _ := strings.Cut(Explain(err), "\n")
		if fix == "" {
			fix = "Run `windlass login` with a key that is valid."
		}
		return check{c.Name, checkFail, detail, strings.ReplaceAll(fix, "\n", " ")}
	}
	key := who.GetKey()
	c.Detail = fmt.Sprintf("%s, %s", orDash(key.GetName()), strings.ToLower(strings.TrimPrefix(key.GetRole().String(), "ROLE_")))
	if who.GetWorkspaceName() != "" {
		c.Detail += " of workspace " + who.GetWorkspaceName()
	}
	if key.GetRole() == windlassv1.Role_ROLE_VIEWER {
		c.Detail += ": reads only"
	}
	if key.GetExpiresAt() > 0 {
		left := time.UnixMilli(key.GetExpiresAt()).Sub(now)
		c.Detail += ", expires in " + durationText(left)
		if left < keyWarning {
			c.Result, c.Fix = checkWarn, "Ask an owner to create a new key: `windlass key create NAME --role ROLE`."
		}
	}
	return c
}

// checkClock compares this machine's clock with the Date of an answer.
func checkClock(p probe) check {
	date, err := http.ParseTime(p.date)
	if err != nil {
		return check{"clock", checkWarn, "the server's answer has no date", "Compare the clocks of this machine and the control plane by hand."}
	}
	return clockCheck(date, p.before, p.after)
}

// clockCheck compares the server's date, which has whole seconds, with this machine's clock before the request and
// after the answer.
func clockCheck(date, before, after time.Time) check {
	c := check{Name: "clock", Result: checkOK}
	var skew time.Duration
	switch {
	case date.Add(time.Second).Before(before):
		skew = before.Sub(date.Add(time.Second))
		c.Detail = "this machine is ahead of the control plane by " + durationText(skew)
	case date.After(after):
		skew = date.Sub(after)
		c.Detail = "this machine is behind the control plane by " + durationText(skew)
	}
	switch {
	case skew >= skewFailure:
		c.Result = checkFail
	case skew >= skewWarning:
		c.Result = checkWarn
	default:
		c.Detail = "equals that of the control plane"
		return c
	}
	c.Fix = "Synchronise both clocks with NTP, because they decide when certificates, keys and leases expire."
	return c
}

// checkRegions checks each region's agent: whether it is connected, and its version.
func (a *app) checkRegions(ctx context.Context, server string) []check {
	regions, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Region, *windlassv1.PageResponse, error) {
		r, err := a.clients.regions.ListRegions(ctx, &windlassv1.ListRegionsRequest{Page: p})
		return r.GetRegions(), r.GetPage(), err
	})
	if err != nil {
		return []check{{"regions", checkFail, firstLine(Explain(err)), "Use a key that can read regions."}}
	}
	if len(regions) == 0 {
		return []check{{"regions", checkWarn, "there are none", "Create one: `windlass region create NAME`, then start an agent with its token."}}
	}
	var checks []check
	for _, r := range regions {
		checks = append(checks, regionCheck(r, server))
	}
	return checks
}

func regionCheck(r *windlassv1.Region, server string) check {
	c := check{Name: "region " + r.Name, Result: checkOK, Detail: "connected, agent " + orDash(r.AgentVersion)}
	switch r.Status {
	case windlassv1.RegionStatus_REGION_STATUS_CONNECTED:
	case windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE:
		return check{c.Name, checkFail, "unreachable, last report " + ageText(r.LastReportAt), "Look at the agent's log there. Instances keep running."}
	default:
		return check{c.Name, checkWarn, "no agent has joined", "Start one with the token of `windlass region token " + r.Name + "`."}
	}
	if r.Quarantined > 0 {
		c.Result = checkWarn
		c.Detail += fmt.Sprintf(", %d workloads that the control plane does not know", r.Quarantined)
		c.Fix = "`windlass region prune " + r.Name + "` lists them."
		return c
	}
	if s := skewOf(r.AgentVersion, server); !s.known {
		c.Detail += ": its version cannot be compared"
	} else if s.minors < -agentMinors || s.minors > 0 {
		c.Result = checkWarn
		c.Detail += ", control plane " + server
		c.Fix = fmt.Sprintf("An agent may be %d minor versions older than the control plane, and no newer. Upgrade the older one.", agentMinors)
	}
	return c
}
