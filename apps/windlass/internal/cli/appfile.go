package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// appFile is the content of an app's file: the app's name, project and environment, its policies, and the fields
// of the API's DeploymentSpec in their JSON form.
type appFile struct {
	App         string
	Project     string
	Environment string
	Spec        *windlassv1.DeploymentSpec
	// Rollout and Freeze are nil without such a block.
	Rollout *windlassv1.RolloutPolicy
	Freeze  *windlassv1.FileFreeze
	// Scaling is nil for an app whose replicas do not follow the load.
	Scaling *windlassv1.ScalingPolicy

	// path is the file that was read. document has the lines of its fields.
	path     string
	document *document
}

// maxAppFile is more than the API accepts, because YAML needs more bytes than the API's form.
const maxAppFile = 4 << 20

// readFile reads a file of at most maxAppFile bytes, or standard input for "-".
func readFile(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // read only
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxAppFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxAppFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", path, maxAppFile>>20)
	}
	return data, nil
}

// readAppFile reads a file, or standard input for "-".
func readAppFile(path string, stdin io.Reader) (*appFile, error) {
	data, err := readFile(path, stdin)
	if err != nil {
		return nil, err
	}
	file, err := parseAppFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file.path = path
	return file, nil
}

// parseAppFile reads YAML or JSON. Its errors name the field and the fix.
func parseAppFile(data []byte) (*appFile, error) {
	d, err := readDocument(data)
	if err != nil {
		return nil, err
	}
	file, err := d.appFile()
	if err != nil {
		return nil, d.addLine(err)
	}
	file.document = d
	return file, nil
}

func (d *document) appFile() (_ *appFile, err error) {
	root := d.root
	file := &appFile{Spec: &windlassv1.DeploymentSpec{}}
	names := map[string]*string{"app": &file.App, "project": &file.Project, "environment": &file.Environment}
	for _, key := range slices.Sorted(maps.Keys(names)) {
		value, ok := root[key]
		if !ok {
			continue
		}
		text, ok := value.(string)
		if !ok {
			return nil, fieldErrorf(key, "want a name, got %s", valueText(value))
		}
		if strings.Contains(text, "/") {
			return nil, fieldErrorf(key, "%s is not a name: write the names of project and environment into the fields `project` and `environment`", valueText(value))
		}
		*names[key] = text
		delete(root, key)
	}
	if file.App == "" {
		for _, key := range slices.Sorted(maps.Keys(root)) {
			if specSchema.Fields().ByJSONName(key) == nil && nearestName(key, fieldNames(specSchema)) == "app" {
				return nil, fieldErrorf(key, "no such field: did you mean app?")
			}
		}
		return nil, errors.New("app: missing: give the app a name, for example `app: echo`")
	}
	var wrong []error
	if value, ok := root["rollout"]; ok {
		delete(root, "rollout")
		file.Rollout, err = parsePolicy(value)
		wrong = append(wrong, err)
	}
	if value, ok := root["freeze"]; ok {
		delete(root, "freeze")
		file.Freeze, err = parseFreeze(value)
		wrong = append(wrong, err)
	}
	if value, ok := root["scaling"]; ok {
		delete(root, "scaling")
		file.Scaling, err = parseScaling(value)
		wrong = append(wrong, err)
	}
	if err := joinErrors(append(wrong, normaliseFields("", root, file.Spec.ProtoReflect().Descriptor()))...); err != nil {
		return nil, err
	}
	normalised, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := protojson.Unmarshal(normalised, file.Spec); err != nil {
		return nil, errors.New(cleanProtoError(err))
	}
	return file, nil
}

func parsePolicy(value any) (*windlassv1.RolloutPolicy, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fieldErrorf("rollout", "want a mapping, got %s: start with `strategy: rolling`", valueText(value))
	}
	if on, short := parseBool(fields["autoRollback"]); short {
		fields["autoRollback"] = map[string]any{"enabled": on}
	}
	policy := &windlassv1.RolloutPolicy{}
	if err := normaliseFields("rollout", fields, policy.ProtoReflect().Descriptor()); err != nil {
		return nil, err
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := protojson.Unmarshal(data, policy); err != nil {
		return nil, errors.New("rollout: " + cleanProtoError(err))
	}
	return policy, nil
}

func parseScaling(value any) (*windlassv1.ScalingPolicy, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fieldErrorf("scaling", "want a mapping, got %s: start with `max: 10`", valueText(value))
	}
	policy := &windlassv1.ScalingPolicy{}
	if err := normaliseFields("scaling", fields, policy.ProtoReflect().Descriptor()); err != nil {
		return nil, err
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := protojson.Unmarshal(data, policy); err != nil {
		return nil, errors.New("scaling: " + cleanProtoError(err))
	}
	return policy, nil
}

