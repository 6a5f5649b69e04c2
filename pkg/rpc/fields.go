package rpc

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/choices"
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

// pattern explains a pattern of the schema to people.
type pattern struct {
	words string
	// limit is the maximum number of characters that the pattern allows. 0: it has no such limit.
	limit int
}

var (
	nameWords      = pattern{"use at most 63 lower-case letters, digits and dashes, a letter first and no dash last, as in chat-2", 63}
	labelWords     = pattern{"use at most 63 letters, digits, dashes, underscores and dots, a letter or digit first and last, as in gpu-a100", 63}
	labelNameWords = pattern{"use a label's name, with or without a domain, as in disk or example.com/disk", 0}
	headerWords    = pattern{"a header's name has letters, digits and dashes, as in X-Session", 0}
	flagWords      = pattern{"begin with one or two dashes and a letter or digit, then use letters, digits, dashes, underscores and dots, as in --max-model-len", 130}
	shareWords     = pattern{"use a number or a share, as in 2 or 25%", 0}
	objectWords    = pattern{"use lower-case letters, digits, dashes and dots, a letter or digit first and last, as in fast-ssd", 0}
	folderWords    = pattern{"begin with / and use no colon, as in /models", 0}
)

// patterns maps a pattern of the schema to its explanation.
var patterns = map[string]pattern{
	`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`:                                                    nameWords,
	`^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$`:                                                 nameWords,
	`^[a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?$`:                                               {"use at most 63 lower-case letters, digits, dashes, underscores and dots, a letter or digit first and last, as in llama-3.1", 63},
	`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`:                                        {"use letters, digits, dashes, underscores and dots, a letter or digit first and last, as in Llama-3.1-8B", 0},
	`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`:                                   labelWords,
	`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`:    labelNameWords,
	`^(([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`: labelNameWords,
	`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`:         {"use a resource's name with its domain, as in nvidia.com/gpu", 0},
	`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`:                                                  objectWords,
	`^[-A-Za-z0-9_.]*$`:                                                                    {"use letters, digits, dashes, underscores and dots, as in NVIDIA-H100-80GB-HBM3", 0},
	`^[A-Za-z_][A-Za-z0-9_]*$`:                                                             {"a variable's name has letters, digits and underscores, and no digit first, as in LOG_LEVEL", 0},
	`^([0-9]{1,5}|[0-9]{1,3}%)?$`:                                                          shareWords,
	`^([0-9]{1,5}|[0-9]{1,4}%)?$`:                                                          shareWords,
	`^(https?|s3|oci)://[^\s@?#]+@sha256:[0-9a-f]{64}$`:                                    {"use https://HOST/PATH, s3://BUCKET/KEY or oci://REGISTRY/REPOSITORY, with @sha256: and 64 hex digits at the end", 0},
	`^(https?://[^\s@?#/]+/?)?$`:                                                           {"use a URL without a path, as in https://storage.example.com", 0},
	`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$`:                                              {"use at most 63 lower-case letters, digits and dashes, a letter or digit first and last, as in eu-west-1", 63},
	`^[ -~]*$`:                            {"use printable ASCII characters only", 0},
	`^(/[!-~]*)?$`:                        {"begin with / and use printable ASCII characters without spaces, as in /health", 0},
	`^/[^:]+$`:                            folderWords,
	`^(/[^:]+)?$`:                         folderWords,
	"^[-!#$%&'*+.^_`|~0-9A-Za-z]*$":       headerWords,
	"^[-!#$%&'*+.^_`|~0-9A-Za-z]{1,128}$": {headerWords.words, 128},
	`^[A-Z]{1,32}$`:                       {"a method has at most 32 upper-case letters, as in GET", 32},
	`^[A-Z][A-Z0-9_]*$`:                   {"use upper-case letters, digits and underscores, a letter first, as in IPC_LOCK", 0},
	`^-{1,2}[A-Za-z0-9][-A-Za-z0-9_.]{0,127}$`:                         flagWords,
	`^(-{1,2}[A-Za-z0-9][-A-Za-z0-9_.]{0,127})?$`:                      flagWords,
	`^[A-Z][A-Za-z0-9]{0,63}$`:                                         {"use at most 64 letters and digits, an upper-case letter first, as in ContextTooLong", 64},
	`^[a-z][A-Za-z0-9]{0,63}([.][A-Za-z0-9]{1,64}){0,4}$`:              {"use a field's path, as in context or parallel.tensor", 0},
	`^((Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([01][0-9]|2[0-3]):[0-5][0-9]$`: {"use a day and a time from 00:00 to 23:59, as in Fri 16:00, or a time alone for every day, as in 22:00", 0},
}

// explainPattern returns what is wrong with a string that does not match its pattern. It returns "" for another
// rule, and for a pattern without an explanation.
func explainPattern(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() != "string.pattern" || !v.RuleValue.IsValid() {
		return ""
	}
	p := patterns[v.RuleValue.String()]
	if p.words == "" || !v.FieldValue.IsValid() {
		return p.words
	}
	value, ok := v.FieldValue.Interface().(string)
	if !ok {
		return p.words
	}
	if n := utf8.RuneCountInString(value); p.limit > 0 && n > p.limit {
		return fmt.Sprintf("it has %d characters: %s", n, p.words)
	}
	if len(value) > maxQuoted {
		return p.words
	}
	return fmt.Sprintf("%q is not valid: %s", value, p.words)
}

// maxQuoted is the maximum length of a value in a message, in bytes.
const maxQuoted = 256

// explainUnique names the first item that a list without repetition contains twice. It returns "" for another rule.
func explainUnique(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() != "repeated.unique" || v.FieldDescriptor == nil || !v.FieldValue.IsValid() {
		return ""
	}
	list, ok := v.FieldValue.Interface().(protoreflect.List)
	if !ok {
		return ""
	}
	first := map[any]int{}
	for i := range list.Len() {
		key := list.Get(i).Interface()
		if data, ok := key.([]byte); ok {
			key = string(data)
		}
		j, twice := first[key]
		if !twice {
			first[key] = i
			continue
		}
		if text := itemText(v.FieldDescriptor, list.Get(i)); len(text) <= maxQuoted {
			return fmt.Sprintf("%s is there twice, as items %d and %d: keep one of them", text, j+1, i+1)
		}
		return fmt.Sprintf("items %d and %d are the same: keep one of them", j+1, i+1)
	}
	return ""
}

// itemText returns an item of a list of scalars as files write it.
func itemText(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	if field.Enum() == nil {
		return value.String()
	}
	if d := field.Enum().Values().ByNumber(value.Enum()); d != nil {
		return choices.Name(d)
	}
	return strconv.Itoa(int(value.Enum()))
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
