package bare

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"
)

// desiredRows selects what agents receive about deployments, by the same joins as the control plane.
const desiredRows = `SELECT t.workspace_id, t.deployment_id, t.region, t.replicas, t.status, t.app_id, t.generation, t.weight,
    t.traceparent, t.workload, t.workload_version, t.handed_over, t.max_unavailable,
    d.version, d.spec, d.spec_hash, d.made_as, d.resolved_image, a.name, a.project_id, a.environment_id, e.name, p.name
FROM deployment_topology t
LEFT JOIN deployments d ON d.id = t.deployment_id
LEFT JOIN apps a ON a.id = t.app_id
LEFT JOIN (environments e JOIN projects p ON p.id = e.project_id) ON e.id = a.environment_id `

// snapshotQueries read the rows of a region's snapshot, by the region's id.
var snapshotQueries = []string{
	desiredRows + "WHERE t.region = ? ORDER BY t.deployment_id",
	"SELECT * FROM app_routes WHERE region = ? ORDER BY app_id",
}

// SnapshotRead reads every row of the snapshot of a region (its id), ignores the rows, and returns how long
// that took.
func (db *DB) SnapshotRead(ctx context.Context, region string) (time.Duration, error) {
	begin := time.Now()
	for _, query := range snapshotQueries {
		var row []any
		err := each(ctx, db, query, []any{region}, func(rows *sql.Rows) error {
			if row == nil {
				columns, err := rows.Columns()
				if err != nil {
					return err
				}
				for range columns {
					row = append(row, new(sql.RawBytes))
				}
			}
			return rows.Scan(row...)
		})
		if err != nil {
			return 0, fmt.Errorf("read a snapshot's rows: %w", err)
		}
	}
	return time.Since(begin), nil
}

// InboxWrite copies an agent's inbox file into a new file, in one transaction and in the order of the keys.
// No agent may have the file open. If sync is true, the transaction is flushed to the disk. It returns how
// long the transaction took.
func InboxWrite(path string, sync bool) (took time.Duration, err error) {
	from, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, fmt.Errorf("open the inbox to copy: %w", err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	copied := path + ".copy"
	to, err := bbolt.Open(copied, 0o600, &bbolt.Options{NoSync: !sync, NoFreelistSync: true, InitialMmapSize: 64 << 20})
	if err != nil {
		return 0, fmt.Errorf("make a copy of the inbox: %w", err)
	}
	defer func() { err = errors.Join(err, to.Close(), os.Remove(copied)) }()
	err = from.View(func(read *bbolt.Tx) error {
		begin := time.Now()
		defer func() { took = time.Since(begin) }()
		return to.Update(func(write *bbolt.Tx) error {
			return read.ForEach(func(name []byte, rows *bbolt.Bucket) error {
				bucket, err := write.CreateBucket(name)
				if err != nil {
					return err
				}
				return rows.ForEach(bucket.Put)
			})
		})
	})
	if err != nil {
		return 0, fmt.Errorf("copy the inbox: %w", err)
	}
	return took, nil
}
