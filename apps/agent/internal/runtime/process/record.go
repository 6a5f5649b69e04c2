package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The files in an instance's directory.
const (
	recordFile = "record.json" // written by the agent: the wanted state of the instance
	factsFile  = "facts.json"  // written by the shim: what happened
	lockFile   = "lock"        // held by the shim while it lives
	outputFile = "output.log"  // and output.log.1, the older part
	shimFile   = "shim.log"    // errors of the shim itself
	workDir    = "work"
)

// record has everything that the agent must know about an instance after the agent was killed. It
// is not synced to disk, because it must survive the agent but not the host. After a reboot,
// nothing of the instance runs, and a lost record is made again.
type record struct {
	ID         string `json:"id"`
	Deployment string `json:"deployment"`
	Workload   string `json:"workload"`
	Role       string `json:"role"`
	Group      int    `json:"group"`
	Slot       int    `json:"slot"`
	Template   string `json:"template"`

	Ports     []port   `json:"ports"`
	GPUs      []string `json:"gpus,omitempty"`
	MemoryMiB int      `json:"memory_mib,omitempty"`
	// UID and GID are the user and the group of the instance. 0: the agent's.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`

	Health health        `json:"health"`
	Grace  time.Duration `json:"grace"`
	// Drain is how long the instance keeps serving after its stop is requested.
	Drain time.Duration `json:"drain,omitempty"`

	// Attempt is the number of starts. It is written before the start that it counts.
	Attempt   int       `json:"attempt"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// Ready is the state after the last check that changed it. ReadyAt and UnreadyAt are the last
	// times at which the instance became ready and unready in this attempt.
	Ready     bool      `json:"ready,omitempty"`
	ReadyAt   time.Time `json:"ready_at,omitzero"`
	UnreadyAt time.Time `json:"unready_at,omitzero"`

	// Stop is the order to end the present attempt.
	Stop *order `json:"stop,omitempty"`
	// End says how an attempt ended: the present attempt, if the number is the same. It is kept
	// until the instance is ready again, because it explains why the instance is not ready.
	End *ending `json:"end,omitempty"`

	// Runs counts attempts that ran and ended.
	Runs int `json:"runs,omitempty"`
	// Streak counts the ends that were not requested since the instance last served for
	// runtime.StableAfter.
	Streak int `json:"streak,omitempty"`
	// Sick counts the restarts for lost health since the instance last served for that time.
	Sick int `json:"sick,omitempty"`
}

type port struct {
	Name string `json:"name"`
	Port int    `json:"port"`
	// Fixed means that the deployment chose the port. Other ports are allocated by the runtime.
	Fixed bool `json:"fixed,omitempty"`
}

type order struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
	// Final means that the instance is forgotten when it has ended.
	Final bool `json:"final,omitempty"`
	// Drain is how long the instance drains: its whole drain delay if it was in service, and
	// otherwise 0. Its grace period begins after the drain.
	Drain time.Duration `json:"drain,omitempty"`
	// Await is the latest time until which the order is held back. Until then, the order is written
	// but not given while gateways may still send to the instance. Zero: the order is given at
	// once.
	Await time.Time `json:"await,omitzero"`
}

// deadlineOf returns when the shim has carried out the order, whatever the instance does.
func (o *order) deadlineOf(grace time.Duration) time.Time { return o.At.Add(o.Drain + grace) }

// drainLeft returns how long from now the instance should keep serving. The result is never longer
// than Drain and never negative, even if the clock was set meanwhile.
func (o *order) drainLeft(now time.Time) time.Duration {
	return min(max(o.At.Add(o.Drain).Sub(now), 0), o.Drain)
}

type ending struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	// Free means that the app did not cause the end, so the next start does not wait.
	Free bool `json:"free,omitempty"`
	// Jitter, in [0,1), determines the time of the next start within its backoff.
	Jitter float64 `json:"jitter"`
}

// hasEnded reports whether the present attempt is over.
func (r record) hasEnded() bool { return r.End != nil && r.End.Attempt == r.Attempt }

// servedFor returns for how long the present attempt was last ready.
func (r record) servedFor(end time.Time) time.Duration {
	if r.ReadyAt.IsZero() {
		return 0
	}
	if !r.Ready {
		end = r.UnreadyAt
	}
	return end.Sub(r.ReadyAt)
}

// proc identifies a process. Within one boot, a pid may be used again, but a pid with its start
// time is unique.
type proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// facts is the shim's report about its one attempt.
type facts struct {
	Attempt int    `json:"attempt"`
	Boot    string `json:"boot"`
	Shim    proc   `json:"shim"`
	Child   proc   `json:"child,omitzero"`
	// UID is the instance's own user. 0: it has none.
	UID       int       `json:"uid,omitempty"`
	StartedAt time.Time `json:"started_at"`
	Exit      *exit     `json:"exit,omitempty"`
}

type exit struct {
	At   time.Time `json:"at"`
	Kind exitKind  `json:"kind"`
	// Code is the exit code. Signal is the name of the signal that killed the instance.
	Code   int    `json:"code,omitempty"`
	Signal string `json:"signal,omitempty"`
	// StopRequested means that a stop of the instance was requested. Forced means that it did not end
	// within its grace period.
	StopRequested bool `json:"told,omitempty"`
	Forced        bool `json:"forced,omitempty"`
	// Message says why the instance could not be started.
	Message string `json:"message,omitempty"`
	// Tail is the instance's last output, at most tailLines lines, with secrets blanked.
	Tail []string `json:"tail,omitempty"`
}

type exitKind string

const (
	exitedByCode   exitKind = "code"
	exitedBySignal exitKind = "signal"
	exitedByOOM    exitKind = "oom"
	exitBadCommand exitKind = "bad-command"
	exitLost       exitKind = "lost"      // the shim was killed
	exitNoShim     exitKind = "no-shim"   // the shim did not start
	exitNoSpace    exitKind = "no-space"  // the disk had no room for the files of a start
	exitNeverRan   exitKind = "never-ran" // the agent died before the start
	exitRebooted   exitKind = "rebooted"  // the host was restarted
)

func (x exit) String() string {
	var s string
	switch x.Kind {
	case exitedByCode:
		s = fmt.Sprintf("exit code %d", x.Code)
	case exitedBySignal:
		s = "killed by " + x.Signal
		if x.Forced {
			s += " after its grace period"
		} else if x.Signal == "SIGKILL" {
			s += " (by a person or program, or by the kernel because memory ran out)"
		}
	case exitedByOOM:
		s = "killed by the kernel: over its memory limit"
	case exitBadCommand:
		s = x.Message
	case exitLost:
		s = "the shim that supervises the instance was killed, so the kernel killed the instance"
	case exitNoShim:
		s = "the shim that supervises the instance did not start: " + x.Message
	case exitNoSpace:
		s = "the disk is full: " + x.Message
	case exitNeverRan:
		s = "the agent was killed while it started the instance"
	case exitRebooted:
		s = "the host was restarted"
	}
	if len(x.Tail) > 0 {
		s += "; last output: " + strings.Join(x.Tail, " | ")
	}
	return s
}

// failedStart returns the end of an attempt that could not start because of err.
func failedStart(err error) exit {
	x := exit{At: time.Now(), Kind: exitNoShim, Message: err.Error()}
	if diskFull(err) {
		x.Kind = exitNoSpace
	}
	return x
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// readJSON reads the file name in dir. found is false if there is none. A file that cannot be
// decoded was torn by a power cut, and counts as absent.
func readJSON[T any](dir, name string) (v T, found bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		var zero T
		return zero, false, nil //nolint:nilerr // torn counts as absent
	}
	return v, true, nil
}

// writeJSON replaces the file name in dir as a whole: a reader sees either the old or the new
// content. With sync, the new content also survives a power cut.
func writeJSON(dir, name string, v any, sync bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return writeFile(dir, name, b, sync)
}

func writeFile(dir, name string, b []byte, sync bool) error {
	tmp := filepath.Join(dir, "."+name+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(b)
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err == nil && sync {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
