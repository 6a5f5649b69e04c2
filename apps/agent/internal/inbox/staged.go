package inbox

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/pkg/digest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Staged is a snapshot that is arriving. Its items are encoded and hashed while later frames
// arrive. Before Commit, neither the inbox nor its file has the items.
type Staged struct {
	in    *Inbox
	begin *agentv1.SnapshotBegin
	count int
	parts [][]entry
	work  errgroup.Group
	err   error
}

// entry is an item with the data that is needed to store it.
type entry struct {
	key  Key
	item *agentv1.Item
	sum  uint64 // the item's part of the digest, or 0 if the item is not part of it
	row  []byte // the value in the file
}

func entryOf(item *agentv1.Item) entry {
	e := entry{key: keyOf(item), item: item}
	if countsInDigest(item) {
		e.sum = digest.Hash(int32(item.Kind), item.Key, item.Generation, item.SpecHash)
	}
	return e
}

// Stage begins a snapshot.
func (in *Inbox) Stage(begin *agentv1.SnapshotBegin) *Staged { return &Staged{in: in, begin: begin} }

// minConcurrent is the minimum number of items that are prepared in a goroutine of their own, because
// starting a goroutine costs as much as preparing one item.
const minConcurrent = 64

// Add adds items of the snapshot. The caller must not change them later. Calls must not overlap.
func (s *Staged) Add(items []*agentv1.Item) {
	part := make([]entry, len(items))
	s.parts = append(s.parts, part)
	s.count += len(items)
	if len(items) < minConcurrent {
		s.err = errors.Join(s.err, s.prepareItems(part, items))
		return
	}
	s.work.Go(func() error { return s.prepareItems(part, items) })
}

// Count returns how many items were added.
func (s *Staged) Count() int { return s.count }

func (s *Staged) prepareItems(part []entry, items []*agentv1.Item) (err error) {
	for i, item := range items {
		if item.Key == "" || len(item.Key) > maxKey || item.Kind <= 0 || item.Kind > 255 {
			return fmt.Errorf("item of kind %d has a key of %d bytes", item.Kind, len(item.Key))
		}
		part[i] = entryOf(item)
		if part[i].row, err = s.in.kept.encode(item); err != nil {
			return fmt.Errorf("encode %s: %w", item.Key, err)
		}
	}
	return nil
}

// sortedEntries returns the added items in the order of the file. If a key was added more than once, only
// its newest item is returned.
func (s *Staged) sortedEntries() ([]entry, error) {
	if err := errors.Join(s.work.Wait(), s.err); err != nil {
		return nil, err
	}
	all := slices.Concat(s.parts...)
	slices.SortStableFunc(all, func(a, b entry) int { return inRows(a.key, b.key) })
	out := all[:0]
	for _, e := range all {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].key != e.key:
			out = append(out, e)
		case isNewer(e.item, out[last].item):
			out[last] = e
		}
	}
	return out, nil
}

// Commit stores the whole snapshot if it has the announced number of items. It returns the keys
// that changed or were removed.
func (s *Staged) Commit(announced int64) ([]Key, error) {
	in, begin := s.in, s.begin
	in.mu.Lock()
	defer in.mu.Unlock()
	if int64(s.count) != announced {
		return nil, fmt.Errorf("%w: snapshot of %d items announced %d", ErrGap, s.count, announced)
	}
	whole := len(begin.Buckets) == 0
	at := in.cursor
	switch {
	case begin.Epoch < at.Epoch:
		// The held items are newer than all items of the snapshot, so the cursor would be wrong.
		return nil, fmt.Errorf("%w: snapshot of epoch %d, cursor of epoch %d", ErrGap, begin.Epoch, at.Epoch)
	case !whole && (begin.Epoch != at.Epoch || begin.Revision != at.Revision):
		return nil, fmt.Errorf("%w: snapshot of %d buckets at %d of epoch %d, cursor %d of epoch %d",
			ErrGap, len(begin.Buckets), begin.Revision, begin.Epoch, at.Revision, at.Epoch)
	}
	fresh, err := s.sortedEntries()
	if err != nil {
		return nil, fmt.Errorf("store snapshot in inbox: %w", err)
	}
	changed, err := in.commit(fresh, s.goneKeys(fresh), Cursor{Epoch: begin.Epoch, Revision: begin.Revision, Chain: begin.Chain}, whole)
	if err == nil && everyBucket(begin) {
		changed = append(changed, in.answeredKeys()...)
	}
	return changed, err
}

// goneKeys returns the held keys that the snapshot covers and that are not in has, which is sorted. The caller
// holds in.mu.
func (s *Staged) goneKeys(has []entry) []Key {
	if len(s.in.items) == 0 {
		return nil
	}
	spoken := map[int]bool{}
	for _, b := range s.begin.Buckets {
		spoken[int(b)] = true
	}
	var gone []Key
	for k := range s.in.items {
		covered := len(s.begin.Buckets) == 0 || spoken[digest.Bucket(k.Name)]
		_, present := slices.BinarySearchFunc(has, k, func(e entry, k Key) int { return inRows(e.key, k) })
		if covered && !present {
			gone = append(gone, k)
		}
	}
	return gone
}
