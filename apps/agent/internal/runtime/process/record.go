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

// Files of an instance's directory.
const (
	recordFile = "record.json" // the agent's: what it wants of this instance
	factsFile  = "facts.json"  // the shim's: what happened
	lockFile   = "lock"        // held by the shim while it lives
	outputFile = "output.log"  // and output.log.1, the older part
	shimFile   = "shim.log"    // errors of the shim itself
	workDir    = "work"
)

// record is what the agent must know of an instance after it was killed. It is
// not synced to disk: it has to survive the agent, not the host. After a reboot
// nothing of the instance runs, and a record that was lost is made again.
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
	// UID and GID that it runs as; 0: the agent's.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`

	Health health        `json:"health"`
	Grace  time.Duration `json:"grace"`
	// Drain is how long it goes on serving once it is told to stop.
	Drain time.Duration `json:"drain,omitempty"`

	// Attempt counts starts. It is written before the start that it counts.
	Attempt   int       `json:"attempt"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// Ready as of the last check that changed it; ReadyAt is when it last turned
	// ready and UnreadyAt when it last ceased to be, within this attempt.
	Ready     bool      `json:"ready,omitempty"`
	ReadyAt   time.Time `json:"ready_at,omitzero"`
	UnreadyAt time.Time `json:"unready_at,omitzero"`

	// Stop is the order to end the present attempt.
	Stop *order `json:"stop,omitempty"`
	// End is how an attempt ended: the present one, if its number is the same.
	// It is kept until the instance is ready again, because it tells why.
	End *ending `json:"end,omitempty"`

	// Runs counts attempts that ran and ended.
	Runs int `json:"runs,omitempty"`
	// Streak counts ends that were not asked for, since it last served for
	// runtime.StableAfter.
	Streak int `json:"streak,omitempty"`
	// Sick counts restarts for lost health since it last served that long.
	Sick int `json:"sick,omitempty"`
}

type port struct {
	Name string `json:"name"`
	Port int    `json:"port"`
	// Fixed ports are the deployment's choice, others are allocated here.
	Fixed bool `json:"fixed,omitempty"`
}

type order struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
	// Final: the instance is forgotten when it has ended.
	Final bool `json:"final,omitempty"`
	// Drain is what of its drain delay the instance is given: all of it if it was in
	// service, else none. Its grace begins after it.
	Drain time.Duration `json:"drain,omitempty"`
	// Await, when set, is until when the order is held back at most. It is written, and not
	// given while gateways may still send to the instance.
	Await time.Time `json:"await,omitzero"`
}

// deadline is when the shim is done with the order, whatever the instance does.
func (o *order) deadline(grace time.Duration) time.Time { return o.At.Add(o.Drain + grace) }

// drainLeft returns how long from now the instance should go on serving. It is never
// longer than Drain and never negative, even if the clock was set meanwhile.
func (o *order) drainLeft(now time.Time) time.Duration {
	return min(max(o.At.Add(o.Drain).Sub(now), 0), o.Drain)
}

type ending struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	// Free: the end was not the app's fault; the next start does not wait.
	Free bool `json:"free,omitempty"`
	// Jitter in [0,1) places the next start within its backoff.
	Jitter float64 `json:"jitter"`
}

// ended: the present attempt is over.
func (r record) ended() bool { return r.End != nil && r.End.Attempt == r.Attempt }

// served is how long the present attempt was ready, the last time that it was.
func (r record) served(end time.Time) time.Duration {
	if r.ReadyAt.IsZero() {
		return 0
	}
	if !r.Ready {
		end = r.UnreadyAt
	}
	return end.Sub(r.ReadyAt)
}

// proc identifies a process for good: a pid is used again, a pid with its start
// time is not, within one boot.
type proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// facts are the shim's testimony of its one attempt.
type facts struct {
	Attempt int    `json:"attempt"`
	Boot    string `json:"boot"`
	Shim    proc   `json:"shim"`
	Child   proc   `json:"child,omitzero"`
	// UID is the instance's own user; 0: it has none.
	UID       int       `json:"uid,omitempty"`
	StartedAt time.Time `json:"started_at"`
	Exit      *exit     `json:"exit,omitempty"`
}

type exit struct {
	At   time.Time `json:"at"`
	Kind exitKind  `json:"kind"`
	// Code is the exit code, Signal the name of what killed it.
	Code   int    `json:"code,omitempty"`
	Signal string `json:"signal,omitempty"`
	// StopRequested: it was asked to stop. Forced: it did not within its grace.
	StopRequested bool `json:"told,omitempty"`
	Forced        bool `json:"forced,omitempty"`
	// Message says why it could not be started.
	Message string `json:"message,omitempty"`
	// Tail is its last output, at most tailLines lines, secrets blanked.
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
	exitNoSpace    exitKind = "no-space"  // the disk had no room for what a start writes
	exitNeverRan   exitKind = "never-ran" // the agent died before it had started it
	exitRebooted   exitKind = "rebooted"  // the host was
)

func (x exit) String() string {
	var s string
	switch x.Kind {
	case exitedByCode:
		s = fmt.Sprintf("exit code %d", x.Code)
	case exitedBySignal:
		s = "killed by " + x.Signal
		if x.Forced {
			s += " after its grace ran out"
		} else if x.Signal == "SIGKILL" {
			s += " (by a person or program, or by the kernel because memory ran out)"
		}
	case exitedByOOM:
		s = "killed by the kernel: over its memory limit"
	case exitBadCommand:
		s = x.Message
	case exitLost:
		s = "its supervisor was killed, and so the kernel killed the instance"
	case exitNoShim:
		s = "its supervisor did not start: " + x.Message
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

// readJSON reads name in dir. found is false when there is none. A file that
// cannot be decoded is one that a power cut tore, and counts as absent.
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

// writeJSON replaces name in dir whole: a reader sees the old or the new. With
// sync it is there after a power cut, too.
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
