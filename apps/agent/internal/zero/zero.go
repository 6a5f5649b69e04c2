// Package zero knows which deployments of the region are at zero, and which of them a request woke.
//
//	assignment: replicas 0, wake N ──▶ Asleep ──Wake──▶ Waking ──ready──▶ Awake
//	                                     │                 ▲
//	                                     └── replicas > 0 ─┘
//
// An assignment with wake and without replicas is at zero: a request may start N replicas. Wake does so
// without the control plane. These replicas stay wanted until the control plane answers with a generation
// that has replicas. A generation without replicas is no answer, because the control plane may have made it
// before it heard of the wake. So no instance stops while a request waits for it, and the control plane
// decides again as soon as it knows of the wake. A generation without wake and without replicas is an answer:
// no request may start the app here.
//
// The marks are kept in a file. It has every wake that was answered. If the agent is killed before it
// answers, the gateway calls Wake again.
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
	// Awake: the region runs the assigned replicas.
	Awake Phase = iota
	// Asleep: it is at zero, or goes there.
	Asleep
	// Waking: it was at zero, and no instance has been ready since.
	Waking
)

// mark is the entry of a deployment in the file. It exists from when the deployment goes to zero until the
// deployment is ready and the control plane wants replicas of it.
type mark struct {
	// Woken means that a request woke it, and that no generation has had replicas since.
	Woken bool `json:"woken,omitempty"`
	// Since is when a request or the control plane woke it, in Unix milliseconds. 0: it is asleep.
	Since int64 `json:"since,omitempty"`
	// Ready means that an instance has been ready since.
	Ready bool `json:"ready,omitempty"`
}

// kept is the content of the file.
type kept struct {
	Marks map[string]mark `json:"marks"`
	// Starts has, by app, the milliseconds from the last wake to the first ready instance.
	Starts map[string]int64 `json:"starts"`
}

// Zero knows the phases. It is safe for concurrent use. Its methods call no code that takes other locks.
type Zero struct {
	files disk.Files
	name  string

	mu    sync.Mutex
	state kept
	// dirty means that state differs from the file.
	dirty bool
	// writing is held while the file is written, so that writes follow each other.
	writing sync.Mutex
}

// New returns a Zero in memory only: Keep writes nothing.
func New() *Zero { return &Zero{state: kept{Marks: map[string]mark{}, Starts: map[string]int64{}}} }

// Open reads the marks that an earlier agent process kept.
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
		return nil, fmt.Errorf("read which deployments are at zero from %s (without the file, those that requests woke stop until the next request): %w", name, err)
	}
	if z.state.Marks == nil {
		z.state.Marks = map[string]mark{}
	}
	if z.state.Starts == nil {
		z.state.Starts = map[string]int64{}
	}
	return z, nil
}

// Phase returns the phase of a deployment. state is its assignment; nil: there is none.
func (z *Zero) Phase(id string, state *agentv1.DeploymentState) Phase {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.phase(id, state)
}

func (z *Zero) phase(id string, state *agentv1.DeploymentState) Phase {
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

// Replicas returns how many replicas of a deployment the region runs. woken: they are more than the
// assignment has, because a request woke the deployment.
func (z *Zero) Replicas(id string, state *agentv1.DeploymentState) (n int32, woken bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	d := state.GetDeployment()
	if d.GetReplicas() == 0 && d.GetWake() > 0 && z.state.Marks[id].Woken {
		return d.Wake, true
	}
	return d.GetReplicas(), false
}

// Wake wakes a deployment that is asleep. Keep then saves that for the next process. woken is false if the
// deployment is not asleep.
func (z *Zero) Wake(id string, state *agentv1.DeploymentState, now time.Time) (woken bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.phase(id, state) != Asleep {
		return false
	}
	z.put(id, mark{Woken: true, Since: now.UnixMilli()})
	return true
}

// Note records an assignment before it is applied.
func (z *Zero) Note(id string, state *agentv1.DeploymentState, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m, marked := z.state.Marks[id]
	d := state.GetDeployment()
	switch {
	case d.GetReplicas() == 0 && d.GetWake() == 0:
		z.drop(id)
	case d.GetReplicas() == 0:
		if !m.Woken {
			z.put(id, mark{})
		}
	case !marked:
	case m.Ready:
		z.drop(id) // the control plane has answered, and an instance serves
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

// Ready notes that an instance of a deployment that was woken is ready.
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
		z.drop(id)
		return
	}
	m.Ready = true
	z.put(id, m)
}

// StartTime returns how long the app's last start from zero took; 0: that is not known.
func (z *Zero) StartTime(appID string) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	return time.Duration(z.state.Starts[appID]) * time.Millisecond
}

// Forget drops the marks of deployments and the start times of apps for which the functions return false.
func (z *Zero) Forget(deployment, app func(id string) bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for id := range z.state.Marks {
		if !deployment(id) {
			z.drop(id)
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

func (z *Zero) drop(id string) {
	if _, ok := z.state.Marks[id]; ok {
		delete(z.state.Marks, id)
		z.dirty = true
	}
}

// Keep writes the file if the state has changed. When it returns nil, every change before the call is in the
// file.
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
		return fmt.Errorf("keep which deployments are at zero: %w", err)
	}
	return nil
}
