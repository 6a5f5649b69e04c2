// Package modelstate has the states of models and of their replicas, as tables. It is pure.
//
// A replica is a model version on one server. Its state follows from what was asked for and from what was
// observed:
//
//	LoadRequested -> Loading -> Loaded -> Available -> UnrouteRequested -> UnloadRequested -> Unloading -> Unloaded
//	                    |                     ^  |                                              |
//	                LoadFailed                |  +-> LoadedUnavailable                     UnloadFailed
//	                                      Draining
//
// Loaded is not Available: a model is available when the gateways have acknowledged its route. It is unloaded
// only when they have acknowledged that the route is gone, and no request is in flight.
//
// Each request and each observation that changes the state begins a new tick. A result has the tick of its
// request, an observation has the tick at which it began, and what is of an older tick loses. So a load that was
// given up and ends late changes nothing.
package modelstate

import "fmt"

// State is the state of a replica.
type State int

// The states of a replica.
const (
	// Unknown means that the agent has not asked the server yet.
	Unknown State = iota
	// LoadRequested means that the server should load the model, and was not told yet.
	LoadRequested
	// Loading means that the server was told to load the model.
	Loading
	// Loaded means that the server has the model, and no gateway routes to it yet.
	Loaded
	// LoadFailed means that the server, or the fetch of the model, failed.
	LoadFailed
	// Available means that gateways route to the replica.
	Available
	// LoadedUnavailable means that the server has the model, and that it is not known to be ready.
	LoadedUnavailable
	// Draining means that the server will stop, and the replica serves until others do.
	Draining
	// UnrouteRequested means that gateways should no longer route to the replica.
	UnrouteRequested
	// UnloadRequested means that gateways do not route to the replica, and the server was not told yet.
	UnloadRequested
	// Unloading means that the server was told to unload the model.
	Unloading
	// Unloaded means that the server does not have the model.
	Unloaded
	// UnloadFailed means that the server did not unload the model. It may still have it.
	UnloadFailed
	states
)

// Facts are what code asks about a state.
type Facts struct {
	Name string
	// Holds is whether the replica has memory of the server.
	Holds bool
	// Routed is whether gateways may send requests to it.
	Routed bool
	// Coming is whether it is going to be available.
	Coming bool
	// Leaving is whether it is going to be unloaded.
	Leaving bool
	// Busy is whether an operation of the server runs.
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

// Facts returns what is known of a state.
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

// The events. Those of the first group are requests. Those of the second group are results of operations. Those
// of the third group are observations.
const (
	// RequestLoad asks for the model.
	RequestLoad Event = iota
	// RequestUnload asks that the model goes.
	RequestUnload
	// Drain says that the server is going to stop.
	Drain

	// LoadStarted says that the server was told to load.
	LoadStarted
	// LoadDone says that the server has the model, and that the model is ready.
	LoadDone
	// LoadBroke says that the load failed.
	LoadBroke
	// Routed says that all gateways route to the replica.
	Routed
	// Unrouted says that no gateway routes to the replica, and that its requests have ended or the time for
	// them has.
	Unrouted
	// UnloadStarted says that the server was told to unload.
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
	// ServerLost says that the server has ended. It has no tick, because it is true of every operation.
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

// hasTick reports whether an event that is of an older tick loses.
func (e Event) hasTick() bool { return !e.isRequest() && e != ServerLost }

// none marks a pair of state and event that changes nothing.
const none State = -1

// table has the next state of each state, by event. Columns are in the order of the states:
// Unknown, LoadRequested, Loading, Loaded, LoadFailed, Available, LoadedUnavailable, Draining,
// UnrouteRequested, UnloadRequested, Unloading, Unloaded, UnloadFailed.
var table = [events][states]State{
	// What is asked for.
	RequestLoad: {
		LoadRequested, none, none, none, LoadRequested, none, none, Loaded,
		// The server has the model still, or so it seems. An observation decides whether it gets traffic again.
		LoadedUnavailable, LoadedUnavailable,
		// What the server does meanwhile cannot be taken back. The load follows it.
		LoadRequested, LoadRequested, LoadRequested,
	},
	RequestUnload: {
		UnrouteRequested, Unloaded,
		// A load cannot be taken back. The unload follows it.
		UnloadRequested, UnrouteRequested, Unloaded, UnrouteRequested, UnrouteRequested, UnrouteRequested,
		none, none, none, none, UnloadRequested,
	},
	Drain: {
		none, Unloaded, UnloadRequested, Draining, Unloaded, Draining, UnrouteRequested, none,
		none, none, none, none, none,
	},

	// What became of it.
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

	// What is seen.
	SeenReady: {
		// Adopted: the server has it already, and nothing is loaded again.
		Loaded, Loaded, none, none, Loaded, none, Loaded, none, none, none, none,
		// The server has what it should not have.
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
// observation began. It is not read for requests and ServerLost. changed is false if the event changes nothing, or
// is of an older tick.
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
