package bare

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Upserts returns how many instance rows per second the database alone stores. It uses the statement that
// stores reports: an upsert of batch rows, each guarded by guard_no. The rows exist already, and each upsert
// has a higher guard than the one before.
func (db *DB) Upserts(ctx context.Context, window time.Duration, writers, batch int) (float64, error) {
	columns := []string{
		"id", "region", "guard_no", "workspace_id", "app_id", "deployment_id", "role", "group_no", "slot_no", "status", "reason", "message",
		"address", "runtime_name", "restarts", "gpus", "started_at", "ready_at", "updated_at", "terminated_at",
	}
	var tail strings.Builder
	for _, c := range columns[3:] {
		tail.WriteString(c + " = IF(region = VALUES(region) AND VALUES(guard_no) > guard_no, VALUES(" + c + "), " + c + "), ")
	}
	// The guard is last, because an assignment sees the values of the assignments before it.
	query := "INSERT INTO instances (" + strings.Join(columns, ", ") + ") VALUES " + placeholders(batch, len(columns)) +
		" ON DUPLICATE KEY UPDATE " + tail.String() + "guard_no = IF(VALUES(guard_no) > guard_no, VALUES(guard_no), guard_no)"

	ids := make([][]string, writers)
	for w := range ids {
		for range batch {
			ids[w] = append(ids[w], ident.New("ins"))
		}
	}
	var guard atomic.Int64
	put := func(ctx context.Context, w int) error {
		g := guard.Add(1)
		args := make([]any, 0, batch*len(columns))
		for i, id := range ids[w] {
			args = append(args, id, fmt.Sprintf("reg_%d", w), g, "ws_bare", "app_bare", "dep_bare", "main", i, 0, 4, "", "",
				"10.0.0.1:8000", "pod-1", g, "[]", g, g, g, 0)
		}
		if _, err := db.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("upsert %d instances: %w", batch, err)
		}
		return nil
	}
	for w := range writers {
		if err := put(ctx, w); err != nil {
			return 0, err
		}
	}
	free := make(chan int, writers)
	for w := range writers {
		free <- w
	}
	perSecond, err := callRate(ctx, window, writers, func(ctx context.Context, _ int64) error {
		w := <-free
		defer func() { free <- w }()
		return put(ctx, w)
	})
	if err == nil {
		err = db.requireUpserted(ctx, writers*batch, guard.Load())
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "DELETE FROM instances WHERE workspace_id = 'ws_bare'")
	}
	return perSecond * float64(batch), err
}

// requireUpserted returns an error unless the database has this number of instances of Upserts, and the last
// upsert changed its rows.
func (db *DB) requireUpserted(ctx context.Context, instances int, guard int64) error {
	var stored int
	var last int64
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*), MAX(guard_no) FROM instances WHERE workspace_id = 'ws_bare'").Scan(&stored, &last); err != nil {
		return fmt.Errorf("read the instances: %w", err)
	}
	if stored != instances || last != guard {
		return fmt.Errorf("upserts stored %d of %d instances, and %d of %d upserts", stored, instances, last, guard)
	}
	return nil
}

// Trips commits n changes of one region to the feed, and waits for the duration every after each. It reads
// each change as a control plane does: the change itself, and then the rows that are sent for it. It returns,
// for each change, the time from when it got its revision until the last row was read. A change cannot reach
// an agent in less time.
func (db *DB) Trips(ctx context.Context, n int, every time.Duration, region string) (*measure.Durations, error) {
	var sent string // an existing deployment to read, because the writer's own deployment has no spec
	if err := db.QueryRowContext(ctx, "SELECT id FROM deployments LIMIT 1").Scan(&sent); err != nil {
		return nil, fmt.Errorf("find a deployment: %w", err)
	}
	w, id := NewFeedWriter(db), "dep_bare_"+newNonce()
	if err := w.SeedTopology(ctx, id, []string{region}); err != nil {
		return nil, err
	}
	reads := []struct {
		query string
		key   string
	}{
		{"SELECT * FROM region_changes WHERE region = ? ORDER BY revision DESC LIMIT 1", region},
		{desiredRows + "WHERE t.deployment_id = ?", sent},
	}
	var trips measure.Durations
	for i := range n {
		if err := w.Commit(ctx, id, []string{region}, i%10); err != nil {
			return nil, err
		}
		for _, r := range reads {
			if err := each(ctx, db, r.query, []any{r.key}, func(*sql.Rows) error { return nil }); err != nil {
				return nil, err
			}
		}
		end := time.Now()
		var change string
		if err := db.QueryRowContext(ctx, "SELECT id FROM region_changes WHERE region = ? ORDER BY revision DESC LIMIT 1", region).Scan(&change); err != nil {
			return nil, fmt.Errorf("read the change: %w", err)
		}
		at, err := IDTime(change)
		if err != nil {
			return nil, err
		}
		trips.Add(end.Sub(at))
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(every):
		}
	}
	_, err := db.ExecContext(ctx, "DELETE FROM deployment_topology WHERE workspace_id = 'ws_bare'")
	return &trips, err
}

// FeedTransactions returns how many feed transactions per second the database alone commits. Each transaction
// appends one change to the feed of each region (by id).
func (db *DB) FeedTransactions(ctx context.Context, window time.Duration, writers int, regions []string) (float64, error) {
	const deployments = 64
	regions = slices.Sorted(slices.Values(regions))
	w, run := NewFeedWriter(db), newNonce()
	id := func(i int64) string { return fmt.Sprintf("dep_bare_%s_%02d", run, i%deployments) }
	for i := range int64(deployments) {
		if err := w.SeedTopology(ctx, id(i), regions); err != nil {
			return 0, err
		}
	}
	before, err := db.Heads(ctx)
	if err != nil {
		return 0, err
	}
	var committed atomic.Int64
	perSecond, err := callRate(ctx, window, writers, func(ctx context.Context, i int64) error {
		err := w.Commit(ctx, id(i), regions, int(i%10))
		if err == nil {
			committed.Add(1)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	after, err := db.Heads(ctx)
	for _, region := range regions {
		if got := after[region] - before[region]; err == nil && got != committed.Load() {
			err = fmt.Errorf("the feed of region %s has %d changes of %d transactions", region, got, committed.Load())
		}
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "DELETE FROM deployment_topology WHERE workspace_id = 'ws_bare'")
	}
	return perSecond, err
}
