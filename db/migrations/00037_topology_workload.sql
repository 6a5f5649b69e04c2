-- +goose NO TRANSACTION
-- +goose Up
-- The workload of the row's instances: id and version of the deployment that started it. The
-- version is needed even after that deployment's row is deleted. Empty and 0, as in older rows: the
-- workload of the deployment itself. handed_over: another row of the region has the workload now,
-- and this row, without replicas, may get it back. max_unavailable: replicas that may be out of
-- service at a time while instances are replaced. 0 means 1.
ALTER TABLE deployment_topology
    ADD COLUMN IF NOT EXISTS workload         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS workload_version INT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS handed_over      BOOLEAN NOT NULL DEFAULT FALSE,
    ADD COLUMN IF NOT EXISTS max_unavailable  INT NOT NULL DEFAULT 0;
