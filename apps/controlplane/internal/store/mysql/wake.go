package mysql

import (
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

// putWakes assigns due last, because sent_at depends on the old value of due. An earlier due also replaces
// sent_at.
var putWakes = bulk{
	head: "-- name: PutWakes :exec\nINSERT INTO app_wake (app_id, due, sent_at) VALUES ",
	row: "(?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + ?, " +
		"IF(? <= 0, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + ?, 0))",
	tail: " ON DUPLICATE KEY UPDATE sent_at = IF(VALUES(due) < due, VALUES(sent_at), sent_at), due = LEAST(due, VALUES(due))",
}

func (t *tx) Wake(appIDs []string, due, now int64) error {
	each := make(map[string]int64, len(appIDs))
	for _, id := range appIDs {
		each[id] = due
	}
	return t.WakeAt(each, now)
}

// WakeAt locks the existing rows before it writes, to know which of them become earlier. If two transactions
// find no row, both report the app as woken. If a step is sent twice, the second step does nothing.
func (t *tx) WakeAt(due map[string]int64, now int64) error {
	ids := slices.Sorted(maps.Keys(due))
	if len(ids) == 0 {
		return nil
	}
	if err := t.requireUpdate("wake app", ids[0]); err != nil {
		return err
	}
	if c := t.shared; c != nil && !c.writing {
		for _, id := range ids {
			keepRows(c, &c.late.wakes, nil, wake{id, due[id] - now})
		}
		return nil
	}
	known := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := t.unset[id]; return ok })
	rows, err := inChunks(known, func(ids []string) ([]gen.LockWakesRow, error) { return t.q.LockWakes(t.ctx, ids) })
	if err != nil {
		return t.queryError(err, "wake app", ids[0])
	}
	dueIn := make(map[string]int64, len(rows))
	for _, r := range rows {
		dueIn[r.AppID] = r.DueIn
	}
	turned := ids[:0:0]
	for _, id := range ids {
		delete(t.unset, id)
		if old, ok := dueIn[id]; !ok || due[id]-now < old {
			turned = append(turned, id)
		}
	}
	if err := runBulk(t, t.db, putWakes, turned, func(args []any, id string) []any {
		in := due[id] - now
		return append(args, id, in, in, in)
	}); err != nil {
		return t.queryError(err, "wake app", ids[0])
	}
	for _, id := range turned {
		if in := time.Duration(due[id]-now) * time.Millisecond; in <= store.WakeWindow {
			t.woken[id] = max(in, 0)
		}
	}
	return nil
}

// writeWakes is WakeAt for deferred wake-ups.
func (t *tx) writeWakes(wakes []wake) error {
	due := make(map[string]int64, len(wakes))
	for _, w := range wakes {
		if earlier, ok := due[w.appID]; !ok || w.in < earlier {
			due[w.appID] = w.in
		}
	}
	return t.WakeAt(due, 0)
}

// ClearWakes locks only rows that exist. A transaction that woke one of the apps meanwhile inserted a
// new row.
func (t *tx) ClearWakes(appIDs []string) error {
	ids := sortDistinct(appIDs)
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		delete(t.woken, id)
	}
	n, err := t.q.ClearWakes(t.ctx, ids)
	if err == nil && int(n) == len(ids) {
		for _, id := range ids {
			t.unset[id] = struct{}{}
		}
	}
	return t.queryError(err, "clear wakes, such as of app", ids[0])
}

func (t *tx) DueWakes(lostAfter, againAfter int64, n int) ([]model.Wake, error) {
	return list(t, "list due wakes", "", func(r gen.AppWake) (model.Wake, error) {
		return model.Wake{AppID: r.AppID, Due: r.Due, SentAt: r.SentAt}, nil
	})(t.primary.DueWakes(t.ctx, gen.DueWakesParams{LostAfter: lostAfter, AgainAfter: againAfter, Limit: limitOrAll(n)}))
}

func (t *tx) MarkWakesSent(appIDs []string, dueBy int64) error {
	if len(appIDs) == 0 {
		return nil
	}
	return t.queryError(t.q.MarkWakesSent(t.ctx, gen.MarkWakesSentParams{AppIds: sortDistinct(appIDs), DueBy: dueBy}), "mark wake as sent", appIDs[0])
}

func (t *tx) UnsendWakes() (int64, error) {
	n, err := t.q.UnsendWakes(t.ctx)
	return n, t.queryError(err, "mark wakes as not sent", "")
}
