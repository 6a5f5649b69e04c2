package modelserver

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// CommandLineError is an engine's refusal of a command line, or its answer to --help. It has the text of the real
// engine.
type CommandLineError struct {
	// Usage is the line before the message, without a line break. It may be empty.
	Usage string
	// Message begins with the engine's name.
	Message string
	// Code is the exit code: 2 for flags, 1 for values that the engine refuses after parsing, 0 for help.
	Code int
}

func (e *CommandLineError) Error() string {
	if e.Usage == "" {
		return e.Message
	}
	return e.Usage + "\n" + e.Message
}

// ExitCode returns the code that the process must end with.
func (e *CommandLineError) ExitCode() int { return e.Code }

// kind is the type of a flag's value.
type kind int

const (
	text kind = iota
	integer
	optionalInteger // may be None, and has another error message
	humanInteger    // 32k is 32,000 and 32K is 32,768
	humanIntegerOrAuto
	decimal
	optionalDecimal
	jsonValue
	switched // takes no value
	boolean  // takes no value, and has a --no- form
)

// count is the number of values that a flag takes.
type count int

const (
	one count = iota
	oneOrMore
	anyNumber
	oneOrNone
)

// flag is one flag of an engine.
type flag struct {
	// names are joined by a slash, as in the engine's messages: --tensor-parallel-size/-tp. The first name is
	// the key of the flag's values.
	names   string
	kind    kind
	count   count
	choices []string
}

func (f *flag) firstName() string {
	key, _, _ := strings.Cut(f.names, "/")
	return key
}

// makeFlags returns flags of one kind.
func makeFlags(k kind, names ...string) []flag {
	all := make([]flag, len(names))
	for i, n := range names {
		all[i] = flag{names: n, kind: k}
	}
	return all
}

// listFlags returns flags that take one value or more.
func listFlags(k kind, names ...string) []flag {
	all := makeFlags(k, names...)
	for i := range all {
		all[i].count = oneOrMore
	}
	return all
}

// oneOf returns a flag that takes one of the choices.
func oneOf(name string, choices ...string) []flag {
	return []flag{{names: name, choices: choices}}
}

// arguments is the parsed command line, with values by the flag's first name.
type arguments struct {
	values     map[string][]string
	positional []string
}

func (a *arguments) hasKey(key string) bool { _, ok := a.values[key]; return ok }

// textOf returns a flag's only value. The result is false if the flag does not have exactly one value. "None" is
// Python's word for no value.
func (a *arguments) textOf(key string) (string, bool) {
	v := a.values[key]
	if len(v) != 1 || v[0] == "None" || v[0] == "" {
		return "", false
	}
	return v[0], true
}

// isOn reports whether a switch or boolean was given, and not negated later.
func (a *arguments) isOn(key string) bool { v := a.values[key]; return len(v) == 1 && v[0] == "true" }

// integerOf returns a flag's integer value, which the parser has checked.
func (a *arguments) integerOf(key string) (int, bool) {
	v, ok := a.textOf(key)
	if !ok {
		return 0, false
	}
	n, problem := humanInt(v)
	return n, problem == ""
}

