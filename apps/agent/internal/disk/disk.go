// Package disk stores the small files of the agent's data directory. Each file is replaced as a
// whole: after a crash, it has either its old or its new content.
package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
)

// Files reads and replaces files by name. It is safe for concurrent use.
type Files interface {
	// Read returns the content. The error is fs.ErrNotExist if the file does not exist.
	Read(name string) ([]byte, error)
	// Replace stores data as the whole content, with mode 0600.
	Replace(name string, data []byte) error
	// Remove removes the file. A file that does not exist is no error.
	Remove(name string) error
}

// Dir is an existing directory.
type Dir string

// Read implements Files.
func (d Dir) Read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(string(d), name)) }

// Replace implements Files.
func (d Dir) Replace(name string, data []byte) error {
	tmp, err := os.CreateTemp(string(d), "."+name+"-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(string(d), name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// Remove implements Files.
func (d Dir) Remove(name string) error {
	if err := os.Remove(filepath.Join(string(d), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Memory holds the files of an agent that runs without a disk, in virtual time.
type Memory struct {
	mu    sync.Mutex
	files map[string][]byte
}

// NewMemory returns a Memory without files.
func NewMemory() *Memory { return &Memory{files: map[string][]byte{}} }

// Clone returns a copy.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{files: maps.Clone(m.files)} // contents are never changed in place
}

// Read implements Files.
func (m *Memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return bytes.Clone(data), nil
}

// Replace implements Files.
func (m *Memory) Replace(name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = bytes.Clone(data)
	return nil
}

// Remove implements Files.
func (m *Memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}
