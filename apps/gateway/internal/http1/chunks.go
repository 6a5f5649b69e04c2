package http1

import "bytes"

// Chunks decodes chunked content (RFC 9112, section 7.1). The zero value is at the beginning of a body.
type Chunks struct {
	state state
	// left is how many bytes of the chunk are left, and digits is the number of digits of its size.
	left   int64
	digits int
	// line is how many bytes after the size the current size line has. In trailers it is the index at which
	// the current line begins. overhead is how many bytes of framing came, less 16 for each byte of content.
	line, overhead int
	trailers       []byte
	fields         int // the number of fields in trailers
}

type state uint8

const (
	size state = iota
	padding
	extension
	sizeLF
	data
	dataCR
	dataLF
	trailer
	ended
)

const (
	maxLine     = 4 << 10
	maxTrailers = 64 << 10
	// maxOverhead is how much framing may exceed 16 bytes for each byte of content.
	maxOverhead = 16 << 10
)

// Done reports whether the last chunk and the trailers have come.
func (c *Chunks) Done() bool { return c.state == ended }

// Decode moves the content in b to the beginning of b. n is the length of the content. used is how many bytes
// of b were read: all of them, unless the chunks ended before or are malformed.
func (c *Chunks) Decode(b []byte) (n, used int, err error) {
	for used < len(b) && c.state != ended {
		if c.state == data {
			take := int(min(c.left, int64(len(b)-used)))
			copy(b[n:], b[used:used+take])
			n, used, c.left = n+take, used+take, c.left-int64(take)
			c.overhead = max(0, c.overhead-16*take)
			if c.left == 0 {
				c.state = dataCR
			}
			continue
		}
		if c.overhead++; c.overhead > maxOverhead+maxTrailers {
			return n, used, ErrChunk
		}
		if !c.stepByte(b[used]) {
			return n, used, ErrChunk
		}
		used++
	}
	return n, used, nil
}

// stepByte reads a byte of the framing.
func (c *Chunks) stepByte(b byte) bool {
	switch c.state {
	case size:
		if d := hexDigit(b); d >= 0 {
			c.left, c.digits = c.left<<4|int64(d), c.digits+1
			return c.digits <= 15
		}
		if c.digits == 0 {
			return false
		}
		c.line, c.state = 0, padding
		return c.stepByte(b)
	case padding, extension:
		switch c.line++; {
		case b == '\r':
			c.state = sizeLF
		case c.line > maxLine:
			return false
		case c.state == extension:
			return isValue[b]
		case b == ';':
			c.state = extension
		default:
			return b == ' ' || b == '\t'
		}
	case sizeLF:
		return b == '\n' && c.endSizeLine()
	case dataCR:
		c.state = dataLF
		return b == '\r'
	case dataLF:
		c.state = size
		return b == '\n'
	case trailer:
		c.trailers = append(c.trailers, b)
		if b == '\n' {
			line := bytes.TrimSuffix(c.trailers[c.line:len(c.trailers)-1], []byte("\r"))
			if len(line) == 0 {
				c.state = ended
				return c.endsInCRLF()
			}
			c.line = len(c.trailers)
			c.fields++
			_, ok := parseField(line)
			return ok && c.fields <= MaxResponseFields
		}
		return len(c.trailers) < maxTrailers
	case data, ended:
	}
	return true
}

// endsInCRLF reports whether the last line of trailers and the empty line after it end in CR and LF. net/http
// does not find the end of other trailers.
func (c *Chunks) endsInCRLF() bool {
	empty := len(c.trailers) - c.line
	return empty == len("\r\n") && (c.line == 0 || c.line > 1 && c.trailers[c.line-2] == '\r')
}

// endSizeLine is called at the end of the line that states a chunk's size.
func (c *Chunks) endSizeLine() bool {
	c.digits, c.line = 0, 0
	if c.state = data; c.left == 0 {
		c.state = trailer
	}
	return true
}

// Trailers returns the fields that followed the last chunk, in their order.
func (c *Chunks) Trailers() []Field {
	var out []Field
	for at := 0; ; {
		line, next := responseLine(c.trailers, at)
		if next == 0 || len(line) == 0 {
			return out
		}
		if f, ok := parseField(line); ok {
			out = append(out, f)
		}
		at = next
	}
}
