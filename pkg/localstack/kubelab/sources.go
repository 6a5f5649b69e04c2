package kubelab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

const (
	// prefix begins every import path of this repository.
	prefix = "github.com/windlass-run/windlass/"
	// module is the folder of the program's module in the repository.
	module  = "apps/kubelab"
	command = module + "/cmd/kubelab"
)

// errNoSources says that no checkout was found.
var errNoSources = errors.New("no checkout of Windlass here")

// findSources returns the root of the checkout that contains the working directory or this program.
func findSources() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if self, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(self))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			_, workErr := os.Stat(filepath.Join(dir, "go.work"))
			_, modErr := os.Stat(filepath.Join(dir, filepath.FromSlash(module), "go.mod"))
			if workErr == nil && modErr == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errNoSources
}

// hashSources returns a hash that names a build of the program from root. It covers the program's packages in
// this repository, the versions of other modules, the compiler and the platform. It reads import clauses
// itself, because the go command takes seconds for Kubernetes at every start.
func hashSources(root string) (string, error) {
	hash := sha256.New()
	_, _ = fmt.Fprintln(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := addFile(hash, root, module+"/"+name); err != nil {
			return "", err
		}
	}
	seen := map[string]bool{command: true}
	for queue := []string{command}; len(queue) > 0; queue = queue[1:] {
		imports, err := addPackage(hash, root, queue[0])
		if err != nil {
			return "", err
		}
		for _, path := range imports {
			if !seen[path] {
				seen[path] = true
				queue = append(queue, path)
			}
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// addPackage hashes every file of a package's folder except tests, even files of other platforms. It returns
// the imported packages of this repository.
func addPackage(hash io.Writer, root, pkg string) (imports []string, err error) {
	entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(pkg)))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		path := pkg + "/" + e.Name()
		if err := addFile(hash, root, path); err != nil {
			return nil, err
		}
		if !strings.HasSuffix(path, ".go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(path)), nil, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, err
			}
			if ours, ok := strings.CutPrefix(imported, prefix); ok {
				imports = append(imports, ours)
			}
		}
	}
	// The order of the walk must not depend on the order of imports in files.
	slices.Sort(imports)
	return slices.Compact(imports), nil
}

func addFile(hash io.Writer, root, path string) error {
	content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is missing", errNoSources, path)
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(hash, "%s %d\n", path, len(content))
	_, err = hash.Write(content)
	return err
}
