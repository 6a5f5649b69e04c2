// Package redact blanks the values of secrets in the output of programs, before the output goes
// into a message, a log or an answer.
//
// A value is found as it is, as each of its lines, and in common encodings: base64 (also inside a
// longer text), hex, URL escapes, and quoted as in JSON. A text that was cut out of a longer text
// may begin or end inside a value. Such a piece of a value is blanked, too. But a caller must blank
// a text before it cuts the text.
//
// It protects programs that print secrets by mistake. It cannot stop a program that wants to reveal
// its secrets.
package redact

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

const (
	// MinLength is the shortest length of a text that is blanked, in bytes. Shorter values, and
	// shorter pieces of values at the ends of a text, occur in every text.
	MinLength = 4
	// minLine is the shortest length of a line that is blanked by itself, in bytes. Lines are
	// blanked by themselves if their value has several.
	minLine = 8
	// Mark replaces a value.
	Mark = "***"
)

// Values has secret values. A nil *Values means that they are not known.
type Values struct {
	plain []string
	// forms has all forms of the values by their first bytes, longest first.
	forms map[[MinLength]byte][]string
	all   []string
}

// New returns Values with these values, in any order.
func New(values ...string) *Values {
	v := &Values{forms: map[[MinLength]byte][]string{}}
	seen := map[string]bool{}
	for _, value := range values {
		if !seen[value] {
			v.plain = append(v.plain, value)
		}
		for _, f := range formsOf(value) {
			if len(f) < MinLength || seen[f] {
				continue
			}
			seen[f] = true
			v.all = append(v.all, f)
		}
		seen[value] = true
	}
	slices.SortFunc(v.all, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	for _, f := range v.all {
		k := [MinLength]byte([]byte(f[:MinLength]))
		v.forms[k] = append(v.forms[k], f)
	}
	return v
}

// With returns Values with the values of v and more. It returns v itself if v has them all.
func (v *Values) With(more ...string) *Values {
	if v == nil {
		return New(more...)
	}
	if !slices.ContainsFunc(more, func(m string) bool { return !slices.Contains(v.plain, m) }) {
		return v
	}
	return New(slices.Concat(v.plain, more)...)
}

// Known reports whether the values are known. A program's output may be shown only if they are.
func (v *Values) Known() bool { return v != nil }

// Blank returns s with Mark in the place of each value. If the values are not known, it blanks
// nothing, so call Known first.
func (v *Values) Blank(s string) string {
	if v == nil || len(v.all) == 0 || len(s) < MinLength {
		return s
	}
	var b strings.Builder
	rest, ended := "", ""
	if n := v.endingIn(s); n > 0 {
		s, rest = s[n:], Mark
	}
	if n := v.beginningIn(s); n > 0 {
		s, ended = s[:len(s)-n], Mark
	}
	b.Grow(len(s))
	b.WriteString(rest)
	from := 0 // everything before it is written
	for i := 0; i+MinLength <= len(s); {
		n := v.longestAt(s[i:])
		if n == 0 {
			i++
			continue
		}
		b.WriteString(s[from:i])
		b.WriteString(Mark)
		i += n
		from = i
	}
	b.WriteString(s[from:])
	b.WriteString(ended)
	return b.String()
}

// longestAt returns the length of the longest form that s begins with, or 0 if there is none.
func (v *Values) longestAt(s string) int {
	for _, f := range v.forms[[MinLength]byte([]byte(s[:MinLength]))] {
		if strings.HasPrefix(s, f) {
			return len(f)
		}
	}
	return 0
}

// endingIn returns how many bytes at the beginning of s are the end of a form, or an inner part of
// one. It returns 0 if s begins with a whole form.
func (v *Values) endingIn(s string) (longest int) {
	if v.longestAt(s) > 0 {
		return 0
	}
	for _, f := range v.all {
		if len(s) < len(f) && strings.Contains(f, s) {
			return len(s)
		}
		for k := 1; ; k++ {
			i := strings.Index(f[k:], s[:MinLength])
			if k += i; i < 0 || len(f)-k <= longest {
				break
			}
			if strings.HasPrefix(s, f[k:]) {
				longest = len(f) - k
				break
			}
		}
	}
	return longest
}

// beginningIn returns how many bytes at the end of s are the beginning of a form. It returns 0 if s
// ends with a whole form.
func (v *Values) beginningIn(s string) (longest int) {
	for _, f := range v.all {
		if strings.HasSuffix(s, f) {
			return 0
		}
	}
	if len(s) < MinLength {
		return 0
	}
	for _, f := range v.all {
		for n := len(f) - 1; n > longest; n-- {
			i := strings.LastIndex(f[:n], s[len(s)-MinLength:])
			if n = i + MinLength; i < 0 || n <= longest {
				break
			}
			if strings.HasSuffix(s, f[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}

// formsOf returns the forms in which programs may write a value.
func formsOf(value string) []string {
	if len(value) < MinLength {
		return nil
	}
	texts := []string{value}
	if trimmed := strings.TrimSpace(value); trimmed != value && len(trimmed) >= MinLength {
		texts = append(texts, trimmed) // a file ends with a line break, which programs drop
	}
	if strings.Contains(strings.TrimSpace(value), "\n") {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minLine {
				texts = append(texts, line)
			}
		}
	}
	var out []string
	for _, t := range texts {
		h := hex.EncodeToString([]byte(t))
		out = append(out, t, url.QueryEscape(t), url.PathEscape(t), h, strings.ToUpper(h), quotedText(t, true), quotedText(t, false))
		out = append(out, base64Of(t)...)
	}
	return out
}

// quotedText returns a text as in a JSON string, without the quotes. With html, it escapes HTML
// characters as encoding/json does by default.
func quotedText(t string, html bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(t) != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

// base64Of returns the base64 forms of a text, as a whole and as a part of a longer text. The bytes
// before the text shift its bits in three possible ways. Letters that also depend on the bytes
// around the text are left out.
func base64Of(t string) (out []string) {
	for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		out = append(out, e.EncodeToString([]byte(t)), e.WithPadding(base64.NoPadding).EncodeToString([]byte(t)))
		for before, shared := range []int{0, 2, 3} {
			s := e.WithPadding(base64.NoPadding).EncodeToString(append(make([]byte, before), t...))
			if (before+len(t))%3 != 0 {
				s = s[:len(s)-1]
			}
			out = append(out, s[min(shared, len(s)):])
		}
	}
	return out
}
