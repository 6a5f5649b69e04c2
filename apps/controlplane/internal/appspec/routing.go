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

// checkRouting fails on fields that gateways would ignore, or that browsers would refuse.
func checkRouting(p *windlassv1.RoutingPolicy, field string) error {
	const affinity = windlassv1.RoutingPolicy_BALANCING_AFFINITY
	switch {
	case p.GetBalancing() == affinity && p.GetAffinity() == nil:
		return apierr.InvalidFix(field+".affinity", "balancing is affinity, but affinity is not set, so gateways cannot find the key",
			"Set affinity to the header or the cookie that has the key, for example {header: X-Session}, or choose another balancing.")
	case p.GetBalancing() != affinity && p.GetAffinity() != nil:
		return apierr.InvalidFix(field+".affinity", "affinity is set, but balancing is not affinity, so affinity has no effect",
			"Set balancing to affinity, or leave affinity out.")
	case p.GetQueueWait().AsDuration() > 0 && p.GetQueueSize() == 0 && p.QueueSize != nil:
		return apierr.InvalidFix(field+".queueWait", "queueWait is set, but queueSize is 0, so no request waits",
			"Set queueSize to the number of requests that may wait, or remove queueWait.")
	case p.GetCrossRegion() == windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER && p.GetMaxInFlight() == 0:
		return apierr.InvalidFix(field+".crossRegion", "crossRegion is spillover, but without maxInFlight an instance is never full",
			"Set maxInFlight to the number of requests that an instance can serve at a time, or choose failover.")
	}
	if hold, total := p.GetColdStart().GetHold(), p.GetRequestTimeout().AsDuration(); hold != nil && total > 0 && total < hold.AsDuration() {
		return apierr.InvalidFix(field+".coldStart.hold", "hold is longer than requestTimeout, which would end the waiting request first",
			"Set requestTimeout above hold, or remove requestTimeout.")
	}
	return checkCors(p.GetCors(), field+".cors")
}

func checkCors(c *windlassv1.Cors, field string) error {
	for i, origin := range c.GetAllowedOrigins() {
		at := fmt.Sprintf("%s.allowed_origins[%d]", field, i)
		switch {
		case origin == "*" && len(c.GetAllowedOrigins()) > 1:
			return apierr.InvalidFix(at, `"*" means every origin, so other origins have no effect`, `Remove "*" or the other origins.`)
		case origin == "*" && c.GetCredentials():
			return apierr.InvalidFix(at, `browsers refuse answers that allow credentials to every origin`,
				"Name the origins, for example https://*.example.com for all subdomains, or remove credentials.")
		case origin == "*":
			continue
		}
		if err := checkOrigin(origin, at); err != nil {
			return err
		}
	}
	if slices.Contains(c.GetExposedHeaders(), "*") && c.GetCredentials() {
		return apierr.InvalidFix(field+".exposedHeaders", `with credentials, browsers take "*" as the name of a header`, "Name the headers.")
	}
	for i, method := range c.GetAllowedMethods() {
		if method == "CONNECT" || method == "TRACE" {
			return apierr.InvalidFix(fmt.Sprintf("%s.allowedMethods[%d]", field, i), "browsers do not send "+method, "Remove the method.")
		}
	}
	if c.GetMaxAge().GetNanos() != 0 {
		return apierr.InvalidFix(field+".maxAge", "browsers only understand a maxAge in whole seconds", "Round it to seconds.")
	}
	return nil
}

// schemePorts are the ports that browsers leave out of origins.
var schemePorts = map[string]string{"http": "80", "https": "443"}

// checkOrigin fails unless origin is written exactly as browsers send it, because gateways compare strings. A domain
// may begin with "*.".
func checkOrigin(origin, field string) error {
	refuse := func(why string) error {
		return apierr.InvalidFix(field, fmt.Sprintf("%q is not an origin: %s", apierr.Clip(origin, 100), why),
			"Write it as browsers do: https://chat.example.com, with a port only if it is not the scheme's default. Use https://*.example.com for all subdomains, or * for every origin.")
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
		return refuse("the text after the scheme is not a host")
	case host != strings.ToLower(host):
		return refuse("browsers write hosts in lower case")
	case strings.HasSuffix(host, ":"):
		return refuse("its port is missing")
	case u.Port() == schemePorts[scheme]:
		return refuse(fmt.Sprintf("browsers leave port %s out of %s origins", u.Port(), scheme))
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		if wild {
			return refuse("an IP address has no subdomains")
		}
		return nil
	}
	for label := range strings.SplitSeq(u.Hostname(), ".") {
		switch {
		case strings.Contains(label, "*"):
			return refuse("only *. in front of the domain is allowed")
		case label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return refuse("the text after the scheme is not a host: write international names in their xn-- form")
		}
	}
	if wild && !strings.Contains(u.Hostname(), ".") && u.Hostname() != "localhost" {
		return refuse("it would allow a whole top-level domain")
	}
	return nil
}
