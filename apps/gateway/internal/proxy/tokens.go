package proxy

import (
	"bytes"
	"strings"
)

// usageWithin is how many bytes at the end of an answer are searched for the count of tokens. OpenAI's API
// states it at the end of an answer and, with include_usage, in the last event of a stream.
const usageWithin = 2 << 10

// tail keeps the end of an answer that may state its count of tokens.
type tail struct {
	kept  []byte
	keeps bool
}

// beginContent begins an answer with this Content-Type and Content-Encoding. Compressed content is not read.
func (t *tail) beginContent(kind, coded string) {
	t.kept = t.kept[:0]
	t.keeps = (strings.HasPrefix(kind, "application/json") || strings.HasPrefix(kind, "text/event-stream")) && coded == ""
}

// write takes a part of the answer.
func (t *tail) write(p []byte) {
	if !t.keeps {
		return
	}
	if len(p) >= usageWithin {
		t.kept = append(t.kept[:0], p[len(p)-usageWithin:]...)
		return
	}
	if over := len(t.kept) + len(p) - usageWithin; over > 0 {
		t.kept = t.kept[:copy(t.kept, t.kept[over:])]
	}
	t.kept = append(t.kept, p...)
}

// usage is the count of tokens in the form of OpenAI's API.
type usage struct{ Prompt, Completion uint64 }

// lastUsage returns the last usage that the end of the answer states. ok is false if the end states none. A
// generated text that looks like a usage is not found, because quotes in it are escaped.
func (t *tail) lastUsage() (u usage, ok bool) {
	for rest := t.kept; ; {
		at := bytes.LastIndex(rest, []byte(`"usage"`))
		if at < 0 {
			return usage{}, false
		}
		if u, ok = readUsage(t.kept[at+len(`"usage"`):]); ok {
			return u, true
		}
		rest = rest[:at]
	}
}

// readUsage reads the object that follows the name of the field. It looks for the two numbers at the top level of
// the object. It does not check the rest, because the client reads the answer anyway.
func readUsage(b []byte) (u usage, ok bool) {
	b = bytes.TrimLeft(b, " \t\r\n")
	if len(b) == 0 || b[0] != ':' {
		return u, false
	}
	b = bytes.TrimLeft(b[1:], " \t\r\n")
	if len(b) == 0 || b[0] != '{' {
		return u, false
	}
	depth, text := 0, -1
	var name []byte
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text >= 0 && c == '\\':
			i++
		case text >= 0 && c == '"':
			name, text = b[text:i], -1
		case text >= 0:
		case c == '"':
			text = i + 1
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return u, u != (usage{})
			}
		case c == ':' && depth == 1:
			switch string(name) {
			case "prompt_tokens":
				u.Prompt = leadingNumber(b[i+1:])
			case "completion_tokens":
				u.Completion = leadingNumber(b[i+1:])
			}
		}
	}
	return usage{}, false // the object has no end
}

// leadingNumber returns 0 if there is no number, or if it is larger than any count of tokens.
func leadingNumber(b []byte) (n uint64) {
	b = bytes.TrimLeft(b, " \t\r\n")
	for i, c := range b {
		if c < '0' || c > '9' {
			if c == '.' || c == 'e' || c == 'E' {
				return 0
			}
			return n
		}
		if n = n*10 + uint64(c-'0'); i >= 15 {
			return 0
		}
	}
	return 0
}
