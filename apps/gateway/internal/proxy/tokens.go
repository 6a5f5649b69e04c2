package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

// usageWithin is where the count of tokens is looked for: OpenAI's API has it at the end of
// an answer, and with include_usage in the last event of a stream.
const usageWithin = 2 << 10

// tail keeps the end of an answer that may tell how many tokens it took.
type tail struct {
	kept  []byte
	begun bool
	keeps bool
}

// write takes what is sent. An answer that is compressed tells nothing here.
func (t *tail) write(header http.Header, p []byte) {
	if !t.begun {
		t.begun = true
		kind, coded := header.Get("Content-Type"), header.Get("Content-Encoding")
		t.keeps = (strings.HasPrefix(kind, "application/json") || strings.HasPrefix(kind, "text/event-stream")) && coded == ""
	}
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

// usage is OpenAI's, as its API and those like it tell it.
type usage struct {
	Prompt     uint64 `json:"prompt_tokens"`
	Completion uint64 `json:"completion_tokens"`
}

// usage that the end of the answer tells, the last one; nil: it tells none. In the text of
// an answer quotes are escaped, so that it is not found there.
func (t *tail) usage() *usage {
	for rest := t.kept; ; {
		at := bytes.LastIndex(rest, []byte(`"usage"`))
		if at < 0 {
			return nil
		}
		said, found := bytes.CutPrefix(bytes.TrimLeft(rest[at+len(`"usage"`):], " "), []byte(":"))
		if found {
			u := &usage{}
			if json.NewDecoder(bytes.NewReader(t.kept[len(rest)-len(said):])).Decode(u) == nil && *u != (usage{}) {
				return u
			}
		}
		rest = rest[:at]
	}
}
