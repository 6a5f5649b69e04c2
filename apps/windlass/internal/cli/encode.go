package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// firstFields are the fields of a spec with which a file begins, as people write files. The other fields follow in
// the order of the schema.
var firstFields = []protoreflect.Name{"serve", "regions", "replicas", "version_label"}

// encodeAppFile returns the app file as YAML. parseAppFile reads the same file from it.
func encodeAppFile(f *appFile) ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, field := range [][2]string{{"app", f.App}, {"project", f.Project}, {"environment", f.Environment}} {
		addField(root, field[0], textNode(field[1]))
	}
	spec, err := messageNode("", f.Spec.ProtoReflect(), firstFields...)
	if err != nil {
		return nil, err
	}
	root.Content = append(root.Content, spec.Content...)
	for _, block := range []struct {
		name string
		of   proto.Message
	}{{"scaling", f.Scaling}, {"rollout", f.Rollout}, {"freeze", f.Freeze}} {
		if !block.of.ProtoReflect().IsValid() {
			continue
		}
		n, err := messageNode(block.name, block.of.ProtoReflect())
		if err != nil {
			return nil, err
		}
		if freeze, ok := block.of.(*windlassv1.FileFreeze); ok {
			writeTimes(n, freeze)
		}
		addField(root, block.name, n)
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return escapeUnsafe(b.Bytes()), nil
}

// writeTimes replaces the times and windows of a freeze by the texts that people write.
func writeTimes(n *yaml.Node, f *windlassv1.FileFreeze) {
	write := func(value *yaml.Node, ms int64) {
		text := time.UnixMilli(ms).UTC().Format(time.RFC3339Nano)
		if at, err := parseTime(text, time.UTC); err == nil && at == ms {
			*value = *textNode(text)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		value := n.Content[i+1]
		switch n.Content[i].Value {
		case "from":
			write(value, f.GetFrom())
		case "until":
			write(value, f.GetUntil())
		case "weekly":
			for j, w := range f.GetWeekly() {
				text := w.GetStart() + " - " + w.GetEnd()
				if same, err := weeklyWindow(text); err == nil && proto.Equal(same, w) {
					value.Content[j] = textNode(text)
				}
			}
		}
	}
}

// escapeUnsafe writes characters that could control a terminal, or that reorder text, as escapes. They are in
// double quotes, because isPlain is false for them.
func escapeUnsafe(data []byte) []byte {
	if !bytes.ContainsFunc(data, unsafeToPrint) {
		return data
	}
	var b bytes.Buffer
	for _, r := range string(data) {
		if unsafeToPrint(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

func addField(n *yaml.Node, name string, value *yaml.Node) {
	key := textNode(name)
	if key.Style == yaml.LiteralStyle {
		key.Style = yaml.DoubleQuotedStyle
	}
	n.Content = append(n.Content, key, value)
}

// messageNode returns the set fields of a message. The fields named first come first. path is the path of the message
// in the file, for errors.
func messageNode(path string, m protoreflect.Message, first ...protoreflect.Name) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.MappingNode}
	all := m.Descriptor().Fields()
	var fields []protoreflect.FieldDescriptor
	for _, name := range first {
		fields = append(fields, all.ByName(name))
	}
	for i := range all.Len() {
		if f := all.Get(i); !slices.Contains(first, f.Name()) {
			fields = append(fields, f)
		}
	}
	for _, f := range fields {
		if !m.Has(f) {
			continue
		}
		value, err := fieldNode(joinPath(path, f.JSONName()), f, m.Get(f))
		if err != nil {
			return nil, err
		}
		addField(n, f.JSONName(), value)
	}
	return n, nil
}

// fieldNode returns the value of a field: a mapping, a list or one value.
func fieldNode(path string, f protoreflect.FieldDescriptor, v protoreflect.Value) (*yaml.Node, error) {
	switch {
	case f.IsMap():
		texts := map[string]string{}
		v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			texts[key.String()] = value.String()
			return true
		})
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.Sorted(maps.Keys(texts)) {
			addField(n, key, textNode(texts[key]))
		}
		return n, nil
	case f.IsList():
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.List().Len() {
			item, err := valueNode(fmt.Sprintf("%s[%d]", path, i), f, v.List().Get(i))
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		return n, nil
	}
	return valueNode(path, f, v)
}

// valueNode returns one value in the form of app files.
func valueNode(path string, f protoreflect.FieldDescriptor, v protoreflect.Value) (*yaml.Node, error) {
	switch f.Kind() { //nolint:exhaustive // kinds that the schema has; others are errors
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *durationpb.Duration:
			return plainNode(fileDuration(m.AsDuration())), nil
		case *structpb.Struct:
			return anyNode(path, m.AsMap())
		}
		return messageNode(path, v.Message())
	case protoreflect.EnumKind:
		choice, ok := choiceText(f.Enum(), v.Enum())
		if !ok {
			return nil, fieldErrorf(path, "choice %d is not known to this release of windlass: use the release of the control plane", v.Enum())
		}
		return textNode(choice), nil
	case protoreflect.BoolKind, protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.DoubleKind:
		return anyNode(path, v.Interface())
	case protoreflect.StringKind:
		if _, isNumber := parsePlain(v.String()).(json.Number); isNumber && numericTexts[f.FullName()] && !strings.HasPrefix(v.String(), "+") {
			return plainNode(v.String()), nil
		}
		return textNode(v.String()), nil
	}
	return nil, fieldErrorf(path, "this release of windlass cannot write %s: use the release of the control plane", f.Kind())
}