// parseFreeze reads the app's own freeze. It takes times as people write them, and windows as `windlass
// freeze set` takes them.
func parseFreeze(value any) (*windlassv1.FileFreeze, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fieldErrorf("freeze", `want a mapping, got %s: start with "reason: no on-call engineer"`, valueText(value))
	}
	zone := time.UTC
	if name, ok := fields["timeZone"].(string); ok {
		var err error
		if zone, err = time.LoadLocation(name); err != nil {
			return nil, fieldErrorf("freeze.timeZone", "%s names no time zone: write for example Europe/London", valueText(name))
		}
	}
	for _, key := range []string{"from", "until"} {
		text, ok := fields[key].(string)
		if !ok {
			continue
		}
		at, err := parseTime(text, zone)
		if err != nil {
			return nil, fieldErrorf("freeze."+key, "%s", err)
		}
		fields[key] = json.Number(strconv.FormatInt(at, 10))
	}
	if list, ok := fields["weekly"].([]any); ok {
		for i, v := range list {
			text, ok := v.(string)
			if !ok {
				continue
			}
			window, err := weeklyWindow(text)
			if err != nil {
				return nil, fieldErrorf(fmt.Sprintf("freeze.weekly[%d]", i), "%s", err)
			}
			list[i] = map[string]any{"start": window.Start, "end": window.End}
		}
	}
	if _, windows := fields["weekly"]; !windows {
		delete(fields, "timeZone") // without windows, only the times needed the zone, and they are parsed
	}
	freeze := &windlassv1.FileFreeze{}
	if err := normaliseFields("freeze", fields, freeze.ProtoReflect().Descriptor()); err != nil {
		return nil, err
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := protojson.Unmarshal(data, freeze); err != nil {
		return nil, errors.New("freeze: " + cleanProtoError(err))
	}
	return freeze, nil
}

const (
	durationName = "google.protobuf.Duration"
	structName   = "google.protobuf.Struct"
)

// laterFields has fields that a later release will support, as MESSAGE.FIELD, and what to do until then.
var laterFields = map[string]string{
	"RoleSpec.update": "leave it out; update of the app says in which order roles move",
}

// readOnlyFields are fields that the control plane sets, and that a file cannot set.
var readOnlyFields = map[protoreflect.FullName]bool{
	"windlass.v1.DeploymentSpec.generated":        true,
	"windlass.v1.DeploymentSpec.generated_by":     true,
	"windlass.v1.DeploymentSpec.inherited_env":    true,
	"windlass.v1.DeploymentSpec.pinned_overrides": true,
	"windlass.v1.ScalingOverride.region_ids":      true,
	"windlass.v1.SecretReference.version":         true,
}

// IsReadOnly reports whether the control plane sets the field, so that an app file cannot set it.
func IsReadOnly(field protoreflect.FullName) bool { return readOnlyFields[field] }

// fileFields are the fields of a file that are not fields of the spec.
var fileFields = []string{"app", "environment", "freeze", "project", "rollout", "scaling"}

// specSchema describes the spec, whose fields are fields of the file itself.
var specSchema = (&windlassv1.DeploymentSpec{}).ProtoReflect().Descriptor()

// normaliseFields checks the names of fields against the schema. It rewrites values that people write and protojson does
// not parse: durations such as 10m, and short names of choices. Its error names every field that is wrong.
func normaliseFields(path string, fields map[string]any, schema protoreflect.MessageDescriptor) error {
	var wrong []error
	// The keys are sorted, so that the errors are in the same order each time.
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		field := schema.Fields().ByJSONName(key)
		if field == nil {
			field = schema.Fields().ByName(protoreflect.Name(key))
		}
		where := joinPath(path, key)
		if field != nil && readOnlyFields[field.FullName()] {
			wrong = append(wrong, fieldErrorf(where, "no such field of a file: the control plane sets it: leave it out"))
			continue
		}
		if field == nil {
			err := fieldErrorf(where, "no such field%s", suggestField(key, schema))
			if fix, ok := laterFields[string(schema.Name())+"."+key]; ok {
				err = fieldErrorf(where, "not supported yet: %s", fix)
			}
			wrong = append(wrong, err)
			continue
		}
		wrong = append(wrong, normaliseValue(where, fields, key, field))
	}
	return joinErrors(wrong...)
}

