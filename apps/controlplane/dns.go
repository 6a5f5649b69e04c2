package controlplane

import (
	"context"
	"errors"
	"net"
	"time"
)

// dnsDialTimeout is the timeout for the connection to a DNS server. The caller limits the whole look-up.
const dnsDialTimeout = 3 * time.Second

// lookupTXT returns a function that asks the DNS server for the TXT records of a name. An empty server means
// the host's resolver. If there are no records, the function returns no error.
func lookupTXT(server string) func(ctx context.Context, name string) ([]string, error) {
	resolver := net.DefaultResolver
	if server != "" {
		resolver = &net.Resolver{
			PreferGo: true,
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				d := net.Dialer{Timeout: dnsDialTimeout}
				return d.DialContext(ctx, network, server)
			},
		}
	}
	return func(ctx context.Context, name string) ([]string, error) {
		texts, err := resolver.LookupTXT(ctx, name)
		if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
			return nil, nil
		}
		return texts, err
	}
}
