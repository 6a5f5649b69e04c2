package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// These are the phases of a dev.
const (
	phaseStarting = "starting"
	phaseReady    = "ready"
	phaseStopping = "stopping"
	phaseStopped  = "stopped"
)

// State is what a dev writes down for the other commands of dev, and for the next run. It is only a report:
// the lock decides whether a dev runs.
type State struct {
	Phase string `json:"phase"`
	// PID and Birth identify the process of the dev: see package proc.
	PID       int       `json:"pid"`
	Birth     string    `json:"birth"`
	StartedAt time.Time `json:"startedAt"`
	Regions   []string  `json:"regions"`
	// Context is the name of the CLI's context for this dev.
	Context string `json:"context"`
	// Runtime is the runtime of the regions, Groups are the groups of nodes of each cluster, and Networks are
	// the networks of pods by region. The next run uses the same.
	Runtime  string         `json:"runtime,omitempty"`
	Groups   []string       `json:"groups,omitempty"`
	Networks map[string]int `json:"networks,omitempty"`
	// TLS reports whether all ports have TLS, except those of instances. The next run uses the same.
	TLS bool `json:"tls,omitempty"`
	// Ports are the ports by name. The next run uses the same.
	Ports     map[string]int `json:"ports"`
	Processes []ProcessState `json:"processes"`
}

// ProcessState is the state of one child.
type ProcessState struct {
	Name string `json:"name"`
	// State is starting, ready, restarting or stopped.
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts"`
	// LastExit describes the last end that dev did not ask for.
	LastExit string   `json:"lastExit,omitempty"`
	URLs     []string `json:"urls,omitempty"`
	Log      string   `json:"log"`
	// Kubeconfig is the path of a cluster's kubeconfig.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Health is "ok" or describes what is wrong. `dev status` sets it.
	Health string `json:"health,omitempty"`
}

func loadState(path string) (State, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{Phase: phaseStopped}, nil
	}
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("read %s: %w; remove the file; only the choice of ports, regions and networks is lost", path, err)
	}
	return s, nil
}

// stateFile is the state of the running dev. A failed write does not stop the dev: writeError returns the
// first such error.
type stateFile struct {
	path string
	mu   sync.Mutex
	now  State
	err  error
}

func (f *stateFile) update(change func(*State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.now)
	b, err := json.MarshalIndent(f.now, "", "  ")
	if err == nil {
		err = atomicfile.Write(f.path, append(b, '\n'), 0o600)
	}
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("write %s: %w", f.path, err)
	}
}

// updateProcess changes the entry of one child, and adds the entry of a new child.
func (f *stateFile) updateProcess(name string, change func(*ProcessState)) {
	f.update(func(s *State) {
		i := slices.IndexFunc(s.Processes, func(p ProcessState) bool { return p.Name == name })
		if i < 0 {
			s.Processes = append(s.Processes, ProcessState{Name: name})
			i = len(s.Processes) - 1
		}
		change(&s.Processes[i])
	})
}

// currentState returns a copy of the current state.
func (f *stateFile) currentState() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now
	now.Processes = slices.Clone(now.Processes)
	return now
}

func (f *stateFile) writeError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// credentials are stored so that keys stay valid from run to run.
type credentials struct {
	APIKey      string `json:"apiKey"`
	OperatorKey string `json:"operatorKey"`
}

func loadCredentials(path string) (credentials, error) {
	var c credentials
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

func (c credentials) saveFile(path string) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}
