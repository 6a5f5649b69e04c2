package measure

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// Machine describes where a result was measured. Unknown fields are empty.
type Machine struct {
	CPU       string  `json:"cpu"`
	Cores     int     `json:"cores"`
	MemoryGiB float64 `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	Go        string  `json:"go"`
	// Load is the mean number of processes that wanted a processor in the minute before the run. If it is
	// above Cores, the figures are not reliable.
	Load float64 `json:"load"`
	// Stolen is the share of the wanted processor time, from 0 to 1, that the host of this virtual machine gave
	// to others during the run. If it is above a few hundredths, the figures are not reliable.
	Stolen float64 `json:"stolen"`
}

// ThisMachine describes this machine.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	m.CPU = strings.TrimSpace(restAfter(read("/proc/cpuinfo"), "model name", ":"))
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(restAfter(read("/proc/meminfo"), "MemTotal", ":")), " kB"), 64); err == nil {
		m.MemoryGiB = kib / (1 << 20)
	}
	m.Kernel = strings.TrimSpace(string(read("/proc/sys/kernel/osrelease")))
	if fields := strings.Fields(string(read("/proc/loadavg"))); len(fields) > 0 {
		m.Load, _ = strconv.ParseFloat(fields[0], 64)
	}
	return m
}

// Commit returns the commit of the sources in the working directory, with a + if they were changed since. It
// returns "none" outside of a checkout.
func Commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "none"
	}
	commit := string(bytes.TrimSpace(out))
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err == nil && len(changed) > 0 {
		commit += "+"
	}
	return commit
}

func read(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return b
}

// restAfter returns the rest of the first line that begins with name, after a separator.
func restAfter(text []byte, name, separator string) string {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			_, value, _ := strings.Cut(string(rest), separator)
			return value
		}
	}
	return ""
}
