package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document is the mapping in a file. Its values have the types map[string]any, []any, string, bool, json.Number
// and ambiguous, or are nil.
type document struct {
	root map[string]any
	// lines has the line of each value, by the value's path.
	lines map[string]int
}

// ambiguous is a plain YAML scalar that parsers interpret differently: 010 is eight in YAML 1.1 and ten in YAML
// 1.2, and no is false or a text. The type of the field decides whether only one reading is possible.
type ambiguous string

// fieldError describes what is wrong with a field of a file.
type fieldError struct {
	path string
	line int // 0: not known
	text string
}

func (e *fieldError) Error() string {
	text := e.text
	if e.path != "" {
		text = truncateText(e.path) + ": " + text
	}
	if e.line > 0 {
		text = fmt.Sprintf("line %d: %s", e.line, text)
	}
	return text
}

// fieldErrorf returns an error about the value at a path.
func fieldErrorf(path, format string, args ...any) error {
	return &fieldError{path: path, text: fmt.Sprintf(format, args...)}
}

// maxErrors is how many errors of a file are shown.
const maxErrors = 10

// fieldErrors are several errors of a file, each on a line of its own.
type fieldErrors []error

func (e fieldErrors) Error() string {
	lines := make([]string, 0, maxErrors+1)
	for i, err := range e {
		if i == maxErrors {
			lines = append(lines, fmt.Sprintf("and %d more", len(e)-maxErrors))
			break
		}
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n  ")
}

func (e fieldErrors) Unwrap() []error { return e }

// joinErrors returns nil for no error, the error itself for one, and otherwise fieldErrors.
func joinErrors(errs ...error) error {
	var all fieldErrors
	for _, err := range errs {
		var several fieldErrors
		switch {
		case err == nil:
		case errors.As(err, &several):
			all = append(all, several...)
		default:
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// addLine adds lines to errors about fields: the line of the field, or of the value that contains it. It sorts several
// errors by their lines.
func (d *document) addLine(err error) error {
	if several, ok := errors.AsType[fieldErrors](err); ok {
		lineOf := func(err error) int {
			if field, ok := errors.AsType[*fieldError](err); ok {
				return field.line
			}
			return 0
		}
		for _, one := range several {
			_ = d.addLine(one) // this sets the line
		}
		slices.SortStableFunc(several, func(a, b error) int { return lineOf(a) - lineOf(b) })
		return err
	}
	var field *fieldError
	if !errors.As(err, &field) || field.line > 0 {
		return err
	}
	for path := field.path; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if line, ok := d.lines[path]; ok {
			field.line = line
			break
		}
	}
	return err
}

const (
	// maxValues bounds the number of values, because aliases can multiply them.
	maxValues = 100_000
	// maxDepth bounds the depth of nested mappings and lists.
	maxDepth = 64
)

// readDocument reads the document of a YAML or JSON file. A second document is an error.
func readDocument(data []byte) (*document, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the file is not UTF-8: save it as UTF-8")
	}
	if isJSON(data) {
		return readJSON(data)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var content *yaml.Node
	for {
		var next yaml.Node
		err := decoder.Decode(&next)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil && content == nil:
			return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
		case err != nil:
			return nil, fmt.Errorf("after the first document: %s: a file holds one app, so remove everything after its document",
				strings.TrimPrefix(err.Error(), "yaml: "))
		case isEmpty(&next):
			continue
		case content != nil:
			return nil, fmt.Errorf("line %d: a second document begins: a file holds one app, so put it into a file of its own", next.Content[0].Line)
		}
		content = &next
	}
	if content == nil {
		return nil, errNoMapping
	}
	return fromNode(content.Content[0])
}

var errNoMapping = errors.New("the file is not a mapping of fields: start with `app: NAME`")

// isEmpty reports whether a YAML document has no content.
func isEmpty(n *yaml.Node) bool {
	return n.Kind == 0 || len(n.Content) == 1 && n.Content[0].Kind == yaml.ScalarNode && n.Content[0].Style == 0 && n.Content[0].Value == ""
}

// fromNode returns the document of a YAML node.
func fromNode(n *yaml.Node) (*document, error) {
	d := &document{lines: map[string]int{}}
	r := nodeReader{document: d, within: map[*yaml.Node]bool{}}
	v, err := r.readValue("", n, 0)
	if err != nil {
		return nil, err
	}
	root, ok := v.(map[string]any)
	if !ok {
		return nil, errNoMapping
	}
	d.root = root
	return d, nil
}

// nodeReader converts YAML nodes to values.
type nodeReader struct {
	*document
	values int
	// within holds the anchors whose values are being read.
	within map[*yaml.Node]bool
}

func (r *nodeReader) readValue(path string, n *yaml.Node, depth int) (any, error) {
	r.values++
	switch {
	case r.values > maxValues:
		return nil, &fieldError{line: n.Line, text: fmt.Sprintf("the file has more than %d values, counting the values that aliases repeat: write fewer", maxValues)}
	case depth > maxDepth:
		return nil, &fieldError{line: n.Line, text: fmt.Sprintf("more than %d nested mappings and lists: no field is nested so deeply", maxDepth)}
	}
	if n.Kind != yaml.AliasNode {
		r.lines[path] = n.Line
	}
	if n.Anchor != "" {
		r.within[n] = true
		defer delete(r.within, n)
	}
	switch n.Kind {
	case yaml.AliasNode:
		if r.within[n.Alias] {
			return nil, &fieldError{path: path, line: n.Line, text: fmt.Sprintf("*%s refers to a value that contains it: write the value out", truncateText(n.Value))}
		}
		return r.readValue(path, n.Alias, depth+1)
	case yaml.SequenceNode:
		if err := r.checkTag(path, n, "!!seq"); err != nil {
			return nil, err
		}
		list := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			v, err := r.readValue(fmt.Sprintf("%s[%d]", path, i), item, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		if err := r.checkTag(path, n, "!!map"); err != nil {
			return nil, err
		}
		return r.readMapping(path, n, depth)
	case yaml.ScalarNode:
		return r.readScalar(path, n)
	default:
		return nil, &fieldError{path: path, line: n.Line, text: "not a value"}
	}
}

// readMapping reads the fields of a mapping. Merged mappings (<<) only add fields that the mapping does not have.
func (r *nodeReader) readMapping(path string, n *yaml.Node, depth int) (any, error) {
	fields, lines := map[string]any{}, map[string]int{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		for key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, &fieldError{path: path, line: n.Content[i].Line, text: "a name is a mapping or a list: write NAME: VALUE"}
		}
		if key.Style == 0 && key.Value == "<<" {
			merged = append(merged, value)
			continue
		}
		if key.Value == "" && key.Style == 0 {
			return nil, &fieldError{path: path, line: key.Line, text: "a value has no name: write NAME: VALUE"}
		}
		if first, twice := lines[key.Value]; twice {
			return nil, &fieldError{path: joinPath(path, key.Value), line: n.Content[i].Line, text: fmt.Sprintf("given twice, first in line %d: keep one of them", first)}
		}
		lines[key.Value] = n.Content[i].Line
		v, err := r.readValue(joinPath(path, key.Value), value, depth+1)
		if err != nil {
			return nil, err
		}
		fields[key.Value] = v
	}
	for _, m := range merged {
		if err := r.mergeInto(path, fields, m, depth); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// mergeInto adds missing fields to into, from a mapping or from each mapping of a list.
func (r *nodeReader) mergeInto(path string, into map[string]any, n *yaml.Node, depth int) error {
	all := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		all = n.Content
	}
	for _, one := range all {
		known := maps.Clone(r.lines)
		v, err := r.readValue(path, one, depth+1)
		if err != nil {
			return err
		}
		maps.Copy(r.lines, known)
		fields, ok := v.(map[string]any)
		if !ok {
			return &fieldError{path: joinPath(path, "<<"), line: one.Line, text: "want an alias of a mapping, such as <<: *base"}
		}
		for key, value := range fields {
			if _, ok := into[key]; !ok {
				into[key] = value
			}
		}
	}
	return nil
}

// checkTag refuses explicit tags other than the usual one.
func (r *nodeReader) checkTag(path string, n *yaml.Node, usual string) error {
	if n.Style&yaml.TaggedStyle == 0 || n.Tag == usual {
		return nil
	}
	return &fieldError{path: path, line: n.Line, text: fmt.Sprintf("the tag %s is not known here: remove it", truncateText(n.Tag))}
}

func (r *nodeReader) readScalar(path string, n *yaml.Node) (any, error) {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&yaml.TaggedStyle != 0 {
		v := parsePlain(n.Value)
		switch v.(type) {
		case bool:
			if n.Tag == "!!bool" {
				return v, nil
			}
		case json.Number:
			if n.Tag == "!!int" || n.Tag == "!!float" {
				return v, nil
			}
		case nil:
			if n.Tag == "!!null" {
				return v, nil
			}
		}
		if n.Tag == "!!str" || n.Tag == "!" {
			return n.Value, nil
		}
		return nil, r.checkTag(path, n, "")
	}
	if n.Style&quoted != 0 {
		return n.Value, nil
	}
	return parsePlain(n.Value), nil
}

var (
	decimal         = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*)$`)
	decimalZero     = regexp.MustCompile(`^[-+]?0[0-9]`)
	fraction        = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	ambiguousNumber = regexp.MustCompile(`^[-+]?(0[0-9_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(\.[0-9_]*)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$`)
	ambiguousBool   = regexp.MustCompile(`^(y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF)$`)
)

// parsePlain returns the value of a scalar without quotes.
func parsePlain(text string) any {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return nil
	case "true", "True", "TRUE":
		return true
	case "false", "False", "FALSE":
		return false
	}
	switch {
	case decimal.MatchString(text):
		return json.Number(strings.TrimPrefix(text, "+"))
	case fraction.MatchString(text) && json.Valid([]byte(text)):
		return json.Number(text)
	case fraction.MatchString(text), ambiguousNumber.MatchString(text), ambiguousBool.MatchString(text):
		return ambiguous(text)
	}
	return text
}

// plainNumber describes how to write a number that YAML parsers interpret differently.
func plainNumber(text string) string {
	digits := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseInt(strings.TrimLeft(digits, "+0"), 10, 64); err == nil && strings.Trim(digits, "+0123456789") == "" {
		if octal, err := strconv.ParseInt(digits, 8, 64); err == nil && strings.HasPrefix(strings.TrimPrefix(digits, "+"), "0") {
			return fmt.Sprintf("%s is %d to some YAML parsers and %d to others: write %d", text, n, octal, n)
		}
		return fmt.Sprintf("%s is not a number to every YAML parser: write %d", text, n)
	}
	if n, err := strconv.ParseInt(digits, 0, 64); err == nil {
		return fmt.Sprintf("%s is not a number to every YAML parser: write %d", text, n)
	}
	return fmt.Sprintf("%s is not a number to every YAML parser: write it in decimal digits", text)
}
