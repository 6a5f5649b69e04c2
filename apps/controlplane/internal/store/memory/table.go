package memory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// row is a committed value and the commit that last wrote or locked it. Values are never changed in place:
// they are copied when they enter or leave the store.
type row[V any] struct {
	value V
	at    uint64
}

// schema describes a table.
type schema[K comparable, V any] struct {
	name string
	key  func(V) K
	copy func(V) V
	// unique returns each unique key except the primary key, empty if the row does not have the key.
	unique []func(V) string
}

type table[K comparable, V any] struct {
	*schema[K, V]
	rows   map[K]row[V]
	unique []map[string]K // per unique key of the schema
	gone   map[K]uint64   // by key of a recently deleted row: the commit that deleted it
	before uint64         // rows that do not exist and are not in gone were deleted at this commit or before
	frozen bool           // a snapshot holds it, so it is copied before the next write
}

// keepGone is the maximum number of deleted rows that a table remembers.
const keepGone = 1000

func newTable[K comparable, V any](s *schema[K, V]) *table[K, V] {
	t := &table[K, V]{schema: s, rows: map[K]row[V]{}, gone: map[K]uint64{}}
	for range s.unique {
		t.unique = append(t.unique, map[string]K{})
	}
	return t
}

func (t *table[K, V]) freezeTable() { t.frozen = true }

func (t *table[K, V]) count() (name string, rows int) { return t.name, len(t.rows) }

// thawedTable returns t, or a copy of it if a snapshot holds t.
func (t *table[K, V]) thawedTable() *table[K, V] {
	if !t.frozen {
		return t
	}
	c := &table[K, V]{schema: t.schema, rows: maps.Clone(t.rows), gone: maps.Clone(t.gone), before: t.before}
	for _, u := range t.unique {
		c.unique = append(c.unique, maps.Clone(u))
	}
	return c
}

func (t *table[K, V]) set(k K, v *V, at uint64) {
	if old, ok := t.rows[k]; ok {
		for i, f := range t.schema.unique {
			if u := f(old.value); u != "" && t.unique[i][u] == k {
				delete(t.unique[i], u)
			}
		}
	}
	if v == nil {
		delete(t.rows, k)
		t.noteGone(k, at)
		return
	}
	delete(t.gone, k)
	t.rows[k] = row[V]{value: *v, at: at}
	for i, f := range t.schema.unique {
		if u := f(*v); u != "" {
			t.unique[i][u] = k
		}
	}
}

// noteGone records that a commit deleted a row.
func (t *table[K, V]) noteGone(k K, at uint64) {
	if len(t.gone) == keepGone {
		clear(t.gone)
		t.before = at
	}
	t.gone[k] = at
}

// touchedAt returns the commit that last touched the row, even if the row is deleted. For a row that does not exist and was not
// deleted recently, it may return a later commit, so that a transaction runs again without need.
func (t *table[K, V]) touchedAt(k K) uint64 {
	if r, ok := t.rows[k]; ok {
		return r.at
	}
	return max(t.gone[k], t.before)
}

// overlay is a table as one transaction sees it: the transaction's own writes over the newest committed rows.
type overlay[K comparable, V any] struct {
	*declared[K, V]
	tx     *tx
	writes map[K]*V     // nil: deleted
	locked map[K]uint64 // commit that last touched the row before it was locked
}

// participant is an overlay of any type.
type participant interface {
	isDirty() bool
	// isValid reports whether no locked row has changed, and every unique key that was free is still free. The caller
	// of valid and apply must hold the store's mutex.
	isValid(*state) bool
	apply(s *state, at uint64)
}

// withBase calls f with the committed table.
func (o *overlay[K, V]) withBase(f func(*table[K, V])) {
	o.tx.read(func(s *state) { f(o.tableOf(s)) })
}

func (o *overlay[K, V]) get(k K) (v V, ok bool) {
	if w, mine := o.writes[k]; mine {
		if w == nil {
			return v, false
		}
		return o.copy(*w), true
	}
	var r row[V]
	o.withBase(func(t *table[K, V]) { r, ok = t.rows[k] })
	if ok {
		v = o.copy(r.value)
	}
	return v, ok
}

// lock is get, and also makes the commit fail if the row changes before the commit.
func (o *overlay[K, V]) lock(k K) (v V, ok bool, err error) {
	if o.tx.readOnly {
		return v, false, errReadOnly
	}
	o.withBase(func(t *table[K, V]) { o.noteTouch(k, t.touchedAt(k)) })
	// The row is read after the lock was recorded. If a commit comes in between, this transaction runs again.
	v, ok = o.get(k)
	return v, ok, nil
}

// find is get by the i-th unique key.
func (o *overlay[K, V]) find(i int, u string) (v V, ok bool) {
	for _, w := range o.writes {
		if w != nil && o.unique[i](*w) == u {
			return o.copy(*w), true
		}
	}
	var k K
	o.withBase(func(t *table[K, V]) { k, ok = t.unique[i][u] })
	if _, mine := o.writes[k]; !ok || mine {
		return v, false
	}
	v, ok = o.get(k)
	return v, ok && o.unique[i](v) == u
}

