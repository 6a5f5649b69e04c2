package rpc

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"buf.build/go/protovalidate"
)

// jsonPath returns the path of a field with JSON's names: "spec.healthCheck.port" for
// "spec.health_check.port". Keys of maps are not changed.
func jsonPath(path string) string {
	if !strings.Contains(path, "_") {
		return path
	}
	var b strings.Builder
	quoted, escaped, upper := false, false, false
	for _, r := range path {
		switch {
		case quoted:
			quoted = escaped || r != '"'
			escaped = !escaped && r == '\\'
		case r == '"':
			quoted = true
		case r == '_':
			upper = true
			continue
		case upper && 'a' <= r && r <= 'z':
			r += 'A' - 'a'
		}
		upper = false
		b.WriteRune(r)
	}
	return b.String()
}

// maxName is the maximum length of a name in the schema's patterns.
const maxName = 63

// patterns maps a pattern of the schema to an explanation for people.
var patterns = map[string]string{
	`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`:    "use at most 63 lower-case letters, digits and dashes, a letter first and no dash last, as in chat-2",
	`^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$`: "use at most 63 lower-case letters, digits and dashes, a letter first and no dash last, as in chat-2",
	`^[A-Za-z_][A-Za-z0-9_]*$`:             "a variable's name has letters, digits and underscores, and no digit first, as in LOG_LEVEL",
	`^([0-9]{1,5}|[0-9]{1,3}%)?$`:          "use a number or a share, as in 2 or 25%",
	`^[ -~]*$`:                             "use printable ASCII characters only",
	`^((Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([01][0-9]|2[0-3]):[0-5][0-9]$`: "use a day and a time from 00:00 to 23:59, as in Fri 16:00, or a time alone for every day, as in 22:00",
}

// explainPattern returns what is wrong with a string that does not match its pattern. It returns "" for another
// rule, and for a pattern without an explanation.
func explainPattern(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() != "string.pattern" || !v.RuleValue.IsValid() {
		return ""
	}
	words := patterns[v.RuleValue.String()]
	if words == "" || !v.FieldValue.IsValid() {
		return words
	}
	value, ok := v.FieldValue.Interface().(string)
	if !ok {
		return words
	}
	if n := utf8.RuneCountInString(value); n > maxName {
		return fmt.Sprintf("it has %d characters: %s", n, words)
	}
	return fmt.Sprintf("%q is not valid: %s", value, words)
}

// listEnum returns the fix for a value of an enum that is not allowed: the names of the values that are. It returns ""
// for another rule.
func listEnum(v *protovalidate.Violation) string {
	f := v.FieldDescriptor
	if f == nil || f.Enum() == nil || !strings.HasPrefix(v.Proto.GetRuleId(), "enum.") {
		return ""
	}
	var names []string
	for i := range f.Enum().Values().Len() {
		if value := f.Enum().Values().Get(i); value.Number() != 0 {
			names = append(names, string(value.Name()))
		}
	}
	return "Use one of " + strings.Join(names, ", ") + "."
}
