package proxy

import (
	"net/http"
	"strings"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// requestFields are the fields of a request that the gateway uses.
type requestFields struct {
	id, trace, key []byte
	// forwardedFor has the values of X-Forwarded-For of a trusted proxy. saysHost and saysScheme are whether the
	// proxy sent X-Forwarded-Host and X-Forwarded-Proto.
	forwardedFor         [][]byte
	saysHost, saysScheme bool
	// drop has a bit for each field that is not passed on.
	drop [2]uint64
	// found is the buffer for values.
	found []string
}

// readFields reads the fields. It returns false if the request must go through net/http.
func (d *direct) readFields() bool {
	f := &d.fields
	*f = requestFields{forwardedFor: f.forwardedFor[:0], found: f.found[:0]}
	for i := range d.r.Fields {
		field := &d.r.Fields[i]
		if requestFate(field.Name).isDropped(d.trusted) {
			f.drop[i/64] |= 1 << (i % 64)
		}
		switch len(field.Name) {
		case len("traceparent"):
			if f.trace == nil && field.Is("traceparent") {
				f.trace = field.Value
			}
		case len(RequestIDHeader):
			if f.id == nil && field.Is("x-request-id") {
				f.id = field.Value
			}
		case len("x-forwarded-for"): // and idempotency-key
			switch {
			case d.trusted && field.Is("x-forwarded-for"):
				f.forwardedFor = append(f.forwardedFor, field.Value)
			case f.key == nil && field.Is("idempotency-key"):
				f.key = field.Value
			}
		case len("x-forwarded-host"):
			f.saysHost = f.saysHost || d.trusted && field.Is("x-forwarded-host")
		case len("x-forwarded-proto"):
			f.saysScheme = f.saysScheme || d.trusted && field.Is("x-forwarded-proto")
		case len(HandedOverHeader):
			if field.Is("windlass-handed-over") {
				return false
			}
		}
	}
	return true
}

func (f *requestFields) isDropped(i int) bool { return f.drop[i/64]&(1<<(i%64)) != 0 }

// fieldValues implements fields.
func (d *direct) fieldValues(name string) []string {
	f := &d.fields
	f.found = f.found[:0]
	if strings.EqualFold(name, "x-forwarded-for") {
		return append(f.found, string(forwardedFor(nil, f.forwardedFor, d.c.Client())))
	}
	for i := range d.r.Fields {
		if field := &d.r.Fields[i]; len(field.Name) == len(name) && !f.isDropped(i) && strings.EqualFold(string(field.Name), name) {
			f.found = append(f.found, string(field.Value))
		}
	}
	return f.found
}

// isIdempotent reports whether the request may be sent twice, as isIdempotentRequest does for an http.Request.
func (d *direct) isIdempotent() bool {
	return decide.Idempotent(string(d.r.Method), len(d.fields.key) > 0, false)
}

// appendRequest writes the whole request for an instance into out.
func (d *direct) appendRequest() {
	r, x := d.r, &d.x
	b := append(append(append(append(d.out[:0], r.Method...), ' '), r.Target...), " HTTP/1.1\r\n"...)
	for i := range r.Fields {
		f := &r.Fields[i]
		if d.fields.isDropped(i) || len(f.Name) == len(x.key.field) && strings.EqualFold(string(f.Name), x.key.field) {
			continue
		}
		b = copyField(b, f)
	}
	b = append(b, "X-Forwarded-For: "...)
	b = append(forwardedFor(b, d.fields.forwardedFor, d.c.Client()), "\r\n"...)
	o := origin{host: d.name, scheme: "http", id: x.id}
	if d.fields.saysHost {
		o.host = ""
	}
	if d.fields.saysScheme {
		o.scheme = ""
	}
	o.eachField(func(name, value string) { b = appendField(b, name, value) })
	if !r.HasLength && !d.isBodiless() {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	b = append(b, "\r\n"...)
	b = append(b, d.body...)
	d.out = b
}

// isBodiless reports whether a request without a body needs no Content-Length, because its method usually has none.
func (d *direct) isBodiless() bool {
	switch string(d.r.Method) {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return false
	}
	return true
}

func appendField(b []byte, name, value string) []byte {
	return append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
}

func copyField(b []byte, f *http1.Field) []byte {
	return append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
}
