// Package modelstate defines the states of models and of their replicas, as tables. It is pure.
//
// A replica is a model version on one server. Requests, results of operations and observations change its state:
//
//	LoadRequested -> Loading -> Loaded -> Available -> UnrouteRequested -> UnloadRequested -> Unloading -> Unloaded
//	                    |                     ^  |                                              |
//	                LoadFailed                |  +-> LoadedUnavailable                     UnloadFailed
//	                                      Draining
//
// Loaded is not Available: a model is available when the gateways have acknowledged its route. It is unloaded
// only when they have acknowledged that the route is gone, and no request is in flight.
//
// Each request and each observation that changes the state increments the tick of the replica. A result carries the
// tick of its request, and an observation the tick at which it began. An event with an older tick is ignored. So the
// late result of a load that was given up changes nothing.
package modelstate

import "fmt"

// State is the state of a replica.
type State int

// The states of a replica.
const (
	// Unknown means that the agent does not know yet what the server has. Requests wait until it does.
	Unknown State = iota
	// LoadRequested means that the server should load the model, and that no call was made yet.
	LoadRequested
	// Loading means that the call to load the model runs.
	Loading
	// Loaded means that the server has the model. Gateways may route to it, but have not acknowledged the route yet.
	Loaded
	// LoadFailed means that the load failed.
	LoadFailed
	// Available means that gateways route to the replica.
	Available
	// LoadedUnavailable means that the server has the model, but the model is not known to be ready.
	LoadedUnavailable
	// Draining means that the server will stop. The replica serves until replicas on other servers serve.
	Draining
	// UnrouteRequested means that gateways should no longer route to the replica.
	UnrouteRequested
	// UnloadRequested means that gateways do not route to the replica, and that no call to unload was made yet.
	UnloadRequested
	// Unloading means that the call to unload the model runs.
	Unloading
	// Unloaded means that the server does not have the model.
	Unloaded
	// UnloadFailed means that the server did not unload the model. It may still have it.
	UnloadFailed
	states
)

// Facts are the properties of a state.
type Facts struct {
	Name string
	// Holds is whether the replica occupies memory of the server.
	Holds bool
	// Routed is whether gateways may send requests to it.
	Routed bool
	// Coming is whether it is going to be available.
	Coming bool
	// Leaving is whether it is going to be unloaded.
	Leaving bool
	// Busy is whether a call to load or unload runs.
	Busy bool
}

var facts = [states]Facts{
	Unknown:           {Name: "Unknown", Holds: true},
	LoadRequested:     {Name: "LoadRequested", Holds: true, Coming: true},
	Loading:           {Name: "Loading", Holds: true, Coming: true, Busy: true},
	Loaded:            {Name: "Loaded", Holds: true, Routed: true, Coming: true},
	LoadFailed:        {Name: "LoadFailed"},
	Available:         {Name: "Available", Holds: true, Routed: true},
	LoadedUnavailable: {Name: "LoadedUnavailable", Holds: true, Coming: true},
	Draining:          {Name: "Draining", Holds: true, Routed: true},
	UnrouteRequested:  {Name: "UnrouteRequested", Holds: true, Leaving: true},
	UnloadRequested:   {Name: "UnloadRequested", Holds: true, Leaving: true},
	Unloading:         {Name: "Unloading", Holds: true, Leaving: true, Busy: true},
	Unloaded:          {Name: "Unloaded"},
	UnloadFailed:      {Name: "UnloadFailed", Holds: true, Leaving: true},
}

// Facts returns the properties of a state.
func (s State) Facts() Facts {
	if s < 0 || s >= states {
		return Facts{Name: fmt.Sprintf("State(%d)", int(s))}
	}
	return facts[s]
}

func (s State) String() string { return s.Facts().Name }

// States returns all states of replicas.
func States() []State {
	all := make([]State, states)
	for i := range all {
		all[i] = State(i)
	}
	return all
}

// Event is what happens to a replica.
type Event int

// The events. The first group has requests, the second group has results of operations, and the third group has
// observations.
const (
	// RequestLoad requests that the server loads the model.
	RequestLoad Event = iota
	// RequestUnload requests that the server unloads the model.
	RequestUnload
	// Drain says that the server is going to stop.
	Drain

	// LoadStarted says that the call to load began.
	LoadStarted
	// LoadDone says that the server has the model, and that the model is ready.
	LoadDone
	// LoadBroke says that the load failed.
	LoadBroke
	// Routed says that all gateways route to the replica.
	Routed
	// Unrouted says that no gateway routes to the replica, and that its requests have ended, or that the time limit for
	// this has passed.
	Unrouted
	// UnloadStarted says that the call to unload began.
	UnloadStarted
	// UnloadDone says that the server does not have the model.
	UnloadDone
	// UnloadBroke says that the unload failed.
	UnloadBroke

	// SeenReady says that the server has the model, and that the model is ready.
	SeenReady
	// SeenUnready says that the server has the model, and that the model is not ready.
	SeenUnready
	// SeenAbsent says that the server answers and does not have the model.
	SeenAbsent
	// ServerLost says that the server has ended. It has no tick, because it ends every operation.
	ServerLost
	events
)