// anyNode returns the node of a value of JSON.
func anyNode(path string, v any) (*yaml.Node, error) {
	switch v := v.(type) {
	case string:
		return textNode(v), nil
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			value, err := anyNode(joinPath(path, key), v[key])
			if err != nil {
				return nil, err
			}
			addField(n, key, value)
		}
		return n, nil
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i, item := range v {
			value, err := anyNode(fmt.Sprintf("%s[%d]", path, i), item)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, value)
		}
		return n, nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fieldErrorf(path, "%v has no form in a file: set another value", v)
	}
	return plainNode(string(data)), nil
}

// plainNode returns a value that is written as it is.
func plainNode(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// textNode returns a text, in quotes if a YAML parser could read it as another type.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	switch {
	case isBlock(text):
		n.Style = yaml.LiteralStyle
	case !isPlain(text):
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// isPlain reports whether a text of one line needs no quotes, as far as its value and its characters are concerned.
// The encoder adds quotes where the syntax needs them.
func isPlain(text string) bool {
	return parsePlain(text) == any(text) && text != "<<" && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || unsafeToPrint(r) })
}

// isBlock reports whether a text of several lines is written line by line.
func isBlock(text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return strings.Contains(text, "\n") && lines[0] != "" && lines[len(lines)-1] != "" && !strings.HasPrefix(text, " ") &&
		!slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasSuffix(line, " ") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) || unsafeToPrint(r) })
		})
}

// fileDuration returns a duration as people write it: 10m, and not 10m0s.
func fileDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// choiceText returns the name of a choice in app files: STRATEGY_BLUE_GREEN is blueGreen. ok is false if the schema
// does not have the choice.
func choiceText(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) (text string, ok bool) {
	value := enum.Values().ByNumber(number)
	if value == nil {
		return "", false
	}
	prefix := strings.TrimSuffix(string(enum.Values().Get(0).Name()), "UNSPECIFIED")
	words := strings.Split(strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix)), "_")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, ""), true
}

// asJSON returns the app file as JSON, from its YAML.
func asJSON(text []byte) ([]byte, error) {
	d, err := readDocument(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d.root); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b.Bytes(), nil
}

// checkedText returns the YAML of the app file, and the file that deploy reads from it. A difference between the two
// files is an error.
func checkedText(f *appFile) (text []byte, read *appFile, err error) {
	if text, err = encodeAppFile(f); err != nil {
		return nil, nil, err
	}
	if read, err = parseAppFile(text); err != nil {
		return nil, nil, fmt.Errorf("its file could not be read again: %w", err)
	}
	field, err := differentField(f, read)
	if err != nil {
		return nil, nil, err
	}
	if field != "" {
		return nil, nil, fieldErrorf(field, "a file cannot hold this value: set another value with the API, and report this fault")
	}
	read.path = f.path
	return text, read, nil
}

// differentField returns the path of a field in which two files differ, or "".
func differentField(a, b *appFile) (string, error) {
	switch {
	case a.App != b.App:
		return "app", nil
	case a.Project != b.Project:
		return "project", nil
	case a.Environment != b.Environment:
		return "environment", nil
	case !proto.Equal(a.Scaling, b.Scaling):
		return "scaling", nil
	case !proto.Equal(a.Rollout, b.Rollout):
		return "rollout", nil
	case !proto.Equal(a.Freeze, b.Freeze):
		return "freeze", nil
	case proto.Equal(a.Spec, b.Spec):
		return "", nil
	}
	was, err := flattenSpec(a.Spec)
	if err != nil {
		return "", err
	}
	is, err := flattenSpec(b.Spec)
	if err != nil {
		return "", err
	}
	for _, path := range slices.Sorted(maps.Keys(was)) {
		if is[path] != was[path] {
			return path, nil
		}
	}
	return "spec", nil
}
