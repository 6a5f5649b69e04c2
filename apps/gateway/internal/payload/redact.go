package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// shown is a body as it is logged.
type shown struct {
	Bytes int64  `json:"bytes"`
	Body  string `json:"body,omitempty"`
	// Cut: Body is only the beginning of the body.
	Cut bool `json:"cut,omitempty"`
	// LeftOut is why Body is empty, or which parts of it are left out.
	LeftOut string `json:"left_out,omitempty"`
}

const redacted = "[redacted]"

// shownBody returns the part of a body that may be logged. If the policy redacts fields, a body that cannot
// be read as JSON is left out, because its fields are not known.
func (p *Policy) shownBody(b *Body, kind, coding string) shown {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := shown{Bytes: b.size, Cut: b.size > int64(len(b.kept))}
	switch {
	case len(b.kept) == 0:
		return shown{Bytes: b.size}
	case coding != "" && coding != "identity":
		return shown{Bytes: b.size, LeftOut: "its coding is " + coding}
	case len(p.Redact) == 0:
		text := b.kept
		if out.Cut { // the cut may be in the middle of a character
			for i := 0; i < utf8.UTFMax && len(text) > 0 && !utf8.Valid(text); i++ {
				text = text[:len(text)-1]
			}
		}
		if !utf8.Valid(text) {
			return shown{Bytes: b.size, LeftOut: "it is not text"}
		}
		out.Body = string(text)
		return out
	case strings.HasPrefix(kind, "text/event-stream"):
		out.Body, out.LeftOut = p.redactStream(b.kept, out.Cut)
		return out
	case out.Cut:
		return shown{Bytes: b.size, LeftOut: "it is longer than the policy's limit, so its fields cannot be redacted"}
	}
	text, err := p.redactJSON(b.kept)
	if err != nil {
		return shown{Bytes: b.size, LeftOut: "it is not JSON, so its fields cannot be redacted"}
	}
	out.Body = string(text)
	return out
}

// redactStream redacts server-sent events. It leaves out lines that are neither JSON data nor "[DONE]". If the
// text is cut, it leaves out the last line, too.
func (p *Policy) redactStream(text []byte, cut bool) (body, leftOut string) {
	var out strings.Builder
	lines := bytes.Split(text, []byte("\n"))
	if cut {
		lines = lines[:len(lines)-1]
		leftOut = "lines"
	}
	for _, line := range lines {
		line = bytes.TrimRight(line, "\r")
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		data = bytes.TrimSpace(data)
		switch {
		case len(line) == 0:
		case isData && string(data) == "[DONE]":
			out.WriteString("data: [DONE]\n")
		case isData:
			if clean, err := p.redactJSON(data); err == nil {
				out.WriteString("data: " + string(clean) + "\n")
				continue
			}
			leftOut = "lines"
		default:
			leftOut = "lines"
		}
	}
	return out.String(), leftOut
}

// redactJSON redacts one JSON value. An error is returned if anything follows the value.
func (p *Policy) redactJSON(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one value")
	}
	return json.Marshal(p.cleanValue(v))
}

func (p *Policy) cleanValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if p.Redact[name] {
				v[name] = redacted
			} else {
				v[name] = p.cleanValue(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = p.cleanValue(v[i])
		}
	}
	return v
}
