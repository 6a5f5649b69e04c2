package proxy

import (
	"net/http"
	"strings"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// requestFields are those fields of a request that mean something here.
type requestFields struct {
	id, trace, key, affinity []byte
	forwardedFor             [][]byte
	// drop is a bit for each field that is not passed on.
	drop [2]uint64
}

// read looks at the fields; false: there is something that the long way is for.
func (d *direct) read() bool {
	f := &d.fields
	*f = requestFields{forwardedFor: f.forwardedFor[:0]}
	policy := d.x.policy
	for i := range d.r.Fields {
		field := &d.r.Fields[i]
		drop := false
		switch len(field.Name) {
		case len("connection"): // and keep-alive, which is not plain
			drop = field.Is("connection")
		case len("forwarded"):
			drop = field.Is("forwarded")
		case len("traceparent"):
			if f.trace == nil && field.Is("traceparent") {
				f.trace = field.Value
			}
		case len(RequestIDHeader):
			if drop = field.Is("x-request-id"); drop && f.id == nil {
				f.id = field.Value
			}
		case len("x-forwarded-for"):
			switch {
			case field.Is("x-forwarded-for"):
				drop = true
				if d.trusted {
					f.forwardedFor = append(f.forwardedFor, field.Value)
				}
			case f.key == nil && field.Is("idempotency-key"):
				f.key = field.Value
			}
		case len("proxy-authenticate"):
			drop = field.Is("proxy-authenticate")
		case len("proxy-authorization"):
			drop = field.Is("proxy-authorization")
		case len(HandedOverHeader):
			if field.Is("windlass-handed-over") {
				return false
			}
		}
		drop = drop || spoofs(field.Name, d.trusted)
		if policy.AffinityHeader != "" && !drop && f.affinity == nil && strings.EqualFold(policy.AffinityHeader, string(field.Name)) {
			f.affinity = field.Value
		}
		if policy.AffinityCookie != "" && f.affinity == nil && field.Is("cookie") {
			f.affinity = cookie(string(field.Value), policy.AffinityCookie)
		}
		if drop {
			f.drop[i/64] |= 1 << (i % 64)
		}
	}
	return true
}

func (f *requestFields) dropped(i int) bool { return f.drop[i/64]&(1<<(i%64)) != 0 }

func cookie(line, name string) []byte {
	c, err := (&http.Request{Header: http.Header{"Cookie": {line}}}).Cookie(name)
	if err != nil {
		return nil
	}
	return []byte(c.Value)
}

// admits is Proxy.admits for fields that were read in place; it drops the one with the key.
func (d *direct) admits() bool {
	for _, h := range keyHeaders {
		found := -1
		for i := range d.r.Fields {
			if d.r.Fields[i].Is(h.lower) {
				if found >= 0 {
					found = -1 // two are none
					break
				}
				found = i
			}
		}
		if found >= 0 && d.x.admits(string(d.r.Fields[found].Value), h.scheme) {
			d.fields.drop[found/64] |= 1 << (found % 64)
			return true
		}
	}
	return false
}

// idempotent is as for a http.Request.
func (d *direct) idempotent() bool {
	return decide.Idempotent(string(d.r.Method), len(d.fields.key) > 0, false)
}

// request is what an instance is sent, whole, in out.
func (d *direct) request() {
	r, x := d.r, &d.x
	b := append(append(append(append(d.out[:0], r.Method...), ' '), r.Target...), " HTTP/1.1\r\n"...)
	host, proto := true, true
	for i := range r.Fields {
		f := &r.Fields[i]
		if d.fields.dropped(i) {
			continue
		}
		switch len(f.Name) {
		case len("x-forwarded-host"):
			host = host && !f.Is("x-forwarded-host")
		case len("x-forwarded-proto"):
			proto = proto && !f.Is("x-forwarded-proto")
		}
		b = copyField(b, f)
	}
	b = append(b, "X-Forwarded-For: "...)
	for _, before := range d.fields.forwardedFor {
		b = append(append(b, before...), ", "...)
	}
	b = append(append(b, d.c.Client()...), "\r\n"...)
	if host {
		b = appendField(b, "X-Forwarded-Host", d.name)
	}
	if proto {
		b = append(b, "X-Forwarded-Proto: http\r\n"...)
	}
	if !r.HasLength && !d.bodiless() {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	b = appendField(b, RequestIDHeader, x.id)
	b = append(b, "\r\n"...)
	b = append(b, d.body...)
	d.out = b
}

// bodiless methods need not say that they have no body.
func (d *direct) bodiless() bool {
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
