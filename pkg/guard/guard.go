// Package guard connects to addresses that a tenant or another program chose. It checks an address at the
// moment of the connection, so a name, a redirect or a later DNS answer cannot lead to an address that is
// not allowed. Only public addresses and the networks that the operator of this process lists are allowed.
package guard

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrRefused is in the error of a connection to an address that is not allowed.
var ErrRefused = errors.New("the address is neither public nor in a network that the operator allows")

// global is the network of public IPv6 addresses. Other IPv6 addresses are local, or stand for an IPv4
// address.
var global = netip.MustParsePrefix("2000::/3")

// special are networks that are not routed on the internet (by the registries of RFC 6890 and its
// successors), or that stand for other addresses. They contain the metadata services of clouds:
// 169.254.169.254, 100.100.100.200 and 192.0.0.192. The metadata service fd00:ec2::254 is not in global.
// 168.63.129.16 is a public address, but on Azure it is the host of the virtual machine.
var special = mustParse(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/3",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

func mustParse(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// Networks are networks that are allowed in addition to public addresses. Nil allows only public addresses.
type Networks []netip.Prefix

// Parse reads networks such as 10.0.0.0/8.
func Parse(texts []string) (out Networks, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is not a network: write for example 10.0.0.0/8, or 10.1.2.3/32 for one address", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// Lists reports whether the address is in one of the networks.
func (n Networks) Lists(a netip.Addr) bool { return contains(n, plainAddr(a)) }

// Allows reports whether the address is public or in one of the networks.
func (n Networks) Allows(a netip.Addr) bool {
	a = plainAddr(a)
	return contains(n, a) || (a.Is4() || global.Contains(a)) && !contains(special, a)
}

func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Dialer returns a dialer that connects only to addresses that Allows allows. The caller may set timeouts, but
// not Control.
func (n Networks) Dialer() *net.Dialer { return &net.Dialer{Control: controlOf(n.Allows)} }

// ListedDialer returns a dialer that connects only to addresses for which Lists returns true.
func (n Networks) ListedDialer() *net.Dialer { return &net.Dialer{Control: controlOf(n.Lists)} }

// controlOf returns a net.Dialer.Control that refuses addresses that are not allowed.
func controlOf(allows func(netip.Addr) bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !allows(at.Addr()) {
			return ErrRefused
		}
		return nil
	}
}

// maxHeader limits the header of an answer, in bytes.
const maxHeader = 64 << 10

// Transport returns a transport for single requests to addresses that a tenant or another program chose.
func Transport(d *net.Dialer, handshake time.Duration) *http.Transport {
	return &http.Transport{
		// No proxy is used, even if the environment names one, because a proxy would connect to any
		// address.
		Proxy:               nil,
		DialContext:         d.DialContext,
		TLSHandshakeTimeout: handshake,
		// Tenants could fill a pool of idle connections.
		DisableKeepAlives: true,
		// A small compressed answer may be large after decompression.
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
}
