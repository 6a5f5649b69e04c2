package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// FuzzParseAppFile gives the parser whatever somebody may have in a file. What it
// takes has a name and a spec, and reads the same when it is printed as `-o yaml`
// prints it; what it refuses it refuses briefly, naming the field if there are
// fields at all.
func FuzzParseAppFile(f *testing.F) {
	f.Add([]byte("app: a\ncommand: [x]\nregions: [r]\nhealthCheck: {interval: 1s}\nenv: {A: b}\n"))
	f.Add([]byte(`{"app":"a","ports":[{"name":"http","port":0}]}`))
	f.Add([]byte("app: a\nprogressDeadline: -1.5s\nresources: {gpu: {pool: h100, count: 1}}\nkubernetes: {runAsUser: 1000, zoneSpread: required}\n"))
	f.Add([]byte("app: &n a\nenv: &e {A: *n, B: *n}\nroles: [{name: *n, env: *e}]\nmodelCache: {retention: keep, claim: {sizeGib: 500}}\n"))
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
			refusedWell(t, data, err)
			return
		}
		if file.App == "" || file.Spec == nil {
			t.Fatalf("accepted without a name or spec: %q", data)
		}
		again, err := parseAppFile(inPrint(t, file))
		if err != nil {
			t.Fatalf("%q is taken, but not when it is printed: %v", data, err)
		}
		if again.App != file.App || again.Project != file.Project || again.Environment != file.Environment || !proto.Equal(again.Spec, file.Spec) {
			t.Fatalf("%q reads as %v, and printed as %v", data, file, again)
		}
	})
}

func inPrint(t *testing.T, file *appFile) []byte {
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

// refusedWell checks an error's words.
func refusedWell(t *testing.T, data []byte, err error) {
	text := err.Error()
	if text == "" || len(text) > 4<<10 || !utf8.ValidString(text) {
		t.Fatalf("%q is refused with %d bytes: %q", data, len(text), text)
	}
	var root map[string]any
	converted, yamlErr := yaml.YAMLToJSONStrict(data)
	if yamlErr != nil || json.Unmarshal(converted, &root) != nil || strings.HasPrefix(text, "app: ") {
		return
	}
	for key := range root {
		if strings.HasPrefix(text, clip(key)) {
			return
		}
	}
	t.Fatalf("%q is refused without the name of a field: %s", data, text)
}
