// Package http1 reads messages of HTTP/1.1 (RFC 9112) in place. It accepts only requests that every HTTP
// implementation reads alike. Any other request is Other, which is not an error: code that knows all of HTTP
// must read it. The package is pure, and allocates only the room for fields.
//
//	bytes ─▶ ParseRequest   ─▶ Request,  or More bytes are needed, or Other
//	bytes ─▶ Response.Parse ─▶ Response, or more bytes are needed, or an error
//	bytes ─▶ Chunks         ─▶ content, and trailers
package http1

import (
	"bytes"
	"strings"
)

// Field is a field of a header. Name and Value point into the bytes that were parsed.
type Field struct{ Name, Value []byte }

// Is reports whether the field has the name, which is given in lower case.
func (f *Field) Is(lower string) bool { return Equal(f.Name, lower) }

// Equal reports whether text equals lower without regard to case. lower must be ASCII in lower case.
func Equal(text []byte, lower string) bool {
	if len(text) != len(lower) {
		return false
	}
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// Lists reports whether one of the comma-separated elements of value is lower.
func Lists(value []byte, lower string) bool {
	for len(value) > 0 {
		element := value
		if at := bytes.IndexByte(value, ','); at >= 0 {
			element, value = value[:at], value[at+1:]
		} else {
			value = nil
		}
		if Equal(bytes.Trim(element, " \t"), lower) {
			return true
		}
	}
	return false
}

// Names is a set of names of fields, in lower case.
type Names map[string]struct{}

// ConnectionNames returns the names that the fields of Connection list. Fields of these names must not be
// passed on. The names are a set because comparing each field with each name would take quadratic time.
func ConnectionNames(fields []Field) Names {
	names := Names{}
	for i := range fields {
		if fields[i].Is("connection") {
			names.Add(fields[i].Value)
		}
	}
	return names
}

// Add adds the names of a comma-separated list.
func (n Names) Add(list []byte) {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if name = bytes.Trim(name, " \t"); len(name) > 0 && len(name) <= maxName {
			n[string(bytes.ToLower(name))] = struct{}{}
		}
	}
}

// maxName is the longest name that Names can hold, in bytes, so that Has allocates nothing. Longer names in
// Connection are ignored, because no field that programs use has one.
const maxName = 128

// Has reports whether name, in any case, is in the set.
func (n Names) Has(name []byte) bool {
	if len(n) == 0 || len(name) > maxName {
		return false
	}
	var lower [maxName]byte
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		lower[i] = c
	}
	_, ok := n[string(lower[:len(name)])]
	return ok
}

// Verdict is the result of ParseRequest for the bytes that have arrived.
type Verdict int

const (
	// More means that more bytes are needed.
	More Verdict = iota
	// Whole means that the header is complete.
	Whole
	// Other means that this package does not read the request.
	Other
)

// maxLength is how many digits a Content-Length may have. Below 10^15 nothing overflows.
const maxLength = 15

// parseNumber reads decimal digits. It returns -1 for anything else and for numbers that are too large.
func parseNumber(text []byte) int64 {
	if len(text) == 0 || len(text) > maxLength {
		return -1
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

// isToken has the bytes of a token (RFC 9110, section 5.6.2). isValue has the bytes of a field's value (section
// 5.5). isHost has the bytes that net/http accepts in a Host. isTarget has the bytes of a target that decoding and
// encoding leave as they are (RFC 3986, section 3.3), except "%", "?" and "#", which takePath checks.
var (
	isToken  = byteKind(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 })
	isValue  = byteKind(func(c byte) bool { return c == '\t' || c >= ' ' && c != 0x7f })
	isHost   = byteKind(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!$%&()*+,-.:;=[']_~", c) >= 0 })
	isTarget = byteKind(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("-._~!$&'()*+,=:@/", c) >= 0 })
)

func isAlphanumeric(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
}

func byteKind(is func(byte) bool) *[256]bool {
	var of [256]bool
	for c := range of {
		of[c] = is(byte(c))
	}
	return &of
}

// areAll reports whether all bytes of text are of the kind.
func areAll(text []byte, kind *[256]bool) bool {
	for _, c := range text {
		if !kind[c] {
			return false
		}
	}
	return true
}

// parseField reads a line without its end.
func parseField(line []byte) (Field, bool) {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || !areAll(line[:colon], isToken) {
		return Field{}, false
	}
	value := bytes.Trim(line[colon+1:], " \t")
	return Field{line[:colon], value}, areAll(value, isValue)
}
