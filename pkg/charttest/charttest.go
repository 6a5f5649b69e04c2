// Package charttest reads the environment variables that the Helm charts set. Tests use it to check that a program
// understands these variables. It reads the rendered charts of .ci/tools/charts/testdata and the manifests of
// deployments/kubernetes, which are generated from the charts. So these tests need no helm.
package charttest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Container is the first container of an object.
type Container struct {
	// Env has the WINDLASS_ variables with literal values.
	Env  map[string]string
	Args []string
	// Text is the object as YAML.
	Text string
}

var (
	variable = regexp.MustCompile(`\{name: (WINDLASS_\w+), value: "?([^"}]*)"?\}`)
	// item matches an item of a list, or the key after the list.
	item = regexp.MustCompile(`(?m)^ +- "?([^"\n]+)"?$|^ +\w+:`)
)

// Containers returns the containers of all rendered objects with this kind and program. The keys are file names. root
// is the root of the repository.
func Containers(t testing.TB, root, kind, program string) map[string]Container {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, ".ci", "tools", "charts", "testdata", "windlass-"+program+".*.golden.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rendered chart of %s: %v", program, err)
	}
	out := map[string]Container{}
	for _, file := range append(files, filepath.Join(root, "deployments", "kubernetes", program+".yaml")) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(data), "\n---\n") {
			if strings.Contains(doc, "\nkind: "+kind+"\n") {
				out[filepath.Base(file)] = parse(doc)
			}
		}
	}
	return out
}

func parse(doc string) Container {
	c := Container{Env: map[string]string{}, Text: doc}
	for _, m := range variable.FindAllStringSubmatch(doc, -1) {
		c.Env[m[1]] = m[2]
	}
	_, list, _ := strings.Cut(doc, " args:\n")
	for _, m := range item.FindAllStringSubmatch(list, -1) {
		if m[1] == "" {
			break
		}
		c.Args = append(c.Args, m[1])
	}
	return c
}

// SetEnv sets the variables for the test.
func (c Container) SetEnv(t testing.TB) {
	t.Helper()
	for name, value := range c.Env {
		t.Setenv(name, value)
	}
}
