package http1

import "bytes"

// Request is the header of a plain request. Such a request is HTTP/1.1 and has a path, a Host, and no body or a
// body of a known length. The only field about the client's connection says whether the connection is kept.
type Request struct {
	Method, Target, Host []byte
	// Path is Target up to its question mark, if it has one.
	Path []byte
	// Fields are in their order, and include Host, Content-Length and Connection.
	Fields []Field
	// ContentLength is in bytes. HasLength is whether the request states it. Otherwise ContentLength is 0.
	ContentLength int64
	HasLength     bool
	// Close is whether the client wants the connection closed after the answer.
	Close bool
}

// maxFields is how many fields a header may have.
const maxFields = 128

// methods are the methods of plain requests. Other methods are rare, or ask for something other than an answer.
var methods = [...]string{"GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"}

// ParseRequest reads the header at the beginning of b into r, and reuses r's Fields. n is the index in b at which
// the body begins. After the verdict Other, r has no meaning.
func ParseRequest(b []byte, r *Request) (n int, verdict Verdict) {
	*r = Request{Fields: r.Fields[:0]}
	line, n, verdict := cutLine(b, 0)
	if verdict != Whole {
		return 0, verdict
	}
	if !r.readRequestLine(line) {
		return 0, Other
	}
	for connection := false; ; {
		if line, n, verdict = cutLine(b, n); verdict != Whole {
			return 0, verdict
		}
		if len(line) == 0 {
			break
		}
		f, ok := parseField(line)
		if !ok || len(r.Fields) == maxFields || !r.takeField(f, &connection) {
			return 0, Other
		}
		r.Fields = append(r.Fields, f)
	}
	if len(r.Host) == 0 {
		return 0, Other
	}
	return n, Whole
}

// cutLine returns the line that begins at from, without its end, and the index at which the next line begins. The
// line must end in CR and LF, and contain no other CR or LF.
func cutLine(b []byte, from int) (line []byte, next int, verdict Verdict) {
	end := bytes.IndexByte(b[from:], '\n')
	switch {
	case end < 0:
		return nil, 0, More
	case end == 0 || b[from+end-1] != '\r':
		return nil, 0, Other
	}
	return b[from : from+end-1], from + end + 1, Whole
}

// readRequestLine reads method, target and version. It returns false if the line is not the request line of a plain
// HTTP/1.1 request.
func (r *Request) readRequestLine(line []byte) bool {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return false
	}
	target, version, ok := bytes.Cut(rest, []byte(" "))
	if !ok || string(version) != "HTTP/1.1" || !isMethod(method) || !r.takePath(target) {
		return false
	}
	r.Method, r.Target = method, target
	return true
}

func isMethod(text []byte) bool {
	for _, m := range methods {
		if string(text) == m {
			return true
		}
	}
	return false
}

// takePath reads a target in origin form. It returns false for a target that can be read in two ways, because it
// has an empty segment at its beginning, an invalid encoding or a fragment.
func (r *Request) takePath(target []byte) bool {
	if len(target) == 0 || target[0] != '/' || len(target) > 1 && target[1] == '/' {
		return false
	}
	r.Path = target
	for i := 1; i < len(target); i++ {
		c := target[i]
		switch {
		case isTarget[c]:
		case c == '?':
			if len(r.Path) == len(target) {
				r.Path = target[:i]
			}
		case c == '%' && i+2 < len(target) && hexDigit(target[i+1]) >= 0 && hexDigit(target[i+2]) >= 0:
			i += 2
		default:
			return false
		}
	}
	return true
}

// takeField checks a field that may say how the message must be read. It returns false if the request must go
// through net/http.
func (r *Request) takeField(f Field, connection *bool) bool {
	switch len(f.Name) {
	case len("host"):
		if f.Is("host") {
			if r.Host != nil || len(f.Value) == 0 || !areAll(f.Value, isHost) {
				return false
			}
			r.Host = f.Value
		}
	case len("connection"):
		switch {
		case f.Is("connection"):
			if *connection {
				return false
			}
			*connection = true
			switch {
			case Equal(f.Value, "keep-alive"):
			case Equal(f.Value, "close"):
				r.Close = true
			default:
				return false
			}
		case f.Is("keep-alive"):
			return false
		}
	case len("content-length"):
		if f.Is("content-length") {
			if r.HasLength {
				return false
			}
			r.HasLength, r.ContentLength = true, parseNumber(f.Value)
			return r.ContentLength >= 0
		}
	case len("te"):
		return !f.Is("te")
	case len("expect"):
		return !f.Is("expect")
	case len("upgrade"):
		return !f.Is("upgrade") && !f.Is("trailer")
	case len("transfer-encoding"):
		return !f.Is("transfer-encoding")
	case len("proxy-connection"):
		return !f.Is("proxy-connection")
	}
	return true
}

// hexDigit returns the value of a hexadecimal digit, -1 for anything else.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}
