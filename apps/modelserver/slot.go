package modelserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// slotFile has the number of servers that have run with the directory of a stable slot, this one included.
const slotFile = "starts"

// countStart returns how many servers have run with the directory, and stores the number there. It is 0 if dir is empty.
func countStart(dir string) (int, error) {
	if dir == "" {
		return 0, nil
	}
	path := filepath.Join(dir, slotFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read the starts of the slot: %w", err)
	}
	n := 0
	if err == nil {
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return 0, fmt.Errorf("read the starts of the slot: %s: %w", path, err)
		}
	}
	n++
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(n)+"\n"), 0o600); err != nil {
		return 0, fmt.Errorf("store the starts of the slot: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return 0, fmt.Errorf("store the starts of the slot: %w", err)
	}
	return n, nil
}
