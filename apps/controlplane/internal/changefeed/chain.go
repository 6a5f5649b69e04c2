// Package changefeed is the logic of a region's feed of desired-state changes. It uses no I/O and no clock. It has
// the chain, which distinguishes two histories, and the cursor, which turns committed revisions into gap-free frames
// for one stream.
//
// # Why no change is ever missed
//
// Revisions of a region are gap-free and in commit order. A transaction takes its revisions at its end, from a head
// row that it keeps locked until it commits. So a reader that has seen revision n has seen all revisions up to n. A
// stream sends only the newest state of a key, so several revisions of one key become one. Each frame names the range
// (after, upto] that it closes. A frame closes upto only if the newest state of every key that changed in the range
// is in that frame or an earlier one.
package changefeed

import (
	"crypto/sha256"
	"encoding/binary"
)

// ChainSize is the length of a chain value in bytes.
const ChainSize = sha256.Size

// Genesis returns the chain value of revision 0.
func Genesis() []byte { return make([]byte, ChainSize) }

// Chain returns the chain value of a change: SHA-256(previous chain || change id). Two histories with the
// same value at a revision have the same changes up to that revision.
func Chain(prev []byte, changeID string) []byte {
	h := sha256.New()
	h.Write(prev)
	h.Write([]byte(changeID))
	return h.Sum(nil)
}

// Restart returns the chain value at the beginning of an epoch, for any revision: SHA-256(epoch, 8 bytes big endian ||
// salt). The salt is random, so two epochs with the same number that began independently have no chain value in
// common.
func Restart(epoch int64, salt []byte) []byte {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(epoch)))
	h.Write(salt)
	return h.Sum(nil)
}
