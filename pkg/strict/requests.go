// Package strict makes net/http read HTTP/1 requests as strictly as RFC 9112 allows. net/http accepts lines
// that end in a bare LF, and fields that are folded over lines. Programs in front of a server may read such a
// message differently, which makes request smuggling possible (RFC 9112, section 11.2).
//
//	connection ─▶ Conn: are the bytes of this request sound? ─▶ net/http
//
// A Conn reads the bytes of a connection before net/http does. Instead of an unsound request, it passes on
// bytes that make net/http answer 400 and close the connection. HTTP/2 is passed on unchanged.
package strict

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// ErrUnsound means that a line or a field of a request violates RFC 9112.
var ErrUnsound = errors.New("a line of the request does not end in CRLF, is not a valid field, or is folded")

// Requests checks the bytes of a connection's requests. It does no I/O. The zero value is at the beginning of
// the first request, and accepts heads of any length.
type Requests struct {
	// MaxHead is the maximum number of bytes that net/http reads of a head. 0 means any number.
	MaxHead int

	state state
	// line has the bytes of an incomplete line. head counts the bytes of the head or of trailers.
	line []byte
	head int
	// request has the framing of the current message.
	request framing
	// left is the number of bytes left of the content, or of a chunk.
	left int64
	err  error
}

type state uint8

const (
	first   state = iota // the first line of a connection: a request line, or the preface of HTTP/2
	start                // the request line of a later request
	fields               // the fields of a head
	length               // content of known length
	size                 // the line that begins a chunk
	data                 // the content of a chunk
	dataEnd              // the empty line after a chunk
	trailers
	ignored // nothing is checked any more
)

// framing has the parts of a head that decide where the message ends.
type framing struct {
	chunks         bool // whether the message's HTTP version has chunks
	lengths        int
	length, coding string
	codings        int
	disagree       bool // whether the Content-Length fields differ
}

// Stop ends all checks, because the following bytes are not HTTP/1.
func (r *Requests) Stop() {
	r.state, r.line, r.err = ignored, nil, nil
}

// Check checks p, which follows the bytes of earlier calls. It returns the number n of bytes of p that may be read
// now. They never go beyond the end of a message, because one read must not return bytes of two messages. The caller
// must pass the bytes after n again. If err is not nil, n is the number of bytes that may be read before the error.
func (r *Requests) Check(p []byte) (n int, err error) {
	for n < len(p) && r.err == nil {
		switch r.state {
		case ignored:
			return len(p), nil
		case length, data:
			take := int(min(r.left, int64(len(p)-n)))
			n += take
			if r.left -= int64(take); r.left > 0 {
				continue
			}
			if r.state == length {
				r.state = start
				return n, nil
			}
			r.state = dataEnd
		default:
			begins := r.head == 0
			used, ended := r.next(p[n:])
			if r.err != nil {
				if begins && r.state <= start && used == 0 {
					// While net/http answers the previous request, it reads one byte ahead. The handler may
					// still switch to another protocol, to which that byte then belongs.
					used = 1
				}
				return n + used, r.err
			}
			if n += used; ended {
				return n, nil
			}
		}
	}
	return n, r.err
}

// next checks bytes from p, and returns their number. ended reports whether the message has ended.
func (r *Requests) next(p []byte) (used int, ended bool) {
	end := bytes.IndexByte(p, '\n')
	if used = end + 1; end < 0 {
		used = len(p)
	}
	if r.head += used; r.MaxHead > 0 && r.head > r.MaxHead {
		if r.state >= size {
			r.err = ErrUnsound
			return 0, false
		}
		r.Stop() // net/http refuses the head, and closes the connection
		return used, false
	}
	if end < 0 {
		r.line = append(r.line, p...)
		return used, false
	}
	line := p[:end]
	if len(r.line) > 0 {
		r.line = append(r.line, line...)
		line = r.line
	}
	bare, ok := bytes.CutSuffix(line, []byte("\r"))
	if ok {
		ok, ended = r.take(bare)
	}
	if r.line = r.line[:0]; cap(r.line) > keptLine {
		r.line = nil
	}
	if !ok {
		r.err = ErrUnsound
		return end, false // without the LF, so that net/http does not see the end of the line
	}
	return used, ended
}

// keptLine is the maximum size of a buffer that is kept for a later line that arrives in parts.
const keptLine = 256

