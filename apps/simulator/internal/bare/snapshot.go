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

// snapshotQueries read what a snapshot of a region (its id) is made of: the same rows,
// by the same plans, as the control plane's.
var snapshotQueries = []string{
	"SELECT * FROM deployment_topology WHERE region = ? ORDER BY deployment_id",
	`SELECT deployments.*, apps.name, apps.project_id, apps.environment_id, environments.name, projects.name
FROM deployment_topology
JOIN deployments ON deployments.id = deployment_topology.deployment_id
JOIN apps ON apps.id = deployment_topology.app_id
LEFT JOIN (environments JOIN projects ON projects.id = environments.project_id) ON environments.id = apps.environment_id
WHERE deployment_topology.region = ? AND deployment_topology.status NOT IN (3, 4)`,
	"SELECT * FROM app_routes WHERE region = ? ORDER BY app_id",
	`SELECT t.app_id, t.region, t.deployment_id, t.weight,
    (SELECT COUNT(*) FROM app_pins p WHERE p.app_id = t.app_id AND p.deployment_id = t.deployment_id)
FROM deployment_topology t
WHERE t.region = ? AND t.weight > 0 AND t.status <> 4
ORDER BY t.app_id, t.deployment_id`,
}

// SnapshotRead reads every row that a snapshot of the region (its id) is made of, makes
// nothing of them, and returns how long that took.
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

// InboxWrite writes everything that the agent's file of that path holds, which no agent
// has open, into a new file: in one transaction, in order, and with sync down to the disk.
// It returns how long the transaction took.
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
