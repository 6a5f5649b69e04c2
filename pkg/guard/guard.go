// Package guard connects to addresses that a tenant or another program named. It judges an
// address when it is connected to, so no name, redirect or later DNS answer leads to one that is
// not allowed. Only public addresses are allowed, and the networks that the operator of this
// process lists.
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

// global is where IPv6 gives addresses to anybody. What is outside of it is local in one
// way or another, or stands for an address of IPv4.
var global = netip.MustParsePrefix("2000::/3")

// special are networks that are not routed on the internet, by the registries of RFC 6890 and
// its successors, or that stand for other addresses. Where a cloud has its metadata is
// among them: 169.254.169.254, 100.100.100.200, 192.0.0.192; fd00:ec2::254 is not global.
// 168.63.129.16 is public by its number, but on Azure it is the host of the virtual machine.
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

// Networks are allowed besides public addresses. Nil allows public addresses only.
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
func (n Networks) Lists(a netip.Addr) bool { return contains(n, plain(a)) }

// Allows reports whether the address is public or in one of the networks.
func (n Networks) Allows(a netip.Addr) bool {
	a = plain(a)
	return contains(n, a) || (a.Is4() || global.Contains(a)) && !contains(special, a)
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Dialer connects to what Allows allows. Add timeouts to it, but no other Control.
func (n Networks) Dialer() *net.Dialer { return &net.Dialer{Control: control(n.Allows)} }

// ListedDialer connects to what Lists lists.
func (n Networks) ListedDialer() *net.Dialer { return &net.Dialer{Control: control(n.Lists)} }

// control judges an address when it is about to be connected to.
func control(allows func(netip.Addr) bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !allows(at.Addr()) {
			return ErrRefused
		}
		return nil
	}
}

// maxHeader bounds the header of an answer.
const maxHeader = 64 << 10

// Transport makes a transport for single requests to addresses that others name.
func Transport(d *net.Dialer, handshake time.Duration) *http.Transport {
	return &http.Transport{
		// A proxy would connect for us, to any address: it is not used, whatever the
		// environment says.
		Proxy:               nil,
		DialContext:         d.DialContext,
		TLSHandshakeTimeout: handshake,
		// Idle connections would be a pool that anybody can fill.
		DisableKeepAlives: true,
		// A small compressed answer may be large once it is unpacked.
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
}
