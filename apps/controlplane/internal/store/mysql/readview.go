package mysql

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

// A read can be torn: it sees a transaction, but not an earlier one. MariaDB makes a read view
// by walking its table of running transactions while they continue. Suppose that A and B lock a head one
// after the other:
//
//	reader   notes A as running ........................ finds B gone
//	A        .................. commits, frees the head
//	B        waits for the head ....................... takes it, commits
//
// Then the view has B's change without A's. The walk is short, unless the reader loses its processor during
// the walk. A read of MySQL cannot be torn, because it makes views under a mutex.
//
// Revisions show torn reads. Revisions are gap-free, so a gap is either a torn read or a compacted part of the feed.
// After one view had a transaction, every later view has all earlier transactions. So if a second read still has
// the gap, the gap was compacted. A snapshot whose newest revisions have a gap is begun again.
const (
	// tornTries is the maximum number of reads. Each further read fails only if it meets the race again.
	tornTries = 10
	// tornDepth is the number of revisions below its head that a snapshot checks. It is larger than the number of
	// transactions that can commit during one walk.
	tornDepth = 64
	// changesChunk is the number of regions that one statement reads. It is limited because the optimizer keeps a
	// description of each range in memory.
	changesChunk = 1000
)

var errTorn = errors.New("the database kept showing commits without earlier ones")

// gap is a gap in a region's revisions. from and to are the revisions next to it.
type gap struct {
	region   string
	from, to int64
}

// gapsIn returns the gaps above after in changes, which are sorted by (region, revision).
func gapsIn(changes []model.Change, after map[string]int64) map[gap]bool {
	var found map[gap]bool
	region, last := "", int64(0)
	for i, c := range changes {
		if i == 0 || c.RegionID != region {
			region, last = c.RegionID, after[c.RegionID]
		}
		if c.Revision != last+1 {
			if found == nil {
				found = map[gap]bool{}
			}
			found[gap{region, last, c.Revision}] = true
		}
		last = c.Revision
	}
	return found
}

// Changes implements store.FeedTx. In a snapshot it does not check for torn reads, because GetHead has checked.
func (t *tx) Changes(after map[string]int64, n int) ([]model.Change, error) {
	var before map[gap]bool
	for range tornTries {
		changes, err := t.readChanges(after, int(limitOrAll(n)))
		if err != nil {
			return nil, err
		}
		now := gapsIn(changes, after)
		if t.reopen != nil || !hasFreshGap(now, before) {
			if hasFreshGap(before, now) { // the second read has changes that the first lacked
				t.metrics.torn.Inc()
			}
			return changes, nil
		}
		before = now
	}
	return nil, wrapError(errTorn, "read changes", "")
}

// hasFreshGap reports whether a has a gap that b does not have.
func hasFreshGap(a, b map[gap]bool) bool {
	for g := range a {
		if !b[g] {
			return true
		}
	}
	return false
}

// compactedOnly reports whether all gaps begin at the beginning of the caller's ranges.
func compactedOnly(found map[gap]bool, after map[string]int64) bool {
	for g := range found {
		if g.from != after[g.region] {
			return false
		}
	}
	return true
}

// readChanges composes its statement, because sqlc has no list of ranges.
func (t *tx) readChanges(after map[string]int64, n int) ([]model.Change, error) {
	found := []model.Change{}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(after)), changesChunk) {
		var q strings.Builder
		q.WriteString("-- name: Changes :many\nSELECT region, revision, kind, change_key, generation, id, chain FROM region_changes WHERE ")
		args := make([]any, 0, 2*len(part)+1)
		for i, region := range part {
			if i > 0 {
				q.WriteString(" OR ")
			}
			q.WriteString("(region = ? AND revision > ?)")
			args = append(args, region, after[region])
		}
		q.WriteString(" ORDER BY region, revision LIMIT ?")
		args = append(args, limitOrAll(n-len(found)))
		if err := scanRows(t, t.feed, q.String(), args, func(row scanner) error {
			var c model.Change
			err := row.Scan(&c.RegionID, &c.Revision, &c.Kind, &c.Key, &c.Generation, &c.ID, &c.Chain)
			found = append(found, c)
			return err
		}); err != nil {
			return nil, t.queryError(err, "read changes of region", part[0])
		}
		if len(found) == n {
			break
		}
	}
	return found, nil
}

// readHeads reads heads. In a snapshot it ensures that the view also has all changes up to the heads. The view can
// only be begun again if nothing was read from it yet, so heads must be read first.
func (t *tx) readHeads(regions []string) ([]gen.RegionHead, error) {
	for range tornTries {
		first := t.statements == 0
		heads, err := inChunks(regions, func(ids []string) ([]gen.RegionHead, error) {
			return t.primary.GetHeads(t.ctx, ids)
		})
		if err != nil || t.reopen == nil {
			return heads, err
		}
		torn, err := t.isTorn(heads)
		if err != nil || !torn {
			return heads, err
		}
		t.metrics.torn.Inc()
		if !first {
			return nil, errTorn
		}
		if err := t.reopen(); err != nil {
			return nil, err
		}
		t.statements = 0
	}
	return nil, errTorn
}

// isTorn reports whether a change below one of the heads is missing.
func (t *tx) isTorn(heads []gen.RegionHead) (bool, error) {
	after := make(map[string]int64, len(heads))
	for _, h := range heads {
		after[h.Region] = max(0, h.Revision-tornDepth)
	}
	changes, err := t.readChanges(after, len(heads)*tornDepth)
	if err != nil {
		return false, err
	}
	newest := make(map[string]int64, len(heads))
	for _, c := range changes {
		newest[c.RegionID] = c.Revision
	}
	for _, h := range heads {
		// If a region has no changes, they were compacted, including the head's own change.
		if at, ok := newest[h.Region]; ok && at != h.Revision {
			return true, nil
		}
	}
	return !compactedOnly(gapsIn(changes, after), after), nil
}
