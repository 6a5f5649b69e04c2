package model

import "errors"

// Errors of the store. Compare with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	// ErrConflict: a compare-and-set found another value.
	ErrConflict = errors.New("changed by another writer")
	// ErrTooManyRegions: the transaction changed more regions than a transaction may.
	ErrTooManyRegions = errors.New("too many regions in one transaction")
	// ErrStale: the app is not what a scaling decision was made on any more.
	ErrStale = errors.New("the app has changed since the decision")
	// ErrOutcomeUnknown: the connection was lost while the transaction was being
	// committed. It is durable as a whole or not at all; Update did not repeat it.
	// The caller may: with its idempotency key, its step number, its guard.
	ErrOutcomeUnknown = errors.New("the outcome of the commit is unknown")
)

// ErrAgentUnreachable says that no process that can be reached has the stream of the region's agent,
// or that the agent did not answer in time. Compare with errors.Is.
var ErrAgentUnreachable = errors.New("the region's agent is not reachable")
