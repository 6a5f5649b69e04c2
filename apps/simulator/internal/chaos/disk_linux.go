package chaos

import (
	"fmt"
	"syscall"
)

func mountDisk(path string, bytes int) error {
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		return fmt.Errorf("mount a disk of %d bytes: %w", bytes, err)
	}
	return nil
}

func unmountDisk(path string) error {
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
