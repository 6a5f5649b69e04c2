package onnxserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// modelFileName is the optional file with settings of a model, in the model's folder.
	modelFileName = "model.json"
	// maxModelFile limits its size, in bytes.
	maxModelFile = 64 << 10
	// runtimeMiB is the memory that ONNX Runtime needs for a small model besides the model's weights: 10 to 20 MiB for
	// each of the models of the guide.
	runtimeMiB = 24
)

// modelSpec says what to load.
type modelSpec struct {
	name, version string
	// file is the path of the model. size and changed are the size and the time of change of the file.
	file    string
	size    int64
	changed time.Time
	mib     int
}

// modelFile is the content of model.json.
type modelFile struct {
	// MemoryMiB is the memory of the loaded model with its requests. Default: twice the size of the file, and runtimeMiB.
	MemoryMiB *int `json:"memoryMib"`
}

// versionInName is the version at the end of a file's name, as in silero_vad_v5.onnx.
var versionInName = regexp.MustCompile(`[-_.]v?([0-9]{1,9})$`)

// readModel finds the file of a model. It is model.onnx or the only .onnx file of the model's folder, or of the folder with
// the highest number in it. The version is the number of that folder, or the number at the end of the file's name, or 1.
func readModel(repository, name string) (modelSpec, error) {
	spec := modelSpec{name: name, version: "1"}
	if !isFolderName(name) {
		return spec, fmt.Errorf("%q is not the name of a folder", name)
	}
	folder := filepath.Join(repository, name)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return spec, errors.New("the repository has no folder of this name")
	}
	if err != nil {
		return spec, fmt.Errorf("its folder cannot be read: %w", withoutPath(err))
	}
	settings, err := readModelFile(filepath.Join(folder, modelFileName))
	if err != nil {
		return spec, err
	}
	within, numbered := folder, false
	if highest := findHighestVersion(entries); highest > 0 {
		numbered = true
		spec.version = strconv.Itoa(highest)
		within = filepath.Join(folder, spec.version)
		if entries, err = os.ReadDir(within); err != nil {
			return spec, fmt.Errorf("its folder %s cannot be read: %w", spec.version, withoutPath(err))
		}
	}
	file, err := chooseFile(entries)
	if err != nil {
		return spec, err
	}
	if found := versionInName.FindStringSubmatch(strings.TrimSuffix(file, ".onnx")); found != nil && !numbered {
		spec.version = found[1]
	}
	spec.file = filepath.Join(within, file)
	info, err := os.Stat(spec.file)
	if err != nil {
		return spec, fmt.Errorf("its file %s cannot be read: %w", file, withoutPath(err))
	}
	spec.size, spec.changed = info.Size(), info.ModTime()
	fileMiB := int((spec.size + 1<<20 - 1) >> 20)
	spec.mib = 2*fileMiB + runtimeMiB
	if settings.MemoryMiB != nil {
		spec.mib = *settings.MemoryMiB
		if spec.mib < fileMiB {
			return spec, fmt.Errorf("its file has %d MiB, and memoryMib of %s is %d", fileMiB, modelFileName, spec.mib)
		}
	}
	return spec, nil
}

func isFolderName(name string) bool {
	return name == filepath.Base(name) && filepath.IsLocal(name) && name != "."
}

func readModelFile(path string) (modelFile, error) {
	var settings modelFile
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return settings, nil
	}
	if err == nil && len(data) > maxModelFile {
		err = fmt.Errorf("it has more than %d bytes", maxModelFile)
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		err = d.Decode(&settings)
	}
	if err != nil {
		return settings, fmt.Errorf("%s cannot be read: %w", modelFileName, withoutPath(err))
	}
	if m := settings.MemoryMiB; m != nil && (*m < 1 || *m > maxMemoryMiB) {
		return settings, fmt.Errorf("memoryMib of %s must be 1 to %d, not %d", modelFileName, maxMemoryMiB, *m)
	}
	return settings, nil
}

// findHighestVersion returns the highest number that is the name of a folder, or 0.
func findHighestVersion(entries []os.DirEntry) int {
	highest := 0
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil && entry.IsDir() && strconv.Itoa(n) == entry.Name() {
			highest = max(highest, n)
		}
	}
	return highest
}

func chooseFile(entries []os.DirEntry) (string, error) {
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && strings.HasSuffix(entry.Name(), ".onnx") {
			files = append(files, entry.Name())
		}
	}
	switch {
	case len(files) == 0:
		return "", errors.New("its folder has no .onnx file")
	case slices.Contains(files, "model.onnx"):
		return "model.onnx", nil
	case len(files) > 1:
		return "", fmt.Errorf("its folder has %d .onnx files: name one of them model.onnx", len(files))
	}
	return files[0], nil
}

// withoutPath returns the cause of an error without paths of this host.
func withoutPath(err error) error {
	if known := (*os.PathError)(nil); errors.As(err, &known) {
		return known.Err
	}
	return err
}

// listRepository returns the names of the folders.
func listRepository(repository string) ([]string, error) {
	entries, err := os.ReadDir(repository)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // The agent makes the folder with the first model.
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the model repository: %w", withoutPath(err))
	}
	var names []string
	for _, entry := range entries {
		// A folder may be a link, as the agent's are.
		if info, err := os.Stat(filepath.Join(repository, entry.Name())); err == nil && info.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