// list returns copies of the rows that match, by key. match must not keep or change its argument.
func (o *overlay[K, V]) list(match func(V) bool) []V {
	return o.collectRows(match, func(K, uint64) {})
}

func (o *overlay[K, V]) collectRows(match func(V) bool, each func(k K, at uint64)) []V {
	var found []V
	o.withBase(func(t *table[K, V]) {
		for k, r := range t.rows {
			if _, mine := o.writes[k]; !mine && match(r.value) {
				each(k, r.at)
				found = append(found, r.value)
			}
		}
	})
	for _, w := range o.writes {
		if w != nil && match(*w) {
			found = append(found, *w)
		}
	}
	// The rows are sorted as in an index, so that two reads of the same rows return the same order.
	slices.SortFunc(found, func(a, b V) int { return compareKeys(o.key(a), o.key(b)) })
	for i, v := range found {
		found[i] = o.copy(v)
	}
	return found
}

// lockList is list, and locks the rows that it returns.
func (o *overlay[K, V]) lockList(match func(V) bool) ([]V, error) {
	if o.tx.readOnly {
		return nil, errReadOnly
	}
	return o.collectRows(match, o.noteTouch), nil
}

// noteTouch records the commit of a key at its first touch.
func (o *overlay[K, V]) noteTouch(k K, at uint64) {
	if _, done := o.locked[k]; done {
		return
	}
	if o.locked == nil {
		o.locked = map[K]uint64{}
	}
	o.locked[k] = at
}

func (o *overlay[K, V]) insert(v V) error {
	k := o.key(v)
	_, exists, err := o.lock(k)
	if err != nil {
		return err
	}
	if exists {
		return fmt.Errorf("store: insert %s %v: %w", o.name, k, model.ErrExists)
	}
	return o.put(v)
}

func (o *overlay[K, V]) put(v V) error {
	k := o.key(v)
	if _, _, err := o.lock(k); err != nil {
		return err
	}
	if o.isTaken(k, v) {
		return fmt.Errorf("store: put %s %v: its name: %w", o.name, k, model.ErrExists)
	}
	v = o.copy(v)
	o.write(k, &v)
	return nil
}

func (o *overlay[K, V]) isTaken(k K, v V) bool {
	for i, f := range o.unique {
		u := f(v)
		if u == "" {
			continue
		}
		if other, ok := o.find(i, u); ok && o.key(other) != k {
			return true
		}
	}
	return false
}

func (o *overlay[K, V]) delete(k K) error {
	_, ok, err := o.lock(k)
	if err != nil || !ok {
		return err
	}
	o.write(k, nil)
	return nil
}

func (o *overlay[K, V]) write(k K, v *V) {
	if o.writes == nil {
		o.writes = map[K]*V{}
	}
	o.writes[k] = v
}

func (o *overlay[K, V]) isDirty() bool { return len(o.writes) > 0 }

func (o *overlay[K, V]) isValid(s *state) bool {
	if len(o.locked) == 0 {
		return true
	}
	t := o.tableOf(s)
	for k, at := range o.locked {
		if t.touchedAt(k) != at {
			return false
		}
	}
	for k, w := range o.writes {
		if w == nil {
			continue
		}
		for i, f := range t.schema.unique {
			other, ok := t.unique[i][f(*w)]
			if _, mine := o.writes[other]; ok && other != k && !mine {
				return false
			}
		}
	}
	return true
}

func (o *overlay[K, V]) apply(s *state, at uint64) {
	if len(o.locked) == 0 {
		return
	}
	t := o.thawTable(s)
	// Deletes come first, because another row may take a name of a deleted row.
	for k, w := range o.writes {
		if w == nil {
			t.set(k, nil, at)
		}
	}
	for k, w := range o.writes {
		if w != nil {
			t.set(k, w, at)
		}
	}
	// A lock alone counts as a touch. Otherwise, a transaction that read the row before this lock could decide
	// without this transaction's writes.
	for k := range o.locked {
		if r, ok := t.rows[k]; ok && r.at != at {
			r.at = at
			t.rows[k] = r
		}
	}
}

var errReadOnly = errors.New("store: the transaction is read-only")

// compareKeys orders two keys of any key type.
func compareKeys[K comparable](a, b K) int {
	switch a := any(a).(type) {
	case string:
		b, _ := any(b).(string)
		return cmp.Compare(a, b)
	case pair:
		b, _ := any(b).(pair)
		return byPlace(a, b)
	case versionKey:
		b, _ := any(b).(versionKey)
		return cmp.Or(byPlace(a.name, b.name), cmp.Compare(a.version, b.version))
	}
	panic(fmt.Sprintf("store: keys of type %T have no order", a))
}
