package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// FuzzParseAppFile gives the parser any file. An accepted file has a name and a spec. It reads the same in the form
// that `-o yaml` prints, in the form that export writes, and with a reader of YAML 1.1. With anything after its end it
// is refused. A refusal is short and names the line, and the field if the file has fields.
func FuzzParseAppFile(f *testing.F) {
	f.Add([]byte("app: a\ncommand: [x]\nregions: [r]\nhealthCheck: {interval: 1s}\nenv: {A: b}\n"))
	f.Add([]byte(`{"app":"a","ports":[{"name":"http","port":0}]}`))
	f.Add([]byte("app: a\nprogressDeadline: -1.5s\nresources: {gpu: {pool: h100, count: 1}}\nkubernetes: {runAsUser: 1000, zoneSpread: required}\n"))
	f.Add([]byte("app: &n a\nenv: &e {A: *n, B: *n}\nroles: [{name: *n, env: *e}]\nmodelCache: {retention: keep, claim: {sizeGib: 500}}\n"))
	f.Add([]byte("app: a\nhealthCheck: &h {interval: 1s, path: /a}\nroles: [{name: b, healthCheck: {<<: [*h, {path: /b}], timeout: 2s}}]\n"))
	f.Add([]byte("---\napp: a\nreplicas: 4.0\nresources: {memoryMib: 0x10}\nrollout: {maxSurge: 010, analysis: [{name: n, max: .5, min: 1e3}]}\nrouting: {requireApiKey: on}\n...\n---\n"))
	f.Add([]byte("{\n\t\"app\": \"a\",\n\t\"message\": \"\\ud83d\\ude00\",\n\t\"replicas\": 1e1\n}\n{\"app\": \"b\"}"))
	f.Add([]byte("app: a\nreplicas: 1\nreplicas: 2\nregions: [no, 1_000, 1:30, ~]\nenv: {010: !!str 010, !!int B: \"x\"}\n"))
	f.Add([]byte("app: a\nenv: &e {A: *e}\ncommand: a b c\n"))
	examples, err := filepath.Glob("../../../../deployments/examples/*.yaml")
	if err != nil || len(examples) == 0 {
		f.Fatalf("no examples to begin with: %v", err)
	}
	for _, path := range examples {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parseAppFile(data)
		if err != nil {
			checkRefusal(t, data, err)
			return
		}
		if file.App == "" || file.Spec == nil {
			t.Fatalf("accepted without a name or spec: %q", data)
		}
		again, err := parseAppFile(printAsYAML(t, file))
		if err != nil {
			t.Fatalf("%q is accepted, but not when it is printed: %v", data, err)
		}
		if again.App != file.App || again.Project != file.Project || again.Environment != file.Environment || !proto.Equal(again.Spec, file.Spec) {
			t.Fatalf("%q reads as %v, and printed as %v", data, file, again)
		}
		if file.Freeze != nil && len(file.Freeze.Weekly) == 0 {
			file.Freeze.TimeZone = "" // no window uses it
		}
		if written, _, err := checkedText(file); err != nil {
			t.Fatalf("%q is accepted, but not as it is exported, %q: %v", data, written, err)
		}
		for _, more := range []string{"\n---\nx: 1\n", "\n---\n- *a\n"} {
			if _, err := parseAppFile(append(bytes.Clone(data), more...)); err == nil {
				t.Fatalf("%q is accepted with %q after it", data, more)
			}
		}
		compareWithYAML11(t, data, file)
	})
}

// compareWithYAML11 compares with a reader of YAML 1.1, for which 010 is eight and no is false. The parser must
// refuse values that the two read differently.
func compareWithYAML11(t *testing.T, data []byte, file *appFile) {
	if isJSON(data) {
		return
	}
	converted, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return // the other reader does not support a merged key that is overridden
	}
	d, err := readDocument(data)
	if err != nil {
		t.Fatal(err)
	}
	for path := range d.lines {
		for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
			if parsePlain(name) != any(name) {
				return // the other reader changes this name, such as on to true
			}
		}
	}
	other, err := parseAppFile(converted)
	if err != nil {
		t.Fatalf("%q is accepted, but not as %q: %v", data, converted, err)
	}
	if other.App != file.App || !proto.Equal(other.Spec, file.Spec) || !proto.Equal(other.Rollout, file.Rollout) || !proto.Equal(other.Freeze, file.Freeze) {
		t.Fatalf("%q reads as %v, and by YAML 1.1 as %v", data, file, other)
	}
}

// printAsYAML returns the file as `-o yaml` prints it.
func printAsYAML(t *testing.T, file *appFile) []byte {
	spec, err := protojson.Marshal(file.Spec)
	if err != nil {
		t.Fatalf("accepted what cannot be printed: %v", err)
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(spec, &fields); err != nil {
		t.Fatal(err)
	}
	for key, name := range map[string]string{"app": file.App, "project": file.Project, "environment": file.Environment} {
		if fields[key], err = json.Marshal(name); err != nil {
			t.Fatal(err)
		}
	}
	out, err := yaml.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkRefusal checks the text of an error.
func checkRefusal(t *testing.T, data []byte, err error) {
	text := err.Error()
	if text == "" || len(text) > 4<<10 || !utf8.ValidString(text) {
		t.Fatalf("%q is refused with %d bytes: %q", data, len(text), text)
	}
	if line, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(line, "line ") {
		if _, err := strconv.Atoi(strings.TrimPrefix(line, "line ")); err != nil {
			t.Fatalf("%q is refused with %s", data, text)
		}
		text = rest
	}
	var root map[string]any
	converted, yamlErr := yaml.YAMLToJSONStrict(data)
	if yamlErr != nil || json.Unmarshal(converted, &root) != nil || root == nil || strings.HasPrefix(text, "app: ") {
		return
	}
	// These are about the file as a whole.
	for _, said := range []string{"a second document", "a second value", "after the first", "the tag ", "more than ", "the file is not"} {
		if strings.HasPrefix(text, said) {
			return
		}
	}
	for key := range root {
		if strings.HasPrefix(text, truncateText(key)) {
			return
		}
	}
	if d, err := readDocument(data); err == nil {
		for key := range d.root {
			if strings.HasPrefix(text, truncateText(key)) {
				return
			}
		}
	}
	t.Fatalf("%q is refused without the name of a field: %s", data, text)
}
