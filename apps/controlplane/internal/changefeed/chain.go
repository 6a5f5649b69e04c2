// Package changefeed is the logic of a region's feed of desired-state changes,
// without I/O and without a clock: the chain that tells two histories apart, and
// the bookkeeping that turns "these revisions happened" into gap-free frames for
// one stream.
//
// # Why no change is ever missed
//
// Revisions of a region are gap-free and in commit order, because a transaction
// takes them last, from a head row that it keeps locked to its commit. A reader
// that has seen revision n therefore has seen everything up to n. A stream sends
// only the newest state of a key, so several revisions of one key collapse; each
// frame says which range (after, upto] it closes, and a frame closes upto only
// when the newest state of every key changed in the range went out in it or
// before it.
package changefeed

import (
	"crypto/sha256"
	"encoding/binary"
)

// ChainSize is the length of a chain value in bytes.
const ChainSize = sha256.Size

// Genesis is the chain value of revision 0.
func Genesis() []byte { return make([]byte, ChainSize) }

// Chain is the chain value of a change: SHA-256(previous chain || change id).
// Two histories that agree in it at some revision agree in everything before.
func Chain(prev []byte, changeID string) []byte {
	h := sha256.New()
	h.Write(prev)
	h.Write([]byte(changeID))
	return h.Sum(nil)
}

// Restart is the chain value that an epoch begins with, at whatever revision that
// is: SHA-256(epoch, 8 bytes big endian || salt). The salt is random, so that two
// epochs with one number that began independently have no chain value in common.
func Restart(epoch int64, salt []byte) []byte {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(epoch)))
	h.Write(salt)
	return h.Sum(nil)
}
