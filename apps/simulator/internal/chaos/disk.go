package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// disks are small file systems for agents, so that one can become full. They need the right to mount, which
// root has. Without it no disk becomes full, and the result mentions that.
type disks struct {
	mu      sync.Mutex
	mounted []string
	failed  error
}

// diskBytes is enough for an inbox and its growth.
const diskBytes = 16 << 20

// makeDisk creates the folder of a member: see fleet.Config.
func (d *disks) makeDisk(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed != nil {
		// Without a disk, the agent gets a normal folder.
		return nil
	}
	if d.failed = mountDisk(path, diskBytes); d.failed == nil {
		d.mounted = append(d.mounted, path)
	}
	return nil
}

func (d *disks) canMount() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed == nil && len(d.mounted) > 0
}

const filler = "filler"

// fillDisk fills the rest of a disk.
func (d *disks) fillDisk(folder string) error {
	f, err := os.Create(filepath.Join(folder, filler))
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		return fmt.Errorf("fill the disk: %w", err)
	}
	// The pieces become smaller, so that not even a page is left.
	for size := 1 << 20; size > 0; size /= 2 {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("fill the disk: %w", errors.Join(err, f.Close()))
		}
		err = nil
	}
	return f.Close()
}

func (d *disks) freeDisk(folder string) error {
	if err := os.Remove(filepath.Join(folder, filler)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("free the disk: %w", err)
	}
	return nil
}

// unmountAll unmounts the disks. Open files stay usable until they are closed.
func (d *disks) unmountAll() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	for _, path := range d.mounted {
		err = errors.Join(err, unmountDisk(path))
	}
	d.mounted = nil
	return err
}
