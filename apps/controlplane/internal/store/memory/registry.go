package memory

import "slices"

// registry holds every declared table.
var registry []registered

// registered is a declared table of any type.
type registered interface {
	emptyTable() whole
}

// whole is a table of any type.
type whole interface {
	freezeTable()
	count() (name string, rows int)
}

// declared is a table's schema, with its place in every state and transaction.
type declared[K comparable, V any] struct {
	schema[K, V]
	at int
}

// declareTable registers a table. Only initializers of package variables may call it.
func declareTable[K comparable, V any](s schema[K, V]) *declared[K, V] {
	d := &declared[K, V]{schema: s, at: len(registry)}
	registry = append(registry, d)
	return d
}

func (d *declared[K, V]) emptyTable() whole { return newTable(&d.schema) }

// tableOf returns the committed table.
func (d *declared[K, V]) tableOf(s *state) *table[K, V] {
	return s.tables[d.at].(*table[K, V]) // empty made it
}

// thawTable returns the committed table for writes. It copies the table first if a snapshot holds it.
func (d *declared[K, V]) thawTable(s *state) *table[K, V] {
	t := d.tableOf(s).thawedTable()
	s.tables[d.at] = t
	return t
}

// overlayIn returns the table as the transaction sees it.
func (d *declared[K, V]) overlayIn(t *tx) *overlay[K, V] {
	if t.overlays[d.at] == nil {
		t.overlays[d.at] = &overlay[K, V]{declared: d, tx: t}
	}
	return t.overlays[d.at].(*overlay[K, V]) // made above
}

// state is all committed rows: the tables in the order of registry.
type state struct{ tables []whole }

func newState() *state {
	s := &state{}
	for _, d := range registry {
		s.tables = append(s.tables, d.emptyTable())
	}
	return s
}

// snapshotState returns the current tables, which are copied before the next write to them.
func (s *state) snapshotState() *state {
	for _, t := range s.tables {
		t.freezeTable()
	}
	return &state{tables: slices.Clone(s.tables)}
}
