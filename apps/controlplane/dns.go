package controlplane

import (
	"context"
	"net"
	"time"
)

// dnsDialTimeout bounds the way to a DNS server; the question as a whole has its own bound.
const dnsDialTimeout = 3 * time.Second

// lookupTXT asks the DNS server of that address; nil: as this host does.
func lookupTXT(server string) func(ctx context.Context, name string) ([]string, error) {
	if server == "" {
		return nil
	}
	resolver := &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: dnsDialTimeout}
			return d.DialContext(ctx, network, server)
		},
	}
	return resolver.LookupTXT
}
