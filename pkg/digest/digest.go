// Package digest computes sums over a region's desired state. An agent and the control plane compare
// eight bytes to see whether their states are equal, and 256 sums to see where they differ. The
// definition is part of the agent protocol (Bookmark in agent.proto). Both sides use this code.
//
// The sums wrap around and do not depend on the order of the items. So adding and removing an item is
// O(1).
package digest

import (
	"crypto/sha256"
	"encoding/binary"
)

// Buckets is the number of sums. An item's bucket is the first byte of the SHA-256 of its key.
const Buckets = 256

// Sums are the wrapping sums of item hashes by bucket. The zero value has no items.
type Sums [Buckets]uint64

// Bucket returns the bucket of a key.
func Bucket(key string) int {
	sum := sha256.Sum256([]byte(key))
	return int(sum[0])
}

// Hash returns the hash of an item. kind is the number of its agentv1.ItemKind, which is below 256.
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

// Add adds an item with the given hash.
func (s *Sums) Add(key string, hash uint64) { s[Bucket(key)] += hash }

// Remove removes an item that was added with the same hash.
func (s *Sums) Remove(key string, hash uint64) { s[Bucket(key)] -= hash }

// Total returns the wrapping sum over all buckets.
func (s *Sums) Total() uint64 {
	var total uint64
	for _, v := range s {
		total += v
	}
	return total
}

// Differing returns the buckets in which s and other differ, in ascending order. If the length of other
// is not Buckets, all buckets differ.
func (s *Sums) Differing(other []uint64) []int32 {
	var out []int32
	for i, v := range s {
		if len(other) != Buckets || other[i] != v {
			out = append(out, int32(i))
		}
	}
	return out
}

// Index is a set of items by kind and key, with their current sums. It is not safe for concurrent use.
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

// Put sets the hash of the item with this kind and key. It replaces an earlier hash.
func (x *Index) Put(kind int32, key string, hash uint64) {
	x.Delete(kind, key)
	x.hashes[indexKey{kind, key}] = hash
	x.sums.Add(key, hash)
}

// Delete removes the item, if the index has it.
func (x *Index) Delete(kind int32, key string) {
	k := indexKey{kind, key}
	if h, ok := x.hashes[k]; ok {
		x.sums.Remove(key, h)
		delete(x.hashes, k)
	}
}

// Len returns the number of items.
func (x *Index) Len() int { return len(x.hashes) }

// Sums returns a copy of the sums.
func (x *Index) Sums() Sums { return x.sums }
