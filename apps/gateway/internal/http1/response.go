package http1

import (
	"bytes"
	"errors"
	"fmt"
)

// Response is the header of an instance's answer.
type Response struct {
	// Status is 100 to 999. Reason is the text after it.
	Status int
	Reason []byte
	// Fields are in their order. Fields with a space in the name are left out. That is safe, because no client
	// reads such a field as another field.
	Fields []Field
	// ContentLength is in bytes. -1: the answer states none.
	ContentLength int64
	// Chunked is whether the content comes in chunks. Then ContentLength has no meaning.
	Chunked bool
	// Close is whether the connection ends with the answer.
	Close bool
	// Names is whether Connection may name other fields.
	Names bool

	// old is whether the answer is HTTP/1.0.
	old bool
	// next is the index of the first line that Parse has not read. searched is the index up to which Parse
	// looked for the end of that line. lines counts the lines before next, and length is their Content-Length.
	next, searched, lines int
	length                []byte
}

// Errors of Response.Parse and Chunks.
var (
	ErrStatusLine = errors.New("the answer does not begin with a status line of HTTP/1")
	ErrField      = errors.New("the answer's header has a line that is not a field")
	ErrLength     = errors.New("the answer's Content-Length is not a number, or the answer has two of them")
	ErrCoding     = errors.New("the answer's Transfer-Encoding is not chunked, or the answer is HTTP/1.0, which has no Transfer-Encoding")
	ErrChunk      = errors.New("the answer's chunks are malformed")
	ErrTooLarge   = fmt.Errorf("the answer's header or trailers have more than %d fields or %d KiB", MaxResponseFields, MaxResponseHeader>>10)
)

const (
	// MaxResponseHeader is how large the header of an answer may be, in bytes.
	MaxResponseHeader = 256 << 10
	// MaxResponseFields is how many fields the header, or the trailers, of an answer may have.
	MaxResponseFields = 512
)

// Reset makes r ready for another header, or for the same one at another place.
func (r *Response) Reset() { *r = Response{Fields: r.Fields[:0], ContentLength: -1} }

// Parse reads the header at the beginning of b into r. Reset must be called before. n is the index in b at which
// the content begins. 0: more bytes are needed, and the caller calls Parse again with the same bytes at the same
// place and with more bytes after them. Parse looks at each byte once. Lines may end in a bare LF.
func (r *Response) Parse(b []byte) (n int, err error) {
	for {
		end := bytes.IndexByte(b[r.searched:], '\n')
		if end < 0 {
			r.searched = len(b)
			return 0, r.whyNoBeginning(b)
		}
		line := bytes.TrimSuffix(b[r.next:r.searched+end], []byte("\r"))
		r.next, r.searched = r.searched+end+1, r.searched+end+1
		r.lines++
		switch {
		case r.next > MaxResponseHeader:
			return 0, r.whyNoBeginning(b)
		case r.lines == 1:
			if !r.statusLine(line) {
				return 0, ErrStatusLine
			}
		case len(line) == 0:
			if r.Chunked && r.ContentLength >= 0 {
				// RFC 9112, section 6.3: no other answer may be read from the connection.
				r.ContentLength, r.Close = -1, true
			}
			return r.next, nil
		case r.lines > MaxResponseFields+1:
			return 0, ErrTooLarge
		default:
			if err := r.takeField(line); err != nil {
				return 0, err
			}
		}
	}
}

// whyNoBeginning returns why b, which is not a whole header, cannot be the beginning of a header.
func (r *Response) whyNoBeginning(b []byte) error {
	switch {
	case r.lines == 0 && !bytes.HasPrefix(b, []byte("HTTP/1.")[:min(len(b), len("HTTP/1."))]):
		return ErrStatusLine // bytes that are not HTTP are refused early, because a line end may never come
	case len(b) <= MaxResponseHeader:
		return nil
	case r.lines == 0:
		return ErrStatusLine
	}
	return ErrTooLarge
}

func (r *Response) takeField(line []byte) error {
	f, ok := parseField(line)
	if !ok {
		if hasSpacedName(line) {
			return nil
		}
		return ErrField
	}
	r.Fields = append(r.Fields, f)
	switch len(f.Name) {
	case len("trailer"):
		if f.Is("trailer") && (Lists(f.Value, "content-length") || Lists(f.Value, "transfer-encoding") || Lists(f.Value, "trailer")) {
			return ErrField
		}
	case len("connection"):
		if f.Is("connection") {
			r.Close = r.Close && !Lists(f.Value, "keep-alive") || Lists(f.Value, "close")
			r.Names = r.Names || !Equal(f.Value, "keep-alive") && !Equal(f.Value, "close")
		}
	case len("content-length"):
		if f.Is("content-length") {
			if r.length != nil && !bytes.Equal(r.length, f.Value) {
				return ErrLength
			}
			if r.length, r.ContentLength = f.Value, parseNumber(f.Value); r.ContentLength < 0 {
				return ErrLength
			}
		}
	case len("transfer-encoding"):
		if f.Is("transfer-encoding") {
			if r.Chunked || r.old || !Equal(f.Value, "chunked") {
				return ErrCoding
			}
			r.Chunked = true
		}
	}
	return nil
}

// responseLine returns the line that begins at from, without its end, and the index at which the next line begins.
// next is 0 if the line has not ended.
func responseLine(b []byte, from int) (line []byte, next int) {
	end := bytes.IndexByte(b[from:], '\n')
	if end < 0 {
		return nil, 0
	}
	line = b[from : from+end]
	return bytes.TrimSuffix(line, []byte("\r")), from + end + 1
}

// hasSpacedName reports whether the line is a field except for spaces within its name. Some instances send
// such lines by mistake.
func hasSpacedName(line []byte) bool {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || line[0] == ' ' || line[colon-1] == ' ' || !areAll(line[colon+1:], isValue) {
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
	code := parseNumber(line[status : status+3])
	if code < 100 || len(line) > status+3 && line[status+3] != ' ' {
		return false
	}
	r.Status = int(code)
	if len(line) > status+4 {
		r.Reason = line[status+4:]
	}
	return areAll(r.Reason, isValue)
}

// HasContent reports whether content follows the header of an answer to the method.
func (r *Response) HasContent(method string) bool {
	return method != "HEAD" && r.Status >= 200 && r.Status != 204 && r.Status != 304
}
