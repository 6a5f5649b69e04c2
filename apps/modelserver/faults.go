package modelserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"time"
)

// Faults are injected faults. The zero value injects no fault. Times count from the start for faults of flags, and from
// the request for faults of /faults.
type Faults struct {
	NeverReady      bool     `json:"neverReady" help:"Never finish loading: health stays 503."`
	CrashAtStart    bool     `json:"crashAtStart" help:"Exit before listening."`
	CrashAfter      Duration `json:"crashAfter" default:"0s" help:"Exit without a drain after this time; 0 for never."`
	ExitCode        int      `json:"exitCode" default:"1" help:"Exit code of a crash; 1 to 255."`
	FailHealth      bool     `json:"failHealth" help:"Answer the health check with 503, between failHealthAfter and failHealthUntil."`
	FailHealthAfter Duration `json:"failHealthAfter" default:"0s" help:"Begin to fail health after this time."`
	FailHealthUntil Duration `json:"failHealthUntil" default:"0s" help:"Stop failing health after this time; 0 for never stopping."`
	ErrorRate       float64  `json:"errorRate" default:"0" help:"Share of requests answered with 500; 0 to 1."`
	SlowFactor      float64  `json:"slowFactor" default:"1" help:"Factor by which the times to the first token and between tokens are longer."`
	LoseTransfers   bool     `json:"loseTransfers" help:"As a prefill server, close the connections of decode servers without sending the KV cache."`
	Hang            bool     `json:"hang" help:"Accept requests, including health checks, and never answer."`
	IgnoreSIGTERM   bool     `json:"ignoreSigterm" name:"ignore-sigterm" help:"Continue to serve after SIGTERM."`
	MemoryMiB       int      `json:"memoryMib" name:"memory-mib" default:"0" help:"Allocate this much memory, and write every page."`
	FailLoad        string   `json:"failLoad" help:"Fail to load models and adapters whose names match this pattern (* matches any text)."`
	HangLoad        string   `json:"hangLoad" help:"Never finish loading models and adapters whose names match this pattern."`
	CrashLoad       string   `json:"crashLoad" help:"Exit without a drain when a model or an adapter is loaded whose name matches this pattern."`
	SlowLoad        Duration `json:"slowLoad" default:"0s" help:"Additional time of each load of a model or an adapter."`
	DenyReady       string   `json:"denyReady" help:"Report loaded models whose names match this pattern as not ready."`
	FalseReady      string   `json:"falseReady" help:"Fail each inference of models whose names match this pattern, although they are reported as ready."`
	LogLines        int      `json:"logLines" default:"0" help:"Write this many log lines per second."`
}

// Duration is a time.Duration with a text form ("1m30s").
type Duration time.Duration

// MarshalText returns d in Go's form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses Go's form.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

func (f Faults) withDefaults() Faults {
	if f.ExitCode == 0 {
		f.ExitCode = 1
	}
	if f.SlowFactor == 0 {
		f.SlowFactor = 1
	}
	return f
}

// These are the upper limits of the resources that a fault may use on its host.
const (
	maxMemoryMiB = 1 << 20
	maxLogLines  = 100_000
)

func (f Faults) validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(f.CrashAfter < 0, "fault crashAfter must not be negative")
	// With exit code 0, a crash would look like a clean end.
	refuse(f.ExitCode < 1 || f.ExitCode > 255, "fault exitCode must be 1 to 255, not %d", f.ExitCode)
	refuse(f.FailHealthAfter < 0, "fault failHealthAfter must not be negative")
	refuse(f.FailHealthUntil != 0 && f.FailHealthUntil <= f.FailHealthAfter, "fault failHealthUntil must be later than failHealthAfter, or 0")
	refuse(!f.FailHealth && (f.FailHealthAfter != 0 || f.FailHealthUntil != 0), "fault failHealthAfter and failHealthUntil need failHealth")
	refuse(!(f.ErrorRate >= 0 && f.ErrorRate <= 1), "fault errorRate must be 0 to 1, not %g", f.ErrorRate)
	refuse(!(f.SlowFactor >= 1 && f.SlowFactor <= 1e6), "fault slowFactor must be 1 to 1000000, not %g", f.SlowFactor)
	refuse(f.MemoryMiB < 0 || f.MemoryMiB > maxMemoryMiB, "fault memoryMib must be 0 to %d, not %d", maxMemoryMiB, f.MemoryMiB)
	refuse(f.SlowLoad < 0, "fault slowLoad must not be negative")
	for _, p := range []struct{ name, pattern string }{
		{"failLoad", f.FailLoad}, {"hangLoad", f.HangLoad}, {"crashLoad", f.CrashLoad}, {"denyReady", f.DenyReady}, {"falseReady", f.FalseReady},
	} {
		_, err := path.Match(p.pattern, "")
		refuse(err != nil, "fault %s must be a name, in which * matches any text, not %q", p.name, p.pattern)
	}
	refuse(f.LogLines < 0 || f.LogLines > maxLogLines, "fault logLines must be 0 to %d, not %d", maxLogLines, f.LogLines)
	return errors.Join(errs...)
}

func (f Faults) healthFails(since time.Duration) bool {
	return f.FailHealth && since >= time.Duration(f.FailHealthAfter) &&
		(f.FailHealthUntil == 0 || since < time.Duration(f.FailHealthUntil))
}

// ExitError is the error of Run after an injected crash. The caller must end the process with Code. The
// package itself never exits, so that it can run inside another process.
type ExitError struct {
	Code   int
	Reason string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s (injected fault, exit code %d)", e.Reason, e.Code)
}

// ExitCode returns the code that the process must end with.
func (e *ExitError) ExitCode() int { return e.Code }

// faultBoard holds the current faults, and a channel that closes when they change.
type faultBoard struct {
	mu      sync.Mutex
	faults  Faults
	setAt   time.Time
	changed chan struct{} // closed and replaced at every change
	rnd     *rand.Rand
}

func newFaultBoard(f Faults, rnd *rand.Rand, now time.Time) *faultBoard {
	return &faultBoard{faults: f, setAt: now, changed: make(chan struct{}), rnd: rnd}
}

// currentFaults returns the faults, the time at which they were set, and a channel that closes when
// they change.
func (b *faultBoard) currentFaults() (Faults, time.Time, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults, b.setAt, b.changed
}

// changeFaults applies change to a copy of the faults and keeps the copy only if it is valid.
func (b *faultBoard) changeFaults(now time.Time, change func(*Faults) error) (Faults, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.faults
	if err := change(&next); err != nil {
		return b.faults, err
	}
	next = next.withDefaults()
	if err := next.validate(); err != nil {
		return b.faults, err
	}
	b.faults, b.setAt = next, now
	close(b.changed)
	b.changed = make(chan struct{})
	return next, nil
}

// drawError decides at random whether this request fails.
func (b *faultBoard) drawError() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults.ErrorRate > 0 && b.rnd.Float64() < b.faults.ErrorRate
}
