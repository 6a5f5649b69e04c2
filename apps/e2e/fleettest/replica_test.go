package fleettest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane"
)

// balancer is the address that agents and users know.
const balancer = "windlass"

// replica is a replica of the control plane. Its process comes and goes. Its address stays.
type replica struct {
	w    *fleet
	name string

	// stalled is a time in Unix nanoseconds. Before it, no message from or to the replica arrives, over the
	// network or at the database.
	stalled atomic.Int64
	// away means that the replica cannot reach the database.
	away atomic.Bool

	mu      sync.Mutex
	plane   *controlplane.InMemory // nil: not listening
	process *process
	peers   *node // its calls to other replicas
	// die ends everything that the process does.
	die context.CancelFunc
}

var errAway = errors.New("the database does not answer")

// replica returns the replica that gets a request to host. For the balancer's host it is one of the replicas
// that listen.
func (w *fleet) replica(host string, d dice) *replica {
	var listening []*replica
	for _, r := range w.replicas {
		if r.name == host {
			return r
		}
		if r.handler(false) != nil {
			listening = append(listening, r)
		}
	}
	if host != balancer || len(listening) == 0 {
		return nil
	}
	return listening[d.intn(len(listening))]
}

// handler returns the handler of calls, or nil while the replica does not listen.
func (r *replica) handler(peer bool) http.Handler {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.plane == nil:
		return nil
	case peer:
		return r.plane.PeerHandler()
	}
	return r.plane.Handler()
}

func (r *replica) start() {
	w := r.w
	r.stalled.Store(0)
	r.away.Store(false)
	alive, d, peers := &line{w: w}, dice{w, r.name + " database"}, newNode(w, r.name)
	plane, err := controlplane.NewInMemory(controlplane.InMemoryConfig{
		Memory: w.memory, Keyset: w.keyset, Log: w.log.With("replica", r.name), Registerer: prometheus.NewRegistry(),
		Tracer: tracer(), Rand: dice{w, r.name + " jitter"}.float,
		Peer: r.name, PeerHTTP: &http.Client{Transport: peers},
		Link: controlplane.Link{
			Before: func(call context.Context) error {
				if err := alive.err(); err != nil {
					return err
				}
				return r.database(call, alive, d.between(100*time.Microsecond, 2*time.Millisecond))
			},
			Within: func(call context.Context) error {
				if err := alive.err(); err != nil || d.intn(8) > 0 {
					return err
				}
				return r.database(call, alive, d.between(0, 5*time.Millisecond))
			},
			After: func(context.Context) error {
				if err := alive.err(); err != nil {
					return err
				}
				if w.faultsOn.Load() && d.intn(300) == 0 {
					return errAway
				}
				return nil
			},
		},
	})
	require.NoError(w.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plane, r.die, r.peers = plane, alive.cut, peers
	r.process = &process{w: w}
	w.addAll(r.process, r.name, plane.Components())
}

// line is a process's connections to its database.
type line struct {
	w     *fleet
	mu    sync.Mutex
	dead  bool
	calls []*context.CancelCauseFunc
}

func (l *line) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return errAway
	}
	return nil
}

// call registers a call, which is cancelled when the line is cut. The caller must call hang when the call has
// ended.
func (l *line) call(cancel context.CancelCauseFunc) (hang func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, errAway
	}
	c := &cancel
	l.calls = append(l.calls, c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls = slices.DeleteFunc(l.calls, func(o *context.CancelCauseFunc) bool { return o == c })
	}, nil
}

// cut breaks the calls in their order, and refuses new ones.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for _, c := range l.calls {
		l.w.happens()
		(*c)(errAway)
	}
}

// database simulates one round trip to the database.
func (r *replica) database(call context.Context, alive *line, takes time.Duration) error {
	call, cancel := context.WithCancelCause(call)
	defer cancel(nil)
	hang, err := alive.call(cancel)
	if err != nil {
		return err
	}
	defer hang()
	if err := sleep(call, takes); err != nil {
		return err
	}
	if err := r.awake(call, dice{r.w, r.name + " database"}); err != nil {
		return err
	}
	if r.away.Load() {
		return errAway
	}
	return nil
}

// awake waits while the replica is stalled. Each waiter then continues at a different time, because timers of
// one instant fire in no fixed order.
func (r *replica) awake(ctx context.Context, d dice) error {
	for {
		wait := time.Until(time.Unix(0, r.stalled.Load()))
		if wait <= 0 {
			return nil
		}
		if err := sleep(ctx, wait+d.between(0, 10*time.Millisecond)); err != nil {
			return err
		}
	}
}

// leave makes the replica refuse new calls. It returns the control plane, its process and the process's cancel
// function, which the caller must end.
func (r *replica) leave() (*controlplane.InMemory, *process, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	plane, process, die := r.plane, r.process, r.die
	r.plane, r.process, r.die = nil, nil, nil
	return plane, process, die
}

// kill ends the process as kill -9 does: calls break at once.
func (r *replica) kill() {
	_, process, die := r.leave()
	if process == nil {
		return
	}
	die()
	r.gone(process)
}

// drain ends the process as a rolling update does: it closes its agents' streams, lets calls end, and removes
// its row.
func (r *replica) drain(patience time.Duration) {
	plane, process, die := r.leave()
	if process == nil {
		return
	}
	defer die()
	plane.Drain()
	_ = sleep(r.w.ctx, patience) // the sleep ends early with the fleet
	r.gone(process)
}

func (r *replica) gone(p *process) {
	for _, n := range r.w.nodes() {
		n.died(r)
	}
	r.peers.end()
	p.kill()
}

// nodes returns all nodes that call replicas, in a fixed order.
func (w *fleet) nodes() []*node {
	nodes := []*node{w.users}
	for _, r := range w.regions {
		r.mu.Lock()
		nodes = append(nodes, r.past...)
		if r.node != nil {
			nodes = append(nodes, r.node)
		}
		r.mu.Unlock()
	}
	for _, r := range w.replicas {
		if r.peers != nil {
			nodes = append(nodes, r.peers)
		}
	}
	return nodes
}