func (a *arguments) decimalOf(key string) (float64, bool) {
	v, ok := a.textOf(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
	return n, err == nil
}

// parser parses a command line like Python's argparse, which both engines use.
type parser struct {
	program string
	usage   string
	byName  map[string]*flag
	// negated maps the --no- form of a flag to the flag.
	negated map[string]*flag
	names   []string
	// positionals is the maximum number of words without a flag.
	positionals int
}

func newParser(e *engine) *parser {
	p := &parser{program: e.program, usage: e.usage, byName: map[string]*flag{}, negated: map[string]*flag{}, positionals: e.positionals}
	for i := range e.flags {
		f := &e.flags[i]
		for name := range strings.SplitSeq(f.names, "/") {
			p.byName[name] = f
			p.names = append(p.names, name)
			if no, long := strings.CutPrefix(name, "--"); long && f.kind == boolean {
				p.negated["--no-"+no] = f
				p.names = append(p.names, "--no-"+no)
			}
		}
	}
	return p
}

func (p *parser) usageError(format string, args ...any) error {
	return &CommandLineError{Usage: "usage: " + p.usage, Message: p.program + ": error: " + fmt.Sprintf(format, args...), Code: 2}
}

// valueError returns the error for a value that the engine refuses after it has parsed its flags.
func (p *parser) valueError(message string) error {
	return &CommandLineError{Message: p.program + ": " + message, Code: 1}
}

func (p *parser) flagError(f *flag, format string, args ...any) error {
	return p.usageError("argument %s: %s", f.names, fmt.Sprintf(format, args...))
}

var negativeNumber = regexp.MustCompile(`^-(\d+|\d*\.\d+)$`)

// option is a word of the command line that names a flag.
type option struct {
	flag   *flag // nil if unknown
	no     bool
	value  string // after an equals sign
	joined bool
}

// readOption reads a word as an option. It returns nil for a word that is a value.
func (p *parser) readOption(word string) (*option, error) {
	if len(word) < 2 || word[0] != '-' {
		return nil, nil
	}
	if o := p.findExact(word); o != nil {
		return o, nil
	}
	name, value, joined := strings.Cut(word, "=")
	if joined {
		if o := p.findExact(name); o != nil {
			o.value, o.joined = value, true
			return o, nil
		}
	}
	var matches []string
	for _, known := range p.names {
		if strings.HasPrefix(known, name) {
			matches = append(matches, known)
		}
	}
	switch {
	case len(matches) > 1:
		return nil, p.usageError("ambiguous option: %s could match %s", name, strings.Join(matches, ", "))
	case len(matches) == 1:
		o := p.findExact(matches[0])
		o.value, o.joined = value, joined
		return o, nil
	}
	// The value of a flag of one letter may follow without a space.
	if f := p.byName[word[:2]]; f != nil && word[1] != '-' {
		return &option{flag: f, value: word[2:], joined: true}, nil
	}
	if negativeNumber.MatchString(word) || strings.Contains(word, " ") {
		return nil, nil
	}
	return &option{}, nil
}

func (p *parser) findExact(name string) *option {
	if f := p.byName[name]; f != nil {
		return &option{flag: f}
	}
	if f := p.negated[name]; f != nil {
		return &option{flag: f, no: true}
	}
	return nil
}

func (p *parser) parseWords(words []string) (*arguments, error) {
	out := &arguments{values: map[string][]string{}}
	var extra []string
	for i := 0; i < len(words); {
		word := words[i]
		i++
		if word == "-h" || word == "--help" {
			return nil, p.helpError()
		}
		if word == "--" {
			for _, rest := range words[i:] {
				extra = p.takePositional(out, extra, rest)
			}
			break
		}
		o, err := p.readOption(word)
		if err != nil {
			return nil, err
		}
		if o == nil {
			extra = p.takePositional(out, extra, word)
			continue
		}
		if o.flag == nil {
			extra = append(extra, word)
			continue
		}
		var following []string
		for ; i+len(following) < len(words); following = append(following, words[i+len(following)]) {
			next := words[i+len(following)]
			if next == "--" {
				break
			}
			if o, err := p.readOption(next); err != nil || o != nil {
				break // the outer loop returns the error when it reaches the word
			}
		}
		taken, err := p.takeValues(out, o, following)
		if err != nil {
			return nil, err
		}
		i += taken
	}
	if len(extra) > 0 {
		return nil, p.usageError("unrecognized arguments: %s", strings.Join(extra, " "))
	}
	return out, nil
}

func (p *parser) takePositional(out *arguments, extra []string, word string) []string {
	if len(out.positional) < p.positionals {
		out.positional = append(out.positional, word)
		return extra
	}
	return append(extra, word)
}

// takeValues sets a flag's values from the words after it, and returns the number of these words.
func (p *parser) takeValues(out *arguments, o *option, following []string) (int, error) {
	f := o.flag
	if f.kind == switched || f.kind == boolean {
		if o.joined {
			return 0, p.flagError(f, "ignored explicit argument %s", quotePython(o.value))
		}
		out.values[f.firstName()] = []string{strconv.FormatBool(!o.no)}
		return 0, nil
	}
	values := following
	switch {
	case o.joined:
		values = []string{o.value}
	case f.count == one && len(following) == 0:
		return 0, p.flagError(f, "expected one argument")
	case f.count == oneOrMore && len(following) == 0:
		return 0, p.flagError(f, "expected at least one argument")
	case f.count == one, f.count == oneOrNone:
		values = following[:min(1, len(following))]
	}
	for _, v := range values {
		if err := p.checkValue(f, v); err != nil {
			return 0, err
		}
	}
	out.values[f.firstName()] = slices.Clone(values)
	if o.joined {
		return 0, nil
	}
	return len(values), nil
}

// checkValue returns an error for a value that does not fit its flag. It has argparse's text, or for flags whose value
// may be None, the text of vLLM's types.
func (p *parser) checkValue(f *flag, value string) error {
	absent := value == "" || value == "None"
	var wrong string
	switch f.kind {
	case text, switched, boolean:
	case integer:
		if _, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
			wrong = "invalid int value: " + quotePython(value)
		}
	case optionalInteger:
		if _, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil && !absent {
			wrong = fmt.Sprintf("Value %s cannot be converted to <class 'int'>.", value)
		}
	case humanInteger, humanIntegerOrAuto:
		auto := f.kind == humanIntegerOrAuto && strings.EqualFold(strings.TrimSpace(value), "auto")
		if _, problem := humanInt(value); !absent && !auto {
			wrong = problem
		}
	case decimal:
		if _, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
			wrong = "invalid float value: " + quotePython(value)
		}
	case optionalDecimal:
		if _, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil && !absent {
			wrong = fmt.Sprintf("Value %s cannot be converted to <class 'float'>.", value)
		}
	case jsonValue:
		if !json.Valid([]byte(value)) && !absent {
			wrong = fmt.Sprintf("Value %s cannot be converted to <function loads>.", value)
		}
	}
	if wrong == "" && f.choices != nil && !slices.Contains(f.choices, value) {
		quoted := make([]string, len(f.choices))
		for i, c := range f.choices {
			quoted[i] = quotePython(c)
		}
		wrong = fmt.Sprintf("invalid choice: %s (choose from %s)", quotePython(value), strings.Join(quoted, ", "))
	}
	if wrong != "" {
		return p.flagError(f, "%s", wrong)
	}
	return nil
}

