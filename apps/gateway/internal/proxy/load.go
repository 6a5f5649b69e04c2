package proxy

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// This file is what instances of routes that are weighted say of their load, in an answer's header
// or trailers. It is between them and the gateway and goes no further: a client that goes by such,
// as those of gRPC do, would take one instance's load for that of all that the gateway has. On
// other routes it is a field as any, for clients that asked the instance for it.

// loadField is the name, in lower case, if it is one of those; else empty.
func loadField(name []byte) string {
	switch len(name) {
	case len(orca.Field), len(orca.BinaryField):
		for _, field := range [...]string{orca.Field, orca.BinaryField} {
			if http1.Equal(name, field) {
				return field
			}
		}
	}
	return ""
}

// takeReport removes the load report from fields that were read in place, and returns the others.
func takeReport(lease *upstream.Lease, fields []http1.Field, failed bool) []http1.Field {
	return slices.DeleteFunc(fields, func(f http1.Field) bool {
		name := loadField(f.Name)
		if name == "" {
			return false
		}
		if load, ok := orca.Parse(name, string(f.Value)); ok {
			lease.Reported(load, failed)
		}
		return true
	})
}

// reportHeader is report for net/http's.
func reportHeader(lease *upstream.Lease, header http.Header, failed bool) {
	for _, name := range [...]string{orca.Field, orca.BinaryField} {
		key := http.CanonicalHeaderKey(name)
		values, ok := header[key]
		if !ok {
			continue
		}
		delete(header, key)
		for _, value := range values {
			if load, ok := orca.Parse(name, value); ok {
				lease.Reported(load, failed)
			}
		}
	}
}

// observeReport reads the load report of an answer's header, before the header is passed on.
func observeReport(lease *upstream.Lease, res *http.Response) {
	failed := decide.Work(statusMeant(res.StatusCode, res.Header.Get(grpcStatus))) == balance.Failed
	reportHeader(lease, res.Header, failed)
	for _, name := range [...]string{orca.Field, orca.BinaryField} {
		delete(res.Trailer, http.CanonicalHeaderKey(name)) // announced; it comes all the same
	}
}

// observeEnd is told when the answer was read whole, before its trailers are passed on.
func observeEnd(lease *upstream.Lease, res *http.Response) {
	how := decide.Work(statusMeant(res.StatusCode, cmp.Or(res.Header.Get(grpcStatus), res.Trailer.Get(grpcStatus))))
	reportHeader(lease, res.Trailer, how == balance.Failed)
	lease.Fared(how)
}
