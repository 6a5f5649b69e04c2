// Package cachedir returns the folder in which programs of a local stack are installed.
package cachedir

import (
	"os"
	"path/filepath"
)

// Dir returns the XDG cache folder on every system, because npm and node use such paths on macOS, too.
func Dir() (string, error) {
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".cache"), nil
}
