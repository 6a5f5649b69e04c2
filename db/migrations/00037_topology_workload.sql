-- +goose NO TRANSACTION
-- +goose Up
-- The workload that the row's instances belong to, by the id of the deployment that
-- started it, and that deployment's version, which is told even when its row is gone.
-- Empty and zero, as in every row of before: the deployment's own. handed_over: another
-- row of the region has it, and this one, without replicas, may get it back.
-- max_unavailable: replicas that may be out of service at a time while instances are
-- replaced; 0 is 1.
ALTER TABLE deployment_topology
    ADD COLUMN IF NOT EXISTS workload         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS workload_version INT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS handed_over      BOOLEAN NOT NULL DEFAULT FALSE,
    ADD COLUMN IF NOT EXISTS max_unavailable  INT NOT NULL DEFAULT 0;
