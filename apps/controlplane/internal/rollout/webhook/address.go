package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// errNotPublic is what a connection to an address that is not allowed fails with.
var errNotPublic = errors.New("its address is not public, and is not among those that the control plane's operator allows with --webhook-allow")

// global is where IPv6 gives addresses to anybody. What is outside of it is local in one
// way or another, or stands for an address of IPv4.
var global = netip.MustParsePrefix("2000::/3")

// special are networks that nobody has on the internet, by the registries of RFC 6890 and
// its successors, or that stand for other addresses. Where a cloud has its metadata is
// among them: 169.254.169.254, 100.100.100.200, 192.0.0.192; fd00:ec2::254 is not global.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/3",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// ParseAllowed reads networks that are allowed beside public addresses.
func ParseAllowed(texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is not a network: write for example 10.0.0.0/8, or 10.1.2.3/32 for one address", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// Allows tells whether web-hooks may be at the address.
func (c *Client) Allows(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	holds := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(c.cfg.Allow, holds) {
		return true
	}
	return (a.Is4() || global.Contains(a)) && !slices.ContainsFunc(special, holds)
}

// control judges an address when it is about to be connected to: whatever a name meant
// when somebody looked before, this is what it means now.
func (c *Client) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !c.Allows(at.Addr()) {
		return errNotPublic
	}
	return nil
}