// take checks a line without its end.
func (r *Requests) take(line []byte) (ok, ended bool) {
	switch r.state {
	case first, start:
		return r.requestLine(line), false
	case fields:
		if len(line) > 0 {
			return r.readField(line), false
		}
		r.head = 0
		return true, r.endHead()
	case size:
		r.head = 0
		return r.readChunkSize(line), false
	case dataEnd:
		r.head, r.state = 0, size
		return len(line) == 0, false
	case trailers:
		if len(line) > 0 {
			_, _, ok := parseField(line)
			return ok, false
		}
		r.head, r.state = 0, start
		return true, true
	case length, data, ignored:
	}
	return true, false
}

func (r *Requests) requestLine(line []byte) bool {
	if !allOfKind(line, isLine) || bytes.Count(line, []byte(" ")) != 2 {
		return false
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	if len(method) == 0 || len(target) == 0 {
		return false
	}
	if !bytes.HasPrefix(version, []byte("HTTP/1.")) {
		r.Stop() // it is the preface of HTTP/2, or net/http refuses it
		return true
	}
	r.request = framing{chunks: string(version) != "HTTP/1.0"}
	r.state = fields
	return true
}

func (r *Requests) readField(line []byte) bool {
	name, value, ok := parseField(line)
	if !ok {
		return false
	}
	q := &r.request
	switch {
	case len(name) == len("content-length") && bytes.EqualFold(name, []byte("content-length")):
		if q.lengths++; q.lengths == 1 {
			q.length = string(value)
		}
		q.disagree = q.disagree || q.length != string(value)
	case len(name) == len("transfer-encoding") && bytes.EqualFold(name, []byte("transfer-encoding")):
		q.codings++
		q.coding = string(value)
	}
	return true
}

// endHead is called at the end of a head, and decides like net/http where the message ends. ended reports whether the
// message ends at this point. If net/http will refuse the message and close the connection, the checks end.
func (r *Requests) endHead() (ended bool) {
	q := r.request
	switch {
	case q.codings > 0 && q.chunks:
		if q.codings > 1 || !strings.EqualFold(q.coding, "chunked") {
			r.Stop()
			return true
		}
		r.state = size
		return false
	case q.lengths == 0:
		r.state = start
		return true
	}
	n, err := strconv.ParseUint(q.length, 10, 63)
	switch {
	case err != nil || q.disagree:
		r.Stop()
		return true
	case n == 0:
		r.state = start
		return true
	}
	r.state, r.left = length, int64(n) // n has 63 bits
	return false
}

// maxDigits is the maximum number of digits in a chunk's size, so that no size overflows.
const maxDigits = 15

func (r *Requests) readChunkSize(line []byte) bool {
	text, extension, extended := bytes.Cut(line, []byte(";"))
	text = bytes.TrimRight(text, " \t")
	if len(text) == 0 || len(text) > maxDigits || !allOfKind(text, isHex) || extended && !allOfKind(extension, isValue) {
		return false
	}
	n, err := strconv.ParseInt(string(text), 16, 64)
	if err != nil {
		return false
	}
	if r.state, r.left = data, n; n == 0 {
		r.state = trailers
	}
	return true
}

// parseField parses a field without its line end: a token, a colon, a value without control characters.
func parseField(line []byte) (name, value []byte, ok bool) {
	name, value, ok = bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 || !allOfKind(name, isToken) || !allOfKind(value, isValue) {
		return nil, nil, false
	}
	return name, bytes.Trim(value, " \t"), true
}

// The bytes that are allowed in a token (RFC 9110, section 5.6.2), in a value (section 5.5), in a request
// line, and in the size of a chunk.
var (
	isToken = kindOf(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 })
	isValue = kindOf(func(c byte) bool { return c == '\t' || c >= ' ' && c != 0x7f })
	isLine  = kindOf(func(c byte) bool { return c >= ' ' && c != 0x7f })
	isHex   = kindOf(func(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' })
)

func isAlphanumeric(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' }

func kindOf(is func(byte) bool) *[256]bool {
	var of [256]bool
	for c := range of {
		of[c] = is(byte(c))
	}
	return &of
}

func allOfKind(text []byte, kind *[256]bool) bool {
	for _, c := range text {
		if !kind[c] {
			return false
		}
	}
	return true
}
