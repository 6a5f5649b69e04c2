package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

// tx implements store.Tx for one transaction, or for one View.
type tx struct {
	ctx      context.Context
	metrics  *metrics
	readOnly bool
	// db and q may read a replica in a View, but primary never does. In a transaction, all use the same connection.
	db      gen.DBTX
	q       *gen.Queries
	feed    gen.DBTX
	primary *gen.Queries
	// reopen begins the view of a Snapshot again. It is nil elsewhere.
	reopen     func() error
	statements int
	// broken is the error after which the server has no transaction any more.
	broken error

	changes changes
	woken   map[string]time.Duration
	// unset are apps without a wake-up row. Until this transaction ends, other transactions cannot insert one, because
	// this transaction inserted the app, or holds the lock of the row that it deleted.
	unset map[string]struct{}
	// locked has the topology of apps if this transaction has locked all of their rows, with its own changes.
	locked map[string]map[place]model.Topology
	apps   map[string]struct{}
	bumped map[string]int64 // regions whose epoch was bumped, and their revision

	shared *shared
}

var _ store.Tx = (*tx)(nil)

func (s *Store) newTx(ctx context.Context, primary, reads gen.DBTX, readOnly bool) *tx {
	t := &tx{
		ctx: ctx, metrics: s.metrics, readOnly: readOnly,
		woken: map[string]time.Duration{}, unset: map[string]struct{}{}, apps: map[string]struct{}{}, bumped: map[string]int64{},
		locked: map[string]map[place]model.Topology{},
	}
	p, r := conn{db: primary, tx: t}, conn{db: reads, tx: t}
	t.feed, t.primary = p, gen.New(p)
	t.db, t.q = r, gen.New(r)
	return t
}

// commitOf returns what the transaction changed, in a stable order.
func (t *tx) commitOf(revisions map[string]int64) store.Commit {
	for region, rev := range t.bumped {
		if _, ok := revisions[region]; !ok {
			revisions[region] = rev
		}
	}
	return store.Commit{
		Revisions: revisions,
		Woken:     t.woken,
		Apps:      slices.Sorted(maps.Keys(t.apps)),
	}
}

// Batched implements store.Tx.
func (t *tx) Batched() bool { return t.shared != nil }

func (t *tx) touchApp(appID string) {
	t.apps[appID] = struct{}{}
	if t.shared != nil {
		t.shared.prefetched.forgetApp(appID)
	}
}

// errDuplicate means that a unique key already has that value.
const errDuplicate = 1062

func isDuplicate(err error) bool {
	var my *mysql.MySQLError
	return errors.As(err, &my) && my.Number == errDuplicate
}

// queryError wraps a statement's error with the operation and the id, maps it to the contract's errors, and
// remembers an error that ended the transaction.
func (t *tx) queryError(err error, op, id string) error {
	if err == nil {
		return nil
	}
	if t.broken != nil {
		return t.broken
	}
	switch {
	case errors.Is(err, sql.ErrNoRows), isUnspeakable(err):
		return wrapError(model.ErrNotFound, op, id)
	case isDuplicate(err):
		return wrapError(model.ErrExists, op, id)
	}
	err = wrapError(err, op, id)
	if !t.readOnly && retryReason(err) != "" {
		t.broken = err
	}
	return err
}

// Errors of a comparison with a text outside the column's character set. MariaDB refuses the comparison, but
// MySQL returns no rows.
const (
	errCollations = 1267
	errNotUTF8    = 1300
)

// isUnspeakable reports whether a query failed because the requested id or name is not ASCII. All stored ids and names
// are ASCII.
func isUnspeakable(err error) bool {
	var my *mysql.MySQLError
	return errors.As(err, &my) && (my.Number == errCollations || my.Number == errNotUTF8)
}

func wrapError(err error, op, id string) error {
	if id == "" {
		return fmt.Errorf("store: %s: %w", op, err)
	}
	return fmt.Errorf("store: %s %q: %w", op, id, err)
}

