// Package layout has the rules for imports between packages of the repository, and
// checks them. It uses the imports that the go command resolves. So an alias, a dot
// import or a file in an unusual place cannot hide an import.
//
// Without the rules, the structure decays slowly: each wrong import looks harmless,
// and two years later the agent links a MySQL driver. The rules:
//
//	proto, db  <-  pkg  <-  apps      modules; only windlass and simulator see other apps
//	model  <-  plan, rollup           pure: no I/O below them, no clock in them
//	api | rollout | dispatch | ...    edges: meet the core, not each other, not the store
//
// A rule may name packages that do not exist yet. The tests of this package show,
// with invented imports, that each rule can fail.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Prefix is the beginning of every import path of this repository.
const Prefix = "github.com/windlass-run/windlass/"

// Package is one package of the workspace.
type Package struct {
	// Path is the import path without Prefix: "pkg/ident", "apps/agent/internal/inbox".
	Path string
	Dir  string
	// GoFiles and TestFiles are base names in Dir.
	GoFiles, TestFiles []string
	// Imports, TestImports and Deps are import paths. Paths of this repository have no
	// Prefix. Deps has all direct and indirect imports, except the imports of tests.
	Imports, TestImports, Deps []string
}

// Root is the folder with go.work, at or above dir.
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.work in this folder or above it")
		}
		dir = up
	}
}

// outside are the modules of this repository that are not in go.work, because their
// dependencies would change the dependencies of all modules.
var outside = []string{"apps/kubelab"}

// Load returns all packages of the workspace at root and of the modules outside it. It
// runs the go command once for the workspace and once for each of these modules, and
// compiles nothing.
func Load(root string) ([]Package, error) {
	packages, err := load(root, nil, "work")
	if err != nil {
		return nil, err
	}
	for _, module := range outside {
		more, err := load(filepath.Join(root, module), []string{"GOWORK=off"}, "./...")
		if err != nil {
			return nil, err
		}
		packages = append(packages, more...)
	}
	return packages, nil
}

func load(dir string, env []string, patterns ...string) ([]Package, error) {
	out, err := goCommand(dir, env, append([]string{
		"list", "-e",
		"-json=ImportPath,Dir,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports,Deps",
	}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var packages []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir                              string
			GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
			Imports, TestImports, XTestImports, Deps     []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		packages = append(packages, Package{
			Path:        short(p.ImportPath),
			Dir:         p.Dir,
			GoFiles:     slices.Concat(p.GoFiles, p.CgoFiles),
			TestFiles:   slices.Concat(p.TestGoFiles, p.XTestGoFiles),
			Imports:     shorten(p.Imports),
			TestImports: shorten(slices.Concat(p.TestImports, p.XTestImports)),
			Deps:        shorten(p.Deps),
		})
	}
	return packages, nil
}

// Requires returns the modules that the go.mod in dir requires, including indirect requirements.
func Requires(dir string) ([]string, error) {
	out, err := goCommand(dir, nil, "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var mod struct{ Require []struct{ Path string } }
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("read go.mod of %s: %w", dir, err)
	}
	var paths []string
	for _, r := range mod.Require {
		paths = append(paths, short(r.Path))
	}
	return paths, nil
}

func goCommand(dir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func short(path string) string { return strings.TrimPrefix(path, Prefix) }

func shorten(paths []string) []string {
	for i := range paths {
		paths[i] = short(paths[i])
	}
	return paths
}
