package appspec

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkRouting fails on routing that gateways would not apply, or that browsers would refuse.
func checkRouting(p *windlassv1.RoutingPolicy, field string) error {
	const affinity = windlassv1.RoutingPolicy_BALANCING_AFFINITY
	switch {
	case p.GetBalancing() == affinity && p.GetAffinity() == nil:
		return apierr.InvalidFix(field+".affinity", "balancing is affinity, but affinity does not say where the key is",
			"Set affinity to the header or the cookie that has the key, for example {header: X-Session}, or choose another balancing.")
	case p.GetBalancing() != affinity && p.GetAffinity() != nil:
		return apierr.InvalidFix(field+".affinity", "affinity is set, and balancing is not affinity: it would have no effect",
			"Set balancing to affinity, or leave affinity out.")
	case p.GetQueueWait().AsDuration() > 0 && p.GetQueueSize() == 0 && p.QueueSize != nil:
		return apierr.InvalidFix(field+".queueWait", "queueWait is set, and queueSize is 0: no request waits",
			"Set queueSize to how many may wait, or leave queueWait out.")
	case p.GetCrossRegion() == windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER && p.GetMaxInFlight() == 0:
		return apierr.InvalidFix(field+".crossRegion", "it is spillover, but without maxInFlight an instance is never full",
			"Set maxInFlight to how many requests an instance has at a time, or choose failover.")
	}
	if hold, total := p.GetColdStart().GetHold(), p.GetRequestTimeout().AsDuration(); hold != nil && total > 0 && total < hold.AsDuration() {
		return apierr.InvalidFix(field+".coldStart.hold", "it is longer than requestTimeout, which ends a request that waits",
			"Set requestTimeout above hold, or leave it out.")
	}
	return checkCors(p.GetCors(), field+".cors")
}

func checkCors(c *windlassv1.Cors, field string) error {
	for i, origin := range c.GetAllowedOrigins() {
		at := fmt.Sprintf("%s.allowed_origins[%d]", field, i)
		switch {
		case origin == "*" && len(c.GetAllowedOrigins()) > 1:
			return apierr.InvalidFix(at, `"*" means every origin, and there are others`, `Leave "*" or the others out.`)
		case origin == "*" && c.GetCredentials():
			return apierr.InvalidFix(at, `browsers refuse answers that allow credentials to every origin`,
				"Name the origins, https://*.example.com for all below a domain, or leave credentials out.")
		case origin == "*":
			continue
		}
		if err := checkOrigin(origin, at); err != nil {
			return err
		}
	}
	if slices.Contains(c.GetExposedHeaders(), "*") && c.GetCredentials() {
		return apierr.InvalidFix(field+".exposedHeaders", `with credentials browsers take "*" for a header of that name`, "Name the headers.")
	}
	for i, method := range c.GetAllowedMethods() {
		if method == "CONNECT" || method == "TRACE" {
			return apierr.InvalidFix(fmt.Sprintf("%s.allowedMethods[%d]", field, i), method+" is no method that browsers send", "Leave it out.")
		}
	}
	if c.GetMaxAge().GetNanos() != 0 {
		return apierr.InvalidFix(field+".maxAge", "browsers only understand a maxAge in whole seconds", "Round it to seconds.")
	}
	return nil
}

// schemePorts are the ports that browsers leave out of origins.
var schemePorts = map[string]string{"http": "80", "https": "443"}

// checkOrigin fails unless origin is spelled as a browser sends it, because gateways compare texts. "*." may
// stand before a domain.
func checkOrigin(origin, field string) error {
	refuse := func(why string) error {
		return apierr.InvalidFix(field, fmt.Sprintf("%q is no origin: %s", apierr.Clip(origin, 100), why),
			"Write it as browsers do: https://chat.example.com, with a port that is not the scheme's own, https://*.example.com for all below a domain, or *.")
	}
	scheme, host, ok := strings.Cut(origin, "://")
	if !ok {
		return refuse("it has no scheme")
	}
	if schemePorts[scheme] == "" {
		return refuse("its scheme is neither http nor https")
	}
	if strings.ContainsAny(host, "/?#") {
		return refuse("an origin ends after the host or its port, without a slash")
	}
	host, wild := strings.CutPrefix(host, "*.")
	u, err := url.Parse(scheme + "://" + host)
	switch {
	case err != nil || u.User != nil || u.Host != host || u.Hostname() == "":
		return refuse("what follows the scheme is not a host")
	case host != strings.ToLower(host):
		return refuse("browsers write hosts in lower case")
	case strings.HasSuffix(host, ":"):
		return refuse("its port is missing")
	case u.Port() == schemePorts[scheme]:
		return refuse(fmt.Sprintf("browsers leave port %s out of %s origins", u.Port(), scheme))
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		if wild {
			return refuse("an address has nothing below it")
		}
		return nil
	}
	for label := range strings.SplitSeq(u.Hostname(), ".") {
		switch {
		case strings.Contains(label, "*"):
			return refuse("* is for whole labels, in front of the domain")
		case label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return refuse("what follows the scheme is not a host; names of other scripts are in their xn-- form")
		}
	}
	if wild && !strings.Contains(u.Hostname(), ".") && u.Hostname() != "localhost" {
		return refuse("it would allow all of a top-level domain")
	}
	return nil
}
