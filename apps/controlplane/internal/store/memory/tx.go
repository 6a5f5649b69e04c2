package memory

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

// tx implements store.Tx for one attempt.
type tx struct {
	store    *Store
	readOnly bool
	pinned   *state // the state that a snapshot reads; nil: the newest
	restores int
	overlays []participant // in the order of registry; nil: not used yet

	changes map[string][]model.Change // by region, in the order of the calls
	bumped  map[string]bool           // regions with a new epoch
	woken   map[string]time.Duration
	touched map[string]bool // apps
}

var _ store.Tx = (*tx)(nil)

// Batched implements store.Tx.
func (t *tx) Batched() bool { return false }

func newTx(s *Store) *tx {
	return &tx{
		store:    s,
		restores: s.restoreCount(),
		overlays: make([]participant, len(registry)),
		changes:  map[string][]model.Change{}, bumped: map[string]bool{},
		woken: map[string]time.Duration{}, touched: map[string]bool{},
	}
}

// usedTables yields the tables that the transaction read or wrote.
func (t *tx) usedTables() iter.Seq[participant] {
	return func(yield func(participant) bool) {
		for _, o := range t.overlays {
			if o != nil && !yield(o) {
				return
			}
		}
	}
}

// read calls f with the committed state. f must be short and must not lock anything.
func (t *tx) read(f func(*state)) {
	if t.pinned != nil {
		f(t.pinned)
		return
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	f(t.store.state)
}

func (t *tx) touchApp(appID string) { t.touched[appID] = true }

// Change implements store.TopologyTx.
func (t *tx) Change(regionID string, kind model.ChangeKind, key string, generation int64) {
	list := t.changes[regionID]
	for i, c := range list {
		if c.Kind == kind && c.Key == key {
			list[i].Generation = max(c.Generation, generation)
			return
		}
	}
	t.changes[regionID] = append(list, model.Change{RegionID: regionID, Kind: kind, Key: key, Generation: generation})
}

// checkChanges refuses changes that cannot be appended.
func (t *tx) checkChanges(s *state) error {
	if len(t.changes) > store.MaxRegions {
		return fmt.Errorf("store: change %d regions, at most %d: %w", len(t.changes), store.MaxRegions, model.ErrTooManyRegions)
	}
	for _, id := range slices.Sorted(maps.Keys(t.changes)) {
		_, committed := headTable.tableOf(s).rows[id]
		if w, mine := headTable.overlayIn(t).writes[id]; mine {
			committed = w != nil
		}
		if !committed {
			return fmt.Errorf("store: change region %q: %w", id, model.ErrNotFound)
		}
	}
	return nil
}

// appendChanges assigns revisions. The writes are already applied, and the mutex is held, so a head does
// not move between its read and its write.
func (t *tx) appendChanges(s *state, at uint64) {
	if len(t.changes) == 0 {
		return
	}
	heads, logs := headTable.thawTable(s), logTable.thawTable(s)
	for _, region := range slices.Sorted(maps.Keys(t.changes)) {
		h := headTable.copy(heads.rows[region].value)
		feed := logs.rows[region].value
		for _, c := range t.changes[region] {
			h.Revision++
			c.Revision, c.ID = h.Revision, ident.New("chg")
			c.Chain = changefeed.Chain(h.Chain, c.ID)
			h.Chain = c.Chain
			feed.changes = append(feed.changes, c)
		}
		heads.set(region, &h, at)
		logs.set(region, &feed, at)
	}
}

// commitOf returns what the transaction changed.
func (t *tx) commitOf(s *state) store.Commit {
	c := store.Commit{
		Revisions: map[string]int64{},
		Woken:     maps.Clone(t.woken),
		Apps:      slices.Sorted(maps.Keys(t.touched)),
	}
	for region := range t.changes {
		c.Revisions[region] = headTable.tableOf(s).rows[region].value.Revision
	}
	for region := range t.bumped {
		c.Revisions[region] = headTable.tableOf(s).rows[region].value.Revision
	}
	return c
}

func notFound(what string, id any) error {
	return fmt.Errorf("store: %s %v: %w", what, id, model.ErrNotFound)
}

func conflictError(what string, id any) error {
	return fmt.Errorf("store: %s %v: %w", what, id, model.ErrConflict)
}

// oneRow returns the row, or an error if ok is false.
func oneRow[V any](v V, ok bool, what string, id any) (V, error) {
	if !ok {
		var none V
		return none, notFound(what, id)
	}
	return v, nil
}

// pageOf sorts rows by key, and returns the rows of page p.
func pageOf[V any](rows []V, p store.Page, key func(V) string) []V {
	slices.SortFunc(rows, func(a, b V) int { return cmp.Compare(key(a), key(b)) })
	from, _ := slices.BinarySearchFunc(rows, p.After, func(v V, after string) int {
		if key(v) <= after && after != "" {
			return -1
		}
		return 1
	})
	return firstRows(rows[from:], p.Limit)
}

// pageDown is page in descending order.
func pageDown[V any](rows []V, p store.Page, key func(V) string) []V {
	slices.SortFunc(rows, func(a, b V) int { return cmp.Compare(key(b), key(a)) })
	from, _ := slices.BinarySearchFunc(rows, p.After, func(v V, before string) int {
		if before != "" && key(v) >= before {
			return -1
		}
		return 1
	})
	return firstRows(rows[from:], p.Limit)
}

// firstRows returns at most n rows, or all if n is not positive.
func firstRows[V any](rows []V, n int) []V {
	if n > 0 && len(rows) > n {
		return rows[:n]
	}
	return rows
}

func byPlace(a, b pair) int { return cmp.Or(cmp.Compare(a.a, b.a), cmp.Compare(a.b, b.b)) }

// setOf returns the strings as a set.
func setOf(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}

// sortDistinct returns the strings sorted, each once.
func sortDistinct(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
