package model

import (
	"errors"
	"fmt"
)

// Errors of the store. Compare with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
	// ErrConflict means that a compare-and-set found another value.
	ErrConflict = errors.New("changed by another writer")
	// ErrTooManyRegions means that the transaction changed more regions than it may.
	ErrTooManyRegions = errors.New("too many regions in one transaction")
	// ErrStale means that the app changed after a scaling decision was made.
	ErrStale = errors.New("the app has changed since the decision")
	// ErrOutcomeUnknown means that the connection was lost during the commit. Either the whole transaction is durable,
	// or nothing of it. Update does not repeat it. The caller may repeat it if an idempotency key, a step number or a
	// guard makes that safe.
	ErrOutcomeUnknown = errors.New("the outcome of the commit is unknown")
)

// ErrAgentUnreachable means that no reachable process has the stream of the region's agent, or that the agent
// did not answer in time. Compare with errors.Is.
var ErrAgentUnreachable = errors.New("the region's agent is not reachable")

// ErrNoAnswer is an ErrAgentUnreachable for a request that the agent may have received and carried out. After any
// other ErrAgentUnreachable, the agent has done nothing.
var ErrNoAnswer = fmt.Errorf("%w: no answer came in time", ErrAgentUnreachable)
