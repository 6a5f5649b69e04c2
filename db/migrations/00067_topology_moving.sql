-- +goose NO TRANSACTION
-- +goose Up
-- The roles of a pool whose instances the region has replaced or replaces since the row took the pool over:
-- "decode,prefill". Empty unless the layout is pooled and the row took a pool over.
ALTER TABLE deployment_topology ADD COLUMN IF NOT EXISTS moving VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';
