package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

const redacted = "[redacted]"

// redactor removes secrets from JSON of the API.
type redactor struct {
	// messages keeps error messages, without the credentials in them. By default they are removed.
	messages bool
	// secret is removed from all texts.
	secret string
}

// credentials are texts that look like keys, tokens and passwords.
var credentials = []struct {
	pattern *regexp.Regexp
	instead string
}{
	// API keys, app keys, join tokens, credentials, sessions and links: wlk_, wlj_ ...
	{regexp.MustCompile(`wl[a-z]?_[A-Za-z0-9_-]+`), redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}`), "$1 " + redacted},
	{regexp.MustCompile(`(?i)([a-z0-9_-]*(?:password|passwd|secret|token|api_?-?key|credential)[a-z0-9_-]*["']?\s*[=:]\s*["']?)[^\s"',;&]+`), "${1}" + redacted},
	{regexp.MustCompile(`(://)[^/\s@]+@`), "${1}" + redacted + "@"},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`), redacted},
}

// redactText removes parts that look like credentials.
func (r redactor) redactText(s string) string {
	if r.secret != "" {
		s = strings.ReplaceAll(s, r.secret, redacted)
	}
	for _, c := range credentials {
		s = c.pattern.ReplaceAllString(s, c.instead)
	}
	return s
}

// redactJSON redacts a value, and indents it.
func (r redactor) redactJSON(data []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(r.redactValue("", v), "", "  ")
}

// redactValue redacts the value of a field.
func (r redactor) redactValue(field string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, each := range v {
			if field == "env" || field == "variables" || field == "podAnnotations" {
				v[key] = redacted
			} else {
				v[key] = r.redactValue(key, each)
			}
		}
		return v
	case []any:
		if field == "args" || field == "extraArgs" || field == "command" && len(v) > 1 {
			// The first element of a command is the program, which is not a secret.
			kept := min(len(v), map[string]int{"command": 1}[field])
			return append(r.redactValues(field, v[:kept]), fmt.Sprintf("%s %d", redacted, len(v)-kept))
		}
		return r.redactValues(field, v)
	case string:
		if lower := strings.ToLower(field); !r.messages && v != "" && (strings.HasSuffix(lower, "message") || strings.HasSuffix(lower, "why")) {
			return redacted
		}
		return r.redactText(v)
	}
	return v
}

func (r redactor) redactValues(field string, all []any) []any {
	out := make([]any, 0, len(all)+1)
	for _, each := range all {
		out = append(out, r.redactValue(field, each))
	}
	return out
}
