package changefeed

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Key names an item of a region's desired state.
type Key struct {
	Kind model.ChangeKind
	Name string
}

// Position is a point in a region's history.
type Position struct {
	Epoch    int64
	Revision int64
	Chain    []byte
}

// Cursor has the changes that one stream has not yet sent to its agent. It is a set of dirty keys instead of a queue,
// so that the memory for a slow agent depends on the number of keys, not of changes. It is not safe for concurrent
// use.
type Cursor struct {
	sent  Position // all changes up to here have been sent
	known Position // newest known position
	dirty map[Key]int64
}

// NewCursor returns a cursor that starts after the agent's position.
func NewCursor(at Position) *Cursor {
	return &Cursor{sent: at, known: at, dirty: map[Key]int64{}}
}

// Mark adds changes that were read from the feed, and the position after them. It ignores changes at or below the
// sent revision, because the agent already has them: a stream subscribes before it reads its snapshot, so it gets
// some changes twice.
func (c *Cursor) Mark(changes []model.Change, to Position) {
	for _, ch := range changes {
		if ch.Revision > c.sent.Revision {
			c.dirty[Key{ch.Kind, ch.Key}] = ch.Revision
		}
	}
	if to.Revision > c.known.Revision {
		c.known = to
	}
}

// Sent records that a snapshot as of the position was sent. The snapshot has the newest state of every key that
// changed at or below the position, so these keys are no longer dirty.
func (c *Cursor) Sent(at Position) {
	for k, rev := range c.dirty {
		if rev <= at.Revision {
			delete(c.dirty, k)
		}
	}
	c.sent = at
	if at.Revision > c.known.Revision {
		c.known = at
	}
}

// Idle reports whether nothing remains to send.
func (c *Cursor) Idle() bool { return len(c.dirty) == 0 && c.known.Revision == c.sent.Revision }

// At returns the position up to which everything has been sent.
func (c *Cursor) At() Position { return c.sent }

// Batch is the next part to send: the range (After, Upto.Revision], and the keys whose newest state must be sent to
// close it.
type Batch struct {
	After int64
	Upto  Position
	Keys  []Key
}

// Take returns everything that remains to send and marks it as sent. If sending fails, the stream must end. The agent
// then resumes from its last received position.
func (c *Cursor) Take() (Batch, bool) {
	if c.Idle() {
		return Batch{}, false
	}
	b := Batch{After: c.sent.Revision, Upto: c.known, Keys: make([]Key, 0, len(c.dirty))}
	for k := range c.dirty {
		b.Keys = append(b.Keys, k)
	}
	clear(c.dirty)
	c.sent = c.known
	return b, true
}

// Resume says how a stream continues from an agent's position.
type Resume int

// Results of Judge.
const (
	// Deltas means that the agent's position is in the database's history. The agent gets the changes after it.
	Deltas Resume = iota
	// Snapshot means that the agent holds nothing, or that its revision is too old to continue from.
	Snapshot
	// Fork means that the agent holds a history that the database does not have, after a restored backup or an
	// asynchronous failover. A new epoch begins, and the agent gets a snapshot.
	Fork
)

func (r Resume) String() string {
	switch r {
	case Deltas:
		return "deltas"
	case Snapshot:
		return "snapshot"
	case Fork:
		return "fork"
	}
	return fmt.Sprintf("Resume(%d)", int(r))
}

// Judge compares an agent's position with the head, read from the primary. chainAt is the stored chain value
// of the agent's revision, nil if it was compacted.
//
//	agent holds nothing                      -> snapshot
//	agent's epoch is above the head's        -> fork: the database was restored
//	agent's epoch is below the head's        -> snapshot: the agent missed a new epoch
//	agent's revision is above the head's     -> fork
//	chain compacted                          -> snapshot
//	chain differs                            -> fork
func Judge(agent Position, head model.Head, chainAt []byte) Resume {
	switch {
	case agent.Epoch == 0 && agent.Revision == 0:
		return Snapshot
	case agent.Epoch > head.Epoch:
		return Fork
	case agent.Epoch < head.Epoch:
		return Snapshot
	case agent.Revision > head.Revision:
		return Fork
	case chainAt == nil:
		return Snapshot
	case string(chainAt) != string(agent.Chain):
		return Fork
	}
	return Deltas
}
