package bare

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/ident"
)

// Deployments returns how many deployments per second to one region the database and Restate alone can make,
// with underWay of them in progress at a time. It commits the rows that must survive a crash, and Restate
// invokes the two steps. It answers no calls, and it reads, plans, streams, checks and runs nothing.
//
//	call      commit the row               send step 1
//	step 1    commit the change (feed)
//	agent     commit the instance          send step 2
//	step 2    commit that it is ready
//
// If least is true, only the first row is committed. A durable deployment needs this commit, even in a system
// that shares all other work.
func (db *DB) Deployments(ctx context.Context, ingress, admin string, window time.Duration, underWay int, least bool) (perSecond float64, err error) {
	feed, region := NewFeedWriter(db), "reg_bare_"+newNonce()
	// The region has no agent, so that nothing is sent.
	origin := make([]byte, sha256.Size)
	if _, err := db.ExecContext(ctx, "INSERT INTO region_heads (region, epoch, revision, chain, base_revision, base_chain) VALUES "+placeholders(1, 6),
		region, 1, 0, origin, 0, origin); err != nil {
		return 0, fmt.Errorf("add a region: %w", err)
	}
	defer func() { err = errors.Join(err, db.clearRegion(ctx, region)) }()
	var waiting sync.Map // channels of deployments under way, by id
	var first sync.Map   // deployments whose first step was made
	steps, err := serve(ctx, ingress, admin, underWay, func(ctx context.Context, id string) error {
		done, ok := waiting.Load(id)
		if !ok {
			return nil // a repeated invocation, which is done already
		}
		_, again := first.LoadOrStore(id, true)
		var err error
		switch {
		case least:
		case again:
			_, err = db.ExecContext(ctx, "UPDATE deployment_topology SET status = 3, updated_at = ? WHERE deployment_id = ?", time.Now().UnixMilli(), id)
		default:
			err = feed.Commit(ctx, id, []string{region}, 1)
		}
		done.(chan error) <- err
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, steps.close()) }()
	step := func(ctx context.Context, id string, done chan error) error {
		if err := steps.send(ctx, id); err != nil {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	perSecond, err = callRate(ctx, window, underWay, func(ctx context.Context, _ int64) error {
		id, done := ident.New("dep"), make(chan error, 2)
		waiting.Store(id, done)
		defer waiting.Delete(id)
		defer first.Delete(id)
		if err := feed.SeedTopology(ctx, id, []string{region}); err != nil {
			return err
		}
		if err := step(ctx, id, done); err != nil {
			return fmt.Errorf("the first step of %s: %w", id, err)
		}
		if !least {
			if err := db.putInstances(ctx, []string{id}, region); err != nil {
				return err
			}
		}
		if err := step(ctx, id, done); err != nil {
			return fmt.Errorf("the second step of %s: %w", id, err)
		}
		return nil
	})
	return perSecond, err
}

// putInstances inserts one instance of each deployment.
func (db *DB) putInstances(ctx context.Context, deploymentIDs []string, region string) error {
	at := time.Now().UnixMilli()
	var rows []any
	for _, id := range deploymentIDs {
		rows = append(rows, ident.New("ins"), region, at, "ws_bare", "app_bare", id, "main", 0, 0, 4, "", "", "10.0.0.1:8000", "pod-1", 0, "[]", at, at, at, 0)
	}
	return insert(ctx, db, "instances (id, region, guard_no, workspace_id, app_id, deployment_id, role, group_no, slot_no, status, "+
		"reason, message, address, runtime_name, restarts, gpus, started_at, ready_at, updated_at, terminated_at)", 20, rows)
}

// clearRegion removes all rows of a region.
func (db *DB) clearRegion(ctx context.Context, region string) error {
	return db.remove(ctx, "region", region, "instances", "deployment_topology", "region_changes", "region_heads")
}

// remove deletes the rows of tables that have the value in a column.
func (db *DB) remove(ctx context.Context, column, value string, tables ...string) error {
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, "DELETE FROM "+table+" WHERE "+column+" = ?", value); err != nil {
			return fmt.Errorf("clear %s: %w", table, err)
		}
	}
	return nil
}