// normaliseValue is normalise for the value of one field, which is at key of fields.
func normaliseValue(where string, fields map[string]any, key string, field protoreflect.FieldDescriptor) error {
	value := fields[key]
	switch {
	case field.IsMap():
		m, ok := value.(map[string]any)
		if !ok {
			return fieldErrorf(where, "want a mapping of names to texts, got %s: write for example {NAME: value}", valueText(value))
		}
		for name, v := range m {
			if _, ok := v.(string); !ok {
				return fieldErrorf(joinPath(where, name), "%s is not a text: put it in quotes", valueText(v))
			}
		}
	case field.IsList():
		list, ok := value.([]any)
		if !ok {
			return fieldErrorf(where, "want a list, got %s: write %s", valueText(value), listHint(field, value))
		}
		var wrong []error
		for i, v := range list {
			item := fmt.Sprintf("%s[%d]", where, i)
			if field.Message() == nil {
				one, err := checkScalar(field, v)
				if err != nil {
					wrong = append(wrong, fieldErrorf(item, "%s", err))
				}
				list[i] = one
			} else if m, ok := v.(map[string]any); ok {
				wrong = append(wrong, normaliseFields(item, m, field.Message()))
			} else {
				wrong = append(wrong, fieldErrorf(item, "want a mapping, got %s%s", valueText(v), writeExample(field.Message(), v)))
			}
		}
		return joinErrors(wrong...)
	case field.Message() != nil && field.Message().FullName() == durationName:
		d, err := parseDuration(value)
		if err != nil {
			return fieldErrorf(where, "%s", err)
		}
		fields[key] = d
	case field.Message() != nil && field.Message().FullName() == structName:
		return checkOptions(where, value)
	case field.Message() != nil:
		m, ok := value.(map[string]any)
		if !ok {
			return fieldErrorf(where, "want a mapping, got %s%s", valueText(value), writeExample(field.Message(), value))
		}
		return normaliseFields(where, m, field.Message())
	default:
		v, err := checkScalar(field, value)
		if err != nil {
			return fieldErrorf(where, "%s", err)
		}
		fields[key] = v
	}
	return nil
}

// checkOptions checks a mapping whose values are texts, numbers, booleans, or lists of these.
func checkOptions(where string, value any) error {
	m, ok := value.(map[string]any)
	if !ok {
		return fieldErrorf(where, "want a mapping, got %s: write for example {max-num-seqs: 64}", valueText(value))
	}
	check := func(at string, v any) error {
		switch v := v.(type) {
		case ambiguous:
			return fieldErrorf(at, "YAML parsers disagree about %s: put it in quotes, or write true, false or a number in decimal digits", valueText(v))
		case nil, map[string]any, []any:
			return fieldErrorf(at, "want a text, a number, true or false, got %s", valueText(v))
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list, ok := m[name].([]any)
		if !ok {
			list = []any{m[name]}
		}
		for _, v := range list {
			if err := check(joinPath(where, name), v); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseDuration turns 10m or 1.5s into the API's form, seconds.
func parseDuration(value any) (string, error) {
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s has no unit: write for example 10s or 5m", valueText(value))
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return "", fmt.Errorf("%q is not a duration: write for example 10s or 5m", truncateText(text))
	}
	sign := ""
	if d < 0 {
		sign = "-"
	}
	whole, rest := int64(d/time.Second), int64(d%time.Second)
	return fmt.Sprintf("%s%d.%09ds", sign, max(whole, -whole), max(rest, -rest)), nil
}

// joinPath appends a key to the path of a field.
func joinPath(path, key string) string {
	key = truncateText(key)
	if path == "" {
		return key
	}
	return path + "." + key
}

// maxShown is the maximum length of a value in an error, in bytes.
const maxShown = 200

// valueText returns the value as text for an error.
func valueText(value any) string {
	if value == nil {
		return "nothing"
	}
	if text, ok := value.(string); ok {
		return truncateText(text)
	}
	return truncateText(flowText(value))
}

// truncateText cuts a text to maxShown bytes.
func truncateText(text string) string {
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "..."
}

// suggestField returns a hint that names the most similar field or, without one, all fields. The fields are those of
// the schema that a file can set.
func suggestField(key string, schema protoreflect.MessageDescriptor) string {
	names := fieldNames(schema)
	if best := nearestName(key, names); best != "" {
		return fmt.Sprintf(": did you mean %s?", best)
	}
	return ": there are " + strings.Join(names, ", ")
}

// fieldNames returns the sorted names of the fields that a file can set.
func fieldNames(schema protoreflect.MessageDescriptor) (names []string) {
	if schema.FullName() == specSchema.FullName() {
		names = slices.Clone(fileFields)
	}
	for i := range schema.Fields().Len() {
		if f := schema.Fields().Get(i); !readOnlyFields[f.FullName()] {
			names = append(names, f.JSONName())
		}
	}
	sort.Strings(names)
	return names
}

// nearestName returns the name that is most similar to key, or "" if none is similar.
func nearestName(key string, names []string) (best string) {
	// A short key is similar to many names.
	bestDistance := min(3, len(key)/2) + 1
	for _, name := range names {
		if d := editDistance(strings.ToLower(key), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance.
func editDistance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(next[j]+1, prev[j+1]+1, prev[j]+cost)
		}
		prev = next
	}
	return prev[len(b)]
}

// cleanProtoError drops the library's prefix, whose spacing varies on purpose.
func cleanProtoError(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	if _, rest, ok := strings.Cut(text, "): "); ok && strings.HasPrefix(text, "(") {
		return rest
	}
	return text
}
