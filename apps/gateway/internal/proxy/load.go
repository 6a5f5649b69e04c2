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

// This file reads what instances of weighted routes say about their load in an answer's header or trailers.
// The fields are not passed on, because clients such as those of gRPC would take one instance's load for the
// load of all instances of the gateway. On other routes they are passed on like any field, for clients that
// asked for them.

// loadField returns the name, in lower case, if it is one of the load fields, and otherwise "".
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

// takeReport removes the load report from fields that were read in place, and returns the other fields.
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

// reportHeader is takeReport for headers of net/http.
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
		delete(res.Trailer, http.CanonicalHeaderKey(name)) // the client must not see the announced trailer, which observeEnd still reads
	}
}

// observeEnd reads the load report of an answer's trailers. It is called when the answer was read completely,
// before its trailers are passed on.
func observeEnd(lease *upstream.Lease, res *http.Response) {
	how := decide.Work(statusMeant(res.StatusCode, cmp.Or(res.Header.Get(grpcStatus), res.Trailer.Get(grpcStatus))))
	reportHeader(lease, res.Trailer, how == balance.Failed)
	lease.Fared(how)
}
