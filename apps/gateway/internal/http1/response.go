package http1

import (
	"bytes"
	"errors"
)

// Response is the header of an instance's answer.
type Response struct {
	// Status is 100 to 999; Reason is what the instance says beside it.
	Status int
	Reason []byte
	// Fields in their order: all of them, but those with a space in the name, which nobody reads
	// for another.
	Fields []Field
	// ContentLength in bytes; -1: none was told.
	ContentLength int64
	// Chunked: the content comes in chunks, whatever ContentLength would say.
	Chunked bool
	// Close: the connection ends with the answer.
	Close bool
	// Names: Connection may name other fields.
	Names bool

	// old: it is HTTP/1.0.
	old bool
}

// Errors of ParseResponse and Chunks.
var (
	ErrStatusLine = errors.New("the answer does not begin with a status line of HTTP/1")
	ErrField      = errors.New("the answer's header has a line that is no field")
	ErrLength     = errors.New("the answer's Content-Length is no number, or there are two")
	ErrCoding     = errors.New("the answer's Transfer-Encoding is another than chunked, or it is HTTP/1.0, which has none")
	ErrChunk      = errors.New("the answer's chunks are malformed")
	ErrTooLarge   = errors.New("the answer's header or trailers are too large")
)

// MaxResponseHeader is what the header of an answer may have in bytes.
const MaxResponseHeader = 256 << 10

// ParseResponse reads the header at the beginning of b into r, whose Fields are used again. n
// is where the content begins; 0: more bytes are needed. Lines may end in a bare LF.
func ParseResponse(b []byte, r *Response) (n int, err error) {
	*r = Response{Fields: r.Fields[:0], ContentLength: -1}
	line, n := responseLine(b, 0)
	if n == 0 {
		// Garbage is known early: it may have no line, ever.
		if len(b) > MaxResponseHeader || !bytes.HasPrefix(b, []byte("HTTP/1.")[:min(len(b), len("HTTP/1."))]) {
			return 0, ErrStatusLine
		}
		return 0, nil
	}
	if !r.statusLine(line) {
		return 0, ErrStatusLine
	}
	length := []byte(nil)
	for {
		if line, n = responseLine(b, n); n == 0 || n > MaxResponseHeader {
			if len(b) > MaxResponseHeader {
				return 0, ErrTooLarge
			}
			return 0, nil
		}
		if len(line) == 0 {
			break
		}
		f, ok := field(line)
		if !ok {
			if spaced(line) {
				continue
			}
			return 0, ErrField
		}
		r.Fields = append(r.Fields, f)
		switch len(f.Name) {
		case len("trailer"):
			if f.Is("trailer") && (Lists(f.Value, "content-length") || Lists(f.Value, "transfer-encoding") || Lists(f.Value, "trailer")) {
				return 0, ErrField
			}
		case len("connection"):
			if f.Is("connection") {
				r.Close = r.Close && !Lists(f.Value, "keep-alive") || Lists(f.Value, "close")
				r.Names = r.Names || !Equal(f.Value, "keep-alive") && !Equal(f.Value, "close")
			}
		case len("content-length"):
			if f.Is("content-length") {
				if length != nil && !bytes.Equal(length, f.Value) {
					return 0, ErrLength
				}
				if length, r.ContentLength = f.Value, number(f.Value); r.ContentLength < 0 {
					return 0, ErrLength
				}
			}
		case len("transfer-encoding"):
			if f.Is("transfer-encoding") {
				if r.Chunked || r.old || !Equal(f.Value, "chunked") {
					return 0, ErrCoding
				}
				r.Chunked = true
			}
		}
	}
	if r.Chunked && r.ContentLength >= 0 {
		r.ContentLength, r.Close = -1, true // RFC 9112, section 6.3: whoever sent that is not to be trusted with another
	}
	return n, nil
}

// responseLine returns the line that begins at from, without its end, and where the next one
// does; 0: it has not ended.
func responseLine(b []byte, from int) (line []byte, next int) {
	end := bytes.IndexByte(b[from:], '\n')
	if end < 0 {
		return nil, 0
	}
	line = b[from : from+end]
	return bytes.TrimSuffix(line, []byte("\r")), from + end + 1
}

// spaced tells whether the line is a field but for spaces within its name. Some instances
// send such, by mistake.
func spaced(line []byte) bool {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || line[0] == ' ' || line[colon-1] == ' ' || !all(line[colon+1:], isValue) {
		return false
	}
	for _, c := range line[:colon] {
		if c != ' ' && !isToken[c] {
			return false
		}
	}
	return true
}

func (r *Response) statusLine(line []byte) bool {
	const status = len("HTTP/1.1 ")
	if len(line) < status+3 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return false
	}
	r.old = line[7] == '0'
	r.Close = r.old
	code := number(line[status : status+3])
	if code < 100 || len(line) > status+3 && line[status+3] != ' ' {
		return false
	}
	r.Status = int(code)
	if len(line) > status+4 {
		r.Reason = line[status+4:]
	}
	return all(r.Reason, isValue)
}

// HasContent tells whether content follows the header of an answer to the method.
func (r *Response) HasContent(method string) bool {
	return method != "HEAD" && r.Status >= 200 && r.Status != 204 && r.Status != 304
}
