// Package zero records which deployments of the region are at zero, and which of them a request
// woke.
//
//	assignment: replicas 0, wake N ──▶ Asleep ──Wake──▶ Waking ──ready──▶ Awake
//	                                     │                 ▲
//	                                     └── replicas > 0 ─┘
//
// A deployment whose assignment has wake but no replicas is at zero: a request may start wake
// replicas. Wake starts them without the control plane. These replicas stay wanted until the
// control plane answers with a generation that has replicas. A generation without replicas is not
// an answer, because the control plane may have made it before it knew of the wake. So no instance
// stops while a request waits for it, and the control plane decides again as soon as it knows of
// the wake. A generation without wake and without replicas is an answer: no request may start the
// app in this region.
//
// The package also records raises. A raise is a number of replicas that the agent runs instead of
// the number of one generation, because the agent was cut off from the control plane (package
// alone). A raise ends with the next generation.
//
// The marks are stored in a file. The file has every wake that was answered. If the agent is killed
// before it answers, the gateway calls Wake again.
package zero

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Phase is the phase of a deployment.
type Phase int

const (
	// Awake means that the region runs the assigned replicas.
	Awake Phase = iota
	// Asleep means that the deployment is at zero, or is going there.
	Asleep
	// Waking means that the deployment was at zero, and that no instance has been ready since.
	Waking
)

// mark is the entry of a deployment in the file. It exists from the time when the deployment goes
// to zero until the deployment is ready and the control plane wants replicas of it.
type mark struct {
	// Woken means that a request woke the deployment, and that no generation has had replicas
	// since.
	Woken bool `json:"woken,omitempty"`
	// Since is when a request or the control plane woke the deployment, in Unix milliseconds. 0: it
	// is asleep.
	Since int64 `json:"since,omitempty"`
	// Ready means that an instance has been ready since.
	Ready bool `json:"ready,omitempty"`
}

// kept is the content of the file.
type kept struct {
	Marks map[string]mark `json:"marks"`
	// Starts has, by app, the milliseconds from the last wake to the first ready instance.
	Starts map[string]int64 `json:"starts"`
	Raises map[string]Raise `json:"raises,omitempty"`
}

// Raise is a number of replicas that replaces the number of one generation of a deployment.
type Raise struct {
	Epoch      int64 `json:"epoch"`
	Generation int64 `json:"generation"`
	Replicas   int32 `json:"replicas"`
}

// Zero has the phases of deployments. It is safe for concurrent use. Its methods call no code that
// takes other locks.
type Zero struct {
	files disk.Files
	name  string

	mu    sync.Mutex
	state kept
	// dirty means that state differs from the file.
	dirty bool
	// writing is held while the file is written, so that writes do not overlap.
	writing sync.Mutex
}

// New returns a Zero that is only in memory: Keep writes nothing.
func New() *Zero {
	return &Zero{state: kept{Marks: map[string]mark{}, Starts: map[string]int64{}, Raises: map[string]Raise{}}}
}

// Open reads the marks that an earlier agent process stored.
func Open(files disk.Files, name string) (*Zero, error) {
	z := New()
	z.files, z.name = files, name
	data, err := files.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return z, nil
	case err == nil:
		err = json.Unmarshal(data, &z.state)
	}
	if err != nil {
		return nil, fmt.Errorf("read the deployments at zero from %s (without the file, deployments that requests woke stop until the next request, and replicas that the agent raised stop): %w", name, err)
	}
	if z.state.Marks == nil {
		z.state.Marks = map[string]mark{}
	}
	if z.state.Starts == nil {
		z.state.Starts = map[string]int64{}
	}
	if z.state.Raises == nil {
		z.state.Raises = map[string]Raise{}
	}
	return z, nil
}

// Phase returns the phase of a deployment. state is its assignment, or nil if it has none.
func (z *Zero) Phase(id string, state *agentv1.DeploymentState) Phase {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.phaseOf(id, state)
}

func (z *Zero) phaseOf(id string, state *agentv1.DeploymentState) Phase {
	m, marked := z.state.Marks[id]
	d := state.GetDeployment()
	switch {
	case state.GetAction() != agentv1.DeploymentState_ACTION_APPLY:
		return Awake
	case d.GetReplicas() == 0 && d.GetWake() == 0:
		return Awake
	case d.GetReplicas() == 0 && !m.Woken:
		return Asleep
	case marked && !m.Ready:
		return Waking
	}
	return Awake
}

// Replicas returns how many replicas of a deployment the region runs. woken means that this is more
// than the assignment has, because a request woke the deployment.
func (z *Zero) Replicas(id string, state *agentv1.DeploymentState) (n int32, woken bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	d := state.GetDeployment()
	if d.GetReplicas() == 0 && d.GetWake() > 0 && z.state.Marks[id].Woken {
		return d.Wake, true
	}
	return d.GetReplicas(), false
}

