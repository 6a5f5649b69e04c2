-- name: InsertHead :exec
INSERT INTO region_heads (region, epoch, revision, chain, base_revision, base_chain)
VALUES (?, ?, ?, ?, ?, ?);

-- name: LockHeads :many
-- These locks are the last in the lock order. They are taken in key order, by primary key.
SELECT * FROM region_heads WHERE region IN (sqlc.slice(regions)) ORDER BY region FOR UPDATE;

-- name: GetHead :one
SELECT * FROM region_heads WHERE region = ?;

-- name: GetHeads :many
SELECT * FROM region_heads WHERE region IN (sqlc.slice(regions)) ORDER BY region;

-- name: SetEpoch :exec
UPDATE region_heads SET epoch = ?, chain = ?, base_revision = revision, base_chain = ?
WHERE region = ?;

-- name: GetChain :one
SELECT chain FROM region_changes WHERE region = ? AND revision = ?;

-- name: CompactChanges :execrows
DELETE FROM region_changes WHERE region = ? AND revision <= ? ORDER BY revision LIMIT ?;

-- name: DeleteHead :exec
DELETE FROM region_heads WHERE region = ?;

-- name: DeleteChangesOfRegion :exec
DELETE FROM region_changes WHERE region = ?;

-- name: SumHeads :one
-- Returns one row for all regions. It only shows whether a region changed, and not which region: a
-- commit increases the sum, and a restored database has other chains.
SELECT COUNT(*) AS regions,
       CAST(COALESCE(SUM(epoch), 0) AS SIGNED) AS epochs,
       CAST(COALESCE(SUM(revision), 0) AS SIGNED) AS revisions,
       CAST(BIT_XOR(CRC32(chain)) AS SIGNED) AS chains
FROM region_heads;

-- name: ListHeads :many
SELECT * FROM region_heads WHERE region > sqlc.arg(after) ORDER BY region LIMIT ?;
