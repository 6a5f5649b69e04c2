// Package disk is the agent's data directory as its parts see it: small files that
// are replaced whole. A file is what it was or what it became, whatever happens in
// between.
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

// Files are read and replaced by name. They are safe for concurrent use.
type Files interface {
	// Read returns the content; an error that is fs.ErrNotExist when there is none.
	Read(name string) ([]byte, error)
	// Replace makes data the content, of mode 0600.
	Replace(name string, data []byte) error
	// Remove takes the file away, if it is there.
	Remove(name string) error
}

// Dir is a directory, which exists.
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

// Memory are files of agents that run where there is no disk: in virtual time.
type Memory struct {
	mu    sync.Mutex
	files map[string][]byte
}

// NewMemory returns one without files.
func NewMemory() *Memory { return &Memory{files: map[string][]byte{}} }

// Clone returns a copy.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{files: maps.Clone(m.files)} // contents never change in place
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
