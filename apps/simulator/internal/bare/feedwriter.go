package bare

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/windlass-run/windlass/pkg/ident"
)

// FeedWriter commits topology changes to the feed with SQL alone. Like every writer of the feed, it writes
// the rows first, then locks the heads, and holds these locks until the commit. A control plane cannot
// distinguish it from another control plane process.
type FeedWriter struct{ db *DB }

// NewFeedWriter returns a writer to a migrated database.
func NewFeedWriter(db *DB) *FeedWriter { return &FeedWriter{db} }

// maxTries bounds the tries of a transaction that the database rolls back in favour of another.
const maxTries = 100

// Commit sets the replicas of a deployment in some regions, whose ids are sorted.
func (w *FeedWriter) Commit(ctx context.Context, deploymentID string, regions []string, replicas int) error {
	var err error
	for range maxTries {
		if err = w.commit(ctx, deploymentID, regions, replicas); err == nil || !mustRetry(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("commit a change of %s: %w", deploymentID, err)
	}
	return nil
}

// mustRetry reports whether the transaction must be tried again: after a lock wait timeout, after a deadlock, or
// because a record changed since it was read.
func mustRetry(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && (refused.Number == 1205 || refused.Number == 1213 || refused.Number == 1020)
}

func (w *FeedWriter) commit(ctx context.Context, deploymentID string, regions []string, replicas int) error {
	now := time.Now().UnixMilli()
	in, ids := placeholders(1, len(regions)), anyOf(regions)
	return w.db.inTx(ctx, func(tx *sql.Tx) error {
		update := "UPDATE deployment_topology SET replicas = ?, generation = generation + 1, updated_at = ? WHERE deployment_id = ? AND region IN " + in
		if _, err := tx.ExecContext(ctx, update, append([]any{replicas, now, deploymentID}, ids...)...); err != nil {
			return err
		}
		generations := map[string]int64{}
		if err := each(ctx, tx, "SELECT region, generation FROM deployment_topology WHERE deployment_id = ? AND region IN "+in,
			append([]any{deploymentID}, ids...), func(rows *sql.Rows) error {
				var region string
				var generation int64
				err := rows.Scan(&region, &generation)
				generations[region] = generation
				return err
			}); err != nil {
			return err
		}
		return appendChanges(ctx, tx, regions, []string{deploymentID}, func(_, region string) int64 { return generations[region] })
	})
}

// appendChanges appends the deployments' changes to the regions' feeds. It locks the feeds' heads.
func appendChanges(ctx context.Context, tx *sql.Tx, regions, deploymentIDs []string, generation func(deployment, region string) int64) error {
	var heads, changes []any
	if err := each(ctx, tx, "SELECT region, epoch, revision, chain, base_revision, base_chain FROM region_heads WHERE region IN "+placeholders(1, len(regions))+
		" ORDER BY region FOR UPDATE", anyOf(regions),
		func(rows *sql.Rows) error {
			var region string
			var epoch, revision, baseRevision int64
			var chain, baseChain []byte
			if err := rows.Scan(&region, &epoch, &revision, &chain, &baseRevision, &baseChain); err != nil {
				return err
			}
			for _, deployment := range deploymentIDs {
				id := ident.New("chg")
				// The link is part of the protocol: SHA-256(previous chain || change id).
				link := sha256.Sum256(append(chain, id...))
				revision++
				chain = link[:]
				changes = append(changes, region, revision, KindDeployment, deployment, generation(deployment, region), id, chain)
			}
			heads = append(heads, region, epoch, revision, chain, baseRevision, baseChain)
			return nil
		}); err != nil {
		return err
	}
	if len(heads) != 6*len(regions) {
		return fmt.Errorf("%d of %d regions have a feed", len(heads)/6, len(regions))
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO region_heads (region, epoch, revision, chain, base_revision, base_chain) VALUES "+
		placeholders(len(regions), 6)+" ON DUPLICATE KEY UPDATE revision = VALUES(revision), chain = VALUES(chain)", heads...)
	if err != nil {
		return err
	}
	return insert(ctx, tx, "region_changes (region, revision, kind, change_key, generation, id, chain)", 7, changes)
}

// insert inserts rows into a table. table contains the names of the columns, and columns is their number.
func insert(ctx context.Context, tx execer, table string, columns int, rows []any) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES "+placeholders(len(rows)/columns, columns), rows...); err != nil {
		return fmt.Errorf("insert into %s: %w", table, err)
	}
	return nil
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// placeholders returns placeholders for rows.
func placeholders(rows, columns int) string {
	row := "(?" + strings.Repeat(", ?", columns-1) + ")"
	return row + strings.Repeat(", "+row, rows-1)
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// each calls fn for every row.
func each(ctx context.Context, q querier, query string, args []any, fn func(*sql.Rows) error) (err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return fmt.Errorf("query: %w", err)
		}
	}
	return rows.Err()
}

// SeedTopology gives a deployment that belongs to no app a row in each of the regions.
func (w *FeedWriter) SeedTopology(ctx context.Context, deploymentID string, regions []string) error {
	return seedRows(ctx, w.db, []string{deploymentID}, regions)
}

func seedRows(ctx context.Context, to execer, deploymentIDs, regions []string) error {
	var rows []any
	for _, id := range deploymentIDs {
		for _, r := range regions {
			rows = append(rows, "ws_bare", id, r, 1, 2, 0, 0, "app_bare", 1, 0, "", "")
		}
	}
	return insert(ctx, to, "deployment_topology (workspace_id, deployment_id, region, replicas, status, created_at, updated_at, "+
		"app_id, generation, weight, reason, traceparent)", 12, rows)
}

// newNonce returns a text that distinguishes the rows of one run from the rows of other runs.
func newNonce() string { return rand.Text()[:8] }
