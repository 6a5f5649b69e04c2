package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// Record is the content of a record file.
type Record struct {
	// PID is 0 before the process is started.
	PID int `json:"pid,omitempty"`
	// Birth distinguishes a process from a later one with the same pid. It is opaque.
	Birth string   `json:"birth,omitempty"`
	Argv  []string `json:"argv"`
}

// Find returns the record of the process of a record file. ok is false if there is no record or its process
// has ended.
func Find(recordFile string) (rec Record, ok bool, err error) {
	rec, err = readRecord(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	if rec.PID != 0 {
		return rec, Alive(rec.PID, rec.Birth), nil
	}
	pid, err := findArgv(rec.Argv)
	if err != nil || pid == 0 {
		return Record{}, false, err
	}
	birth, err := Birth(pid)
	if err != nil {
		return Record{}, false, nil //nolint:nilerr // the process ended between the two checks
	}
	return Record{PID: pid, Birth: birth, Argv: rec.Argv}, true, nil
}

// Alive reports whether the process with this pid and birth still runs. A zombie does not run.
func Alive(pid int, birth string) bool {
	now, err := Birth(pid)
	return err == nil && now == birth
}

func readRecord(path string) (Record, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Record{}, err
	}
	var rec Record
	if err := json.Unmarshal(b, &rec); err != nil {
		return Record{}, fmt.Errorf("read %s: %w; remove the file if no such process runs", path, err)
	}
	return rec, nil
}

func writeRecord(path string, rec Record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}

// removeRecord removes the record of an ended process, unless another start has already replaced it.
func removeRecord(path string, pid int) {
	if rec, err := readRecord(path); err == nil && (rec.PID == pid || rec.PID == 0) {
		_ = os.Remove(path)
	}
}