// helpError returns the list of flags as an error, so that the process ends as the engine does after --help.
func (p *parser) helpError() error {
	names := slices.Clone(p.names)
	slices.Sort(names)
	return &CommandLineError{Usage: "usage: " + p.usage, Message: "options:\n  -h, --help\n  " + strings.Join(names, "\n  "), Code: 0}
}

// quotePython quotes a text as Python's repr does.
func quotePython(s string) string {
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		return `"` + s + `"`
	}
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", `\'`) + "'"
}

var human = regexp.MustCompile(`^(\d+(?:\.\d+)?)([kKmMgGtT])$`)

// humanInt parses an integer, which may have a suffix: 32k is 32,000 and 32K is 32,768. problem is the
// engine's message, or "".
func humanInt(value string) (n int, problem string) {
	value = strings.TrimSpace(value)
	m := human.FindStringSubmatch(value)
	if m == nil {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, fmt.Sprintf("Value %s cannot be converted to <function human_readable_int>.", value)
		}
		return int(n), ""
	}
	tooLarge := fmt.Sprintf("Value %s is too large.", value)
	power := strings.IndexByte("kmgt", strings.ToLower(m[2])[0]) + 1
	if m[2] == strings.ToLower(m[2]) {
		f, err := strconv.ParseFloat(m[1], 64)
		if f *= math.Pow(1000, float64(power)); err != nil || f >= math.MaxInt64 {
			return 0, tooLarge
		}
		return int(f), ""
	}
	if strings.Contains(m[1], ".") {
		return 0, fmt.Sprintf("Decimals are not allowed with binary suffixes like %s. Did you mean to use %s%s instead?", m[2], m[1], strings.ToLower(m[2]))
	}
	whole, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || whole > math.MaxInt64>>(10*power) {
		return 0, tooLarge
	}
	return int(whole) << (10 * power), ""
}
