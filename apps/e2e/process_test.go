package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// process is a running process. Two are the same if pid and birth are equal.
type process struct {
	pid   int
	birth string
	argv  []string
	env   map[string]string
}

func (p process) String() string {
	s := fmt.Sprintf("pid %d: %s", p.pid, strings.Join(p.argv, " "))
	if id := p.instance(); id != "" {
		s += fmt.Sprintf(" [%s of %s v%s in %s]", id, p.env["WINDLASS_APP"], p.env["WINDLASS_VERSION"], p.env["WINDLASS_REGION"])
	}
	return s
}

func (p process) instance() string   { return p.env["WINDLASS_INSTANCE_ID"] }
func (p process) deployment() string { return p.env["WINDLASS_DEPLOYMENT_ID"] }
func (p process) app() string        { return p.env["WINDLASS_APP"] }
func (p process) region() string     { return p.env["WINDLASS_REGION"] }

// key returns a text that distinguishes the process from all others, including ended ones.
func (p process) key() string { return fmt.Sprintf("%d@%s", p.pid, p.birth) }

func (p process) kill9() error { return syscall.Kill(p.pid, syscall.SIGKILL) }

func (p process) alive() bool { return proc.Alive(p.pid, p.birth) }

// processesOf lists every process that has the folder's path in its arguments or its environment, whatever
// its parent is.
func processesOf(dir string) []process {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	var out []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A thread of the kernel has no arguments, and a zombie no longer has any.
		argv, err := os.ReadFile(entry + "/cmdline")
		if err != nil || len(argv) == 0 {
			continue
		}
		environ, err := os.ReadFile(entry + "/environ")
		if err != nil || !mentions(argv, dir) && !mentions(environ, dir) {
			continue
		}
		birth, err := proc.Birth(pid)
		if err != nil {
			continue
		}
		p := process{pid: pid, birth: birth, env: map[string]string{}}
		for arg := range bytes.SplitSeq(bytes.TrimSuffix(argv, []byte{0}), []byte{0}) {
			p.argv = append(p.argv, string(arg))
		}
		for pair := range bytes.SplitSeq(environ, []byte{0}) {
			if name, value, ok := strings.Cut(string(pair), "="); ok {
				p.env[name] = value
			}
		}
		out = append(out, p)
	}
	return out
}

// mentions reports whether text contains the path. The beginning of a longer name does not count.
func mentions(text []byte, path string) bool {
	for i := bytes.Index(text, []byte(path)); i >= 0; {
		rest := text[i+len(path):]
		if len(rest) == 0 || rest[0] == '/' || rest[0] == 0 || rest[0] == ':' {
			return true
		}
		text = rest
		i = bytes.Index(text, []byte(path))
	}
	return false
}

// instancesOf lists the processes that are instances; their shims are not.
func instancesOf(dir string) []process {
	return slices.DeleteFunc(processesOf(dir), func(p process) bool { return p.instance() == "" || isShim(p) })
}

// shimOf returns the process that watches over an instance.
func shimOf(dir, instance string) (process, bool) {
	for _, p := range processesOf(dir) {
		if isShim(p) && slices.Contains(p.argv, instance) {
			return p, true
		}
	}
	return process{}, false
}

// isShim reports whether the process is an agent's program that supervises one instance.
func isShim(p process) bool { return len(p.argv) > 1 && p.argv[1] == "__shim" }

// killAll kills every process of the folder, including new children, and returns the processes that it could
// not end.
func killAll(dir string) []process {
	var left []process
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if left = processesOf(dir); len(left) == 0 {
			return nil
		}
		for _, p := range left {
			_ = p.kill9()
		}
		<-time.After(20 * time.Millisecond)
	}
	return left
}

// keysOf returns the keys of the processes, sorted.
func keysOf(processes []process) []string {
	keys := make([]string, 0, len(processes))
	for _, p := range processes {
		keys = append(keys, p.key())
	}
	slices.Sort(keys)
	return keys
}

// byInstance groups processes by their instance.
func byInstance(processes []process) map[string][]process {
	out := map[string][]process{}
	for _, p := range processes {
		out[p.instance()] = append(out[p.instance()], p)
	}
	return out
}

func describe(processes []process) string {
	lines := make([]string, 0, len(processes))
	for _, p := range processes {
		lines = append(lines, "  "+p.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
