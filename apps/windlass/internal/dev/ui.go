package dev

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// event is one message of a dev to its user. A detached dev sends its events through a pipe to the command
// that started it.
type event struct {
	Kind    eventKind     `json:"kind"`
	Name    string        `json:"name,omitempty"`
	Text    string        `json:"text,omitempty"`
	Elapsed time.Duration `json:"elapsed,omitempty"`
}

type eventKind string

const (
	eventBegin  eventKind = "begin"  // a step that takes a while
	eventDone   eventKind = "done"   // the step of that name is done; Text says where the result is
	eventNote   eventKind = "note"   // something worth knowing
	eventWarn   eventKind = "warn"   // something that went wrong, and what follows
	eventReady  eventKind = "ready"  // everything runs; Text says how to go on
	eventFailed eventKind = "failed" // the end; Text is the error
)

type reporter func(event)

// terminal shows events to a person. On a terminal, the last line is a spinner with the running steps.
type terminal struct {
	w     io.Writer
	live  bool
	color bool

	mu    sync.Mutex
	steps []string
	since time.Time
	shown bool
	stop  chan struct{}
}

const spin = 100 * time.Millisecond

// newTerminal returns a terminal that writes to w. close ends the spinner.
func newTerminal(w io.Writer, getenv func(string) string) *terminal {
	t := &terminal{w: w, stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && getenv("TERM") != "dumb" {
		t.live = true
		t.color = getenv("NO_COLOR") == ""
		go t.runSpinner()
	}
	return t
}

func (t *terminal) close() {
	close(t.stop)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clearSpinner()
	t.live = false
}

func (t *terminal) showEvent(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clearSpinner()
	switch e.Kind {
	case eventBegin:
		if len(t.steps) == 0 {
			t.since = time.Now()
		}
		t.steps = append(t.steps, e.Name)
	case eventDone:
		t.steps = slices.DeleteFunc(t.steps, func(s string) bool { return s == e.Name })
		elapsed := fmt.Sprintf("%.1f s", e.Elapsed.Seconds())
		if t.live {
			t.printLine(fmt.Sprintf("  %s %-20s %-24s %s", t.colorText("32", "✓"), e.Name, e.Text, t.colorText("2", elapsed)))
		} else {
			at := ""
			if e.Text != "" {
				at = " at " + e.Text
			}
			t.printLine("ready: " + e.Name + at + " (" + elapsed + ")")
		}
	case eventNote:
		if t.live {
			t.printLine("    " + t.colorText("2", e.Text))
		} else {
			t.printLine(e.Text)
		}
	case eventWarn:
		if t.live {
			t.printLine("  " + t.colorText("33", "! "+e.Text))
		} else {
			t.printLine("warning: " + e.Text)
		}
	case eventReady:
		t.steps = nil
		t.printLine("\n" + e.Text)
	case eventFailed:
		t.steps = nil
	}
}

func (t *terminal) printLine(line string) { _, _ = fmt.Fprintln(t.w, strings.TrimRight(line, " ")) }

func (t *terminal) colorText(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// clearSpinner removes the line of the spinner. The caller holds t.mu.
func (t *terminal) clearSpinner() {
	if t.shown {
		_, _ = io.WriteString(t.w, "\r\x1b[K")
		t.shown = false
	}
}

func (t *terminal) runSpinner() {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	tick := time.NewTicker(spin)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		if t.live && len(t.steps) > 0 {
			t.clearSpinner()
			_, _ = fmt.Fprintf(t.w, "  %c %s", frames[i%len(frames)],
				t.colorText("2", fmt.Sprintf("%s (%.0f s)", strings.Join(t.steps, ", "), time.Since(t.since).Seconds())))
			t.shown = true
		}
		t.mu.Unlock()
	}
}

// pipeReporter returns a reporter that writes events as lines of JSON. It drops events when the
// other end is gone.
func pipeReporter(w io.Writer) reporter {
	var mu sync.Mutex
	enc := json.NewEncoder(w)
	return func(e event) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(e)
	}
}

func combineReporters(a, b reporter) reporter {
	return func(e event) {
		a(e)
		b(e)
	}
}

// shortPath writes a path in the home folder with ~.
func shortPath(path string) string {
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		if rest, ok := strings.CutPrefix(path, home+"/"); ok {
			return "~/" + rest
		}
	}
	return path
}