// Wake wakes a deployment that is asleep. Call Keep afterwards to store this for the next process.
// woken is false if the deployment is not asleep.
func (z *Zero) Wake(id string, state *agentv1.DeploymentState, now time.Time) (woken bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.phaseOf(id, state) != Asleep {
		return false
	}
	z.put(id, mark{Woken: true, Since: now.UnixMilli()})
	return true
}

// Raise replaces the number of replicas of one generation of a deployment, in memory. The raise
// lasts only if a following Keep succeeds. If Keep fails, call Raise again with before, which is
// the previous raise. before.Replicas is 0 if there was no raise.
func (z *Zero) Raise(id string, r Raise) (before Raise) {
	z.mu.Lock()
	defer z.mu.Unlock()
	before = z.state.Raises[id]
	if r.Replicas == 0 {
		delete(z.state.Raises, id)
	} else {
		z.state.Raises[id] = r
	}
	z.dirty = z.dirty || r != before
	return before
}

// Raised returns the replicas to which the generation of a deployment was raised, or 0.
func (z *Zero) Raised(id string, epoch, generation int64) int32 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if r := z.state.Raises[id]; r.Epoch == epoch && r.Generation == generation {
		return r.Replicas
	}
	return 0
}

// Answer ends the raise of a deployment if the raise is of another generation than the given one.
func (z *Zero) Answer(id string, epoch, generation int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if r, ok := z.state.Raises[id]; ok && (r.Epoch != epoch || r.Generation != generation) {
		delete(z.state.Raises, id)
		z.dirty = true
	}
}

// Note records an assignment before it is applied.
func (z *Zero) Note(id string, state *agentv1.DeploymentState, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m, marked := z.state.Marks[id]
	d := state.GetDeployment()
	switch {
	case d.GetReplicas() == 0 && d.GetWake() == 0:
		z.dropApp(id)
	case d.GetReplicas() == 0:
		if !m.Woken {
			z.put(id, mark{})
		}
	case !marked:
	case m.Ready:
		z.dropApp(id) // the control plane has answered, and an instance serves
	case m.Woken || m.Since == 0:
		if m.Woken = false; m.Since == 0 {
			m.Since = now.UnixMilli()
		}
		z.put(id, m)
	}
}

// Starting returns the deployments that were woken and of which no instance has been ready since.
func (z *Zero) Starting() (ids []string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for id, m := range z.state.Marks {
		if m.Since != 0 && !m.Ready {
			ids = append(ids, id)
		}
	}
	return ids
}

// Ready records that an instance of a woken deployment is ready.
func (z *Zero) Ready(id, appID string, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m, marked := z.state.Marks[id]
	if !marked || m.Since == 0 || m.Ready {
		return
	}
	if took := now.UnixMilli() - m.Since; took > 0 {
		z.state.Starts[appID] = took
		z.dirty = true
	}
	if !m.Woken {
		z.dropApp(id)
		return
	}
	m.Ready = true
	z.put(id, m)
}

// StartTime returns how long the app's last start from zero took. 0: it is not known.
func (z *Zero) StartTime(appID string) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	return time.Duration(z.state.Starts[appID]) * time.Millisecond
}

// Forget drops the marks and raises of deployments and the start times of apps for which the functions return
// false.
func (z *Zero) Forget(deployment, app func(id string) bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for id := range z.state.Marks {
		if !deployment(id) {
			z.dropApp(id)
		}
	}
	for id := range z.state.Raises {
		if !deployment(id) {
			delete(z.state.Raises, id)
			z.dirty = true
		}
	}
	for id := range z.state.Starts {
		if !app(id) {
			delete(z.state.Starts, id)
			z.dirty = true
		}
	}
}

func (z *Zero) put(id string, m mark) {
	if was, ok := z.state.Marks[id]; !ok || was != m {
		z.state.Marks[id] = m
		z.dirty = true
	}
}

func (z *Zero) dropApp(id string) {
	if _, ok := z.state.Marks[id]; ok {
		delete(z.state.Marks, id)
		z.dirty = true
	}
}

// Keep writes the file if the state has changed. When it returns nil, every change before the call
// is in the file.
func (z *Zero) Keep() error {
	z.writing.Lock()
	defer z.writing.Unlock()
	z.mu.Lock()
	if !z.dirty || z.files == nil {
		z.mu.Unlock()
		return nil
	}
	z.dirty = false
	data, err := json.Marshal(z.state)
	z.mu.Unlock()
	if err == nil {
		err = z.files.Replace(z.name, data)
	}
	if err != nil {
		z.mu.Lock()
		z.dirty = true
		z.mu.Unlock()
		return fmt.Errorf("store the deployments at zero and those with raised replicas: %w", err)
	}
	return nil
}
