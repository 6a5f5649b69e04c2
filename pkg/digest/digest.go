// Package digest sums a region's desired state, so that an agent and the control
// plane can tell in eight bytes whether they hold the same, and in 256 sums
// where they differ. The definition is part of the agent protocol (Bookmark in
// agent.proto); both sides use this code.
//
// Sums wrap and commute, so adding and removing an item is O(1) and the order of
// arrival does not matter.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
)

// Buckets is the number of sums; an item's bucket is the first byte of the
// SHA-256 of its key.
const Buckets = 256

// Sums are the wrapping sums of item hashes by bucket. The zero value is the
// digest of nothing.
type Sums [Buckets]uint64

// Bucket of a key.
func Bucket(key string) int {
	sum := sha256.Sum256([]byte(key))
	return int(sum[0])
}

// Hash of one item: kind is the number of its agentv1.ItemKind, below 256.
func Hash(kind int32, key string, generation int64, specHash []byte) uint64 {
	buf := make([]byte, 0, 1+len(key)+1+8+len(specHash))
	buf = append(buf, byte(kind))
	buf = append(buf, key...)
	buf = append(buf, 0)
	buf = binary.BigEndian.AppendUint64(buf, uint64(generation))
	buf = append(buf, specHash...)
	sum := sha256.Sum256(buf)
	return binary.BigEndian.Uint64(sum[:8])
}

// Add puts an item with the given hash in.
func (s *Sums) Add(key string, hash uint64) { s[Bucket(key)] += hash }

// Remove takes an item out that was added with the same hash.
func (s *Sums) Remove(key string, hash uint64) { s[Bucket(key)] -= hash }

// Total is the wrapping sum over all buckets.
func (s *Sums) Total() uint64 {
	var total uint64
	for _, v := range s {
		total += v
	}
	return total
}

// Differing lists the buckets in which the two differ, ascending. A list of
// another length than Buckets differs everywhere.
func (s *Sums) Differing(other []uint64) []int32 {
	var out []int32
	for i, v := range s {
		if len(other) != Buckets || other[i] != v {
			out = append(out, int32(i))
		}
	}
	return out
}

// Index is a set of items by kind and key with its sums kept current. It is not
// safe for concurrent use.
type Index struct {
	hashes map[indexKey]uint64
	sums   Sums
}

type indexKey struct {
	kind int32
	key  string
}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{hashes: map[indexKey]uint64{}} }

// Put sets the item's hash, replacing an earlier one of the same kind and key.
func (x *Index) Put(kind int32, key string, hash uint64) {
	x.Delete(kind, key)
	x.hashes[indexKey{kind, key}] = hash
	x.sums.Add(key, hash)
}

// Delete takes the item out, if it is in.
func (x *Index) Delete(kind int32, key string) {
	k := indexKey{kind, key}
	if h, ok := x.hashes[k]; ok {
		x.sums.Remove(key, h)
		delete(x.hashes, k)
	}
}

// Len is the number of items.
func (x *Index) Len() int { return len(x.hashes) }

// Sums returns a copy of the sums.
func (x *Index) Sums() Sums { return x.sums }