// requireFound is err for a statement that must match one row.
func (t *tx) requireFound(n int64, err error, op, id string) error {
	if err == nil && n == 0 {
		err = sql.ErrNoRows
	}
	return t.queryError(err, op, id)
}

// allFound is found for a statement that must match want rows.
func (t *tx) allFound(n, want int, err error, op string) error {
	if err == nil && n < want {
		err = sql.ErrNoRows
	}
	return t.queryError(err, op, "")
}

// requireSwapped is err for a compare-and-set. If it matched no row, exists decides between a changed row and a
// missing row.
func (t *tx) requireSwapped(n int64, err error, exists func() error, op, id string) error {
	if err != nil || n > 0 {
		return t.queryError(err, op, id)
	}
	if err := exists(); err != nil {
		return err
	}
	return wrapError(model.ErrConflict, op, id)
}

// requireUpdate refuses row locks outside of Update.
func (t *tx) requireUpdate(op, id string) error {
	if t.readOnly {
		return wrapError(errReadOnly, op, id)
	}
	return nil
}

// requireUnchanged fails if a read-only transaction called Change.
func (t *tx) requireUnchanged() error {
	if len(t.changes.byRegion) > 0 {
		return wrapError(errReadOnly, "change", "")
	}
	return nil
}

// get converts the row of a query to a model.
func get[R, M any](t *tx, op, id string, conv func(R) (M, error)) func(R, error) (M, error) {
	return func(r R, err error) (M, error) {
		var zero M
		if err != nil {
			return zero, t.queryError(err, op, id)
		}
		m, err := conv(r)
		if err != nil {
			return zero, wrapError(err, op, id)
		}
		return m, nil
	}
}

// list converts the rows of a query to models. A query for ids that cannot exist has no rows.
func list[R, M any](t *tx, op, id string, conv func(R) (M, error)) func([]R, error) ([]M, error) {
	return func(rows []R, err error) ([]M, error) {
		if err != nil && !isUnspeakable(err) {
			return nil, t.queryError(err, op, id)
		}
		ms := make([]M, 0, len(rows))
		for _, r := range rows {
			m, err := conv(r)
			if err != nil {
				return nil, wrapError(err, op, id)
			}
			ms = append(ms, m)
		}
		return ms, nil
	}
}

// maxID sorts after every id. Pages in descending order begin at maxID.
const maxID = "\x7f"

// beforeCursor returns the cursor of a page in descending order.
func beforeCursor(p store.Page) string {
	if p.After == "" {
		return maxID
	}
	return p.After
}

// limitOrAll returns n as a LIMIT, which has no effect if n is not positive.
func limitOrAll(n int) int32 {
	if n <= 0 || n > math.MaxInt32 {
		return math.MaxInt32
	}
	return int32(n)
}

// inChunk is the maximum length of an IN list. If the list is so long that the description of its ranges exceeds
// the optimizer's memory limit of 8 MiB, the optimizer scans the whole table.
const inChunk = 10_000

// inChunks runs a query once for each chunk of its IN list.
func inChunks[R any](ids []string, query func([]string) ([]R, error)) ([]R, error) {
	var all []R
	for part := range slices.Chunk(ids, inChunk) {
		rows, err := query(part)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

// sortDistinct returns the ids sorted, without duplicates. Row locks are taken in this order.
func sortDistinct(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Widths of text columns for texts of agents and runtimes. Longer text is cut, because
// only people read it, and one long message must not fail a batch of many reports.
const (
	maxReason  = 128
	maxName    = 255
	maxWhy     = 1 << 10
	maxMessage = 8 << 10
)

// clipText cuts s to at most n bytes at the edge of a rune, and replaces bytes that are not UTF-8.
func clipText(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// blobOrNil reverses notNull: it returns nil for an empty column.
func blobOrNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// notNull returns an empty blob for nil, because no column allows NULL.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