var eventNames = [events]string{
	"RequestLoad", "RequestUnload", "Drain",
	"LoadStarted", "LoadDone", "LoadBroke", "Routed", "Unrouted", "UnloadStarted", "UnloadDone", "UnloadBroke",
	"SeenReady", "SeenUnready", "SeenAbsent", "ServerLost",
}

func (e Event) String() string {
	if e < 0 || e >= events {
		return fmt.Sprintf("Event(%d)", int(e))
	}
	return eventNames[e]
}

// Events returns all events.
func Events() []Event {
	all := make([]Event, events)
	for i := range all {
		all[i] = Event(i)
	}
	return all
}

func (e Event) isRequest() bool { return e <= Drain }

func (e Event) isResult() bool { return e >= LoadStarted && e <= UnloadBroke }

// hasTick reports whether the event is ignored if its tick is older than the replica's.
func (e Event) hasTick() bool { return !e.isRequest() && e != ServerLost }

// none marks a pair of a state and an event that changes nothing.
const none State = -1

// table has the next state of each state, by event. Columns are in the order of the states:
// Unknown, LoadRequested, Loading, Loaded, LoadFailed, Available, LoadedUnavailable, Draining,
// UnrouteRequested, UnloadRequested, Unloading, Unloaded, UnloadFailed.
var table = [events][states]State{
	// Requests.
	RequestLoad: {
		// Unknown waits for an observation: only the server knows whether it has the model.
		none, none, none, none, LoadRequested, none, none, Loaded,
		// The server probably still has the model. An observation decides whether it gets traffic again.
		LoadedUnavailable, LoadedUnavailable,
		// A running unload cannot be taken back. The load follows it.
		LoadRequested, LoadRequested, LoadRequested,
	},
	RequestUnload: {
		none, Unloaded,
		// A running load cannot be taken back. The unload follows it.
		UnloadRequested, UnrouteRequested, Unloaded, UnrouteRequested, UnrouteRequested, UnrouteRequested,
		none, none, none, none, UnloadRequested,
	},
	Drain: {
		none, Unloaded, UnloadRequested, Draining, Unloaded, Draining, UnrouteRequested, none,
		none, none, none, none, none,
	},

	// Results.
	LoadStarted: {
		none, Loading, none, none, none, none, none, none, none, none, none, none, none,
	},
	LoadDone: {
		none, none, Loaded, none, none, none, none, none, none, none, none, none, none,
	},
	LoadBroke: {
		none, LoadFailed, LoadFailed, none, none, none, none, none, none, none, none, none, none,
	},
	Routed: {
		none, none, none, Available, none, none, none, none, none, none, none, none, none,
	},
	Unrouted: {
		none, none, none, none, none, none, none, none, UnloadRequested, none, none, none, none,
	},
	UnloadStarted: {
		none, none, none, none, none, none, none, none, none, Unloading, none, none, none,
	},
	UnloadDone: {
		none, none, none, none, none, none, none, none, none, Unloaded, Unloaded, none, Unloaded,
	},
	UnloadBroke: {
		none, none, none, none, none, none, none, none, none, UnloadFailed, UnloadFailed, none, none,
	},

	// Observations.
	SeenReady: {
		// Unknown: the model was loaded before the agent started, and is not loaded again.
		Loaded, Loaded, none, none, Loaded, none, Loaded, none, none, none, none,
		// Unloaded: the server has a model that it should not have.
		UnrouteRequested, none,
	},
	SeenUnready: {
		LoadedUnavailable, none, none, LoadedUnavailable, none, LoadedUnavailable, none, LoadedUnavailable,
		none, none, none, UnloadRequested, none,
	},
	SeenAbsent: {
		Unloaded, none,
		// The server may not list the model before its load has begun.
		none, LoadRequested, none, LoadRequested, LoadRequested, Unloaded,
		Unloaded, Unloaded, none, none, Unloaded,
	},
	ServerLost: {
		Unloaded, Unloaded, Unloaded, Unloaded, Unloaded, Unloaded, Unloaded, Unloaded,
		Unloaded, Unloaded, Unloaded, none, Unloaded,
	},
}

// Replica is the state of a replica with its tick.
type Replica struct {
	State State
	// Tick grows with each request and each observation that changes the state.
	Tick int64
	// Reason says why the state is LoadFailed, UnloadFailed or LoadedUnavailable.
	Reason string
}

// Apply returns the replica after an event. tick is the tick at which a result's request was made or an
// observation began. It is ignored for requests and for ServerLost. changed is false if the event changes nothing, or
// has an older tick.
func (r Replica) Apply(e Event, tick int64, reason string) (next Replica, changed bool) {
	if e < 0 || e >= events || r.State < 0 || r.State >= states || e.hasTick() && tick != r.Tick {
		return r, false
	}
	to := table[e][r.State]
	if to == none || to == r.State {
		return r, false
	}
	next = Replica{State: to, Tick: r.Tick}
	if !e.isResult() {
		next.Tick++
	}
	if to == LoadFailed || to == UnloadFailed || to == LoadedUnavailable {
		next.Reason = reason
	}
	return next, true
}
