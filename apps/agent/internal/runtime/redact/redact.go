// Package redact blanks the values of secrets in what programs write, before it goes into a
// message, a log or an answer.
//
// A value is found as it is, as each of its lines, and as programs commonly encode it: base64
// (also in the midst of a longer text), hex, URL escapes, and quoted as in JSON. What was cut
// out of a longer text may begin or end within a value: that piece is blanked, too, so that
// a caller which keeps the end of an output needs no margin. Redact first, cut after.
//
// It is a net under programs that print what they should not. One that wants to give its
// secrets away can.
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
	// MinLength of what is blanked, in bytes: shorter values, and shorter pieces of values at
	// the ends of a text, are words of any text.
	MinLength = 4
	// minLine is the shortest line of a value with several lines that is blanked by itself.
	minLine = 8
	// Mark stands where a value was.
	Mark = "***"
)

// Values are secret values. A nil *Values means that they are not known.
type Values struct {
	plain []string
	// forms by their first bytes, longest first.
	forms map[[MinLength]byte][]string
	all   []string
}

// New returns the values to blank, in any order.
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

// With returns v and more values. It is v itself when v has them all.
func (v *Values) With(more ...string) *Values {
	if v == nil {
		return New(more...)
	}
	if !slices.ContainsFunc(more, func(m string) bool { return !slices.Contains(v.plain, m) }) {
		return v
	}
	return New(slices.Concat(v.plain, more)...)
}

// Known reports whether the values are known: a program's output is repeated only then.
func (v *Values) Known() bool { return v != nil }

// Blank returns s with Mark in the place of each value. Values that are not known blank
// nothing: ask Known first.
func (v *Values) Blank(s string) string {
	if v == nil || len(v.all) == 0 || len(s) < MinLength {
		return s
	}
	var b strings.Builder
	rest, ended := "", ""
	if n := v.ending(s); n > 0 {
		s, rest = s[n:], Mark
	}
	if n := v.beginning(s); n > 0 {
		s, ended = s[:len(s)-n], Mark
	}
	b.Grow(len(s))
	b.WriteString(rest)
	from := 0 // what is before it is written
	for i := 0; i+MinLength <= len(s); {
		n := v.at(s[i:])
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

// at returns the length of the longest form that s begins with, 0 for none.
func (v *Values) at(s string) int {
	for _, f := range v.forms[[MinLength]byte([]byte(s[:MinLength]))] {
		if strings.HasPrefix(s, f) {
			return len(f)
		}
	}
	return 0
}

// ending returns how much of the beginning of s is the end of a form, or the midst of one. A
// form that is there as a whole is none of its business.
func (v *Values) ending(s string) (longest int) {
	if v.at(s) > 0 {
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

// beginning returns how much of the end of s is the beginning of a form.
func (v *Values) beginning(s string) (longest int) {
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

// formsOf returns a value as it may be written.
func formsOf(value string) []string {
	if len(value) < MinLength {
		return nil
	}
	texts := []string{value}
	if trimmed := strings.TrimSpace(value); trimmed != value && len(trimmed) >= MinLength {
		texts = append(texts, trimmed) // files end with a line break, and programs drop it
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
		out = append(out, t, url.QueryEscape(t), url.PathEscape(t), h, strings.ToUpper(h), quoted(t, true), quoted(t, false))
		out = append(out, base64Of(t)...)
	}
	return out
}

// quoted is a text within the quotes of JSON; html also as encoding/json has it by default.
func quoted(t string, html bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(t) != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

// base64Of is a text in base64, as a whole and as a part of something longer: what comes
// before it shifts its bits in three ways, and shares a letter with it at either end.
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
