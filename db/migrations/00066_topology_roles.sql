-- +goose NO TRANSACTION
-- +goose Up
-- Number of instances of each role of a region's whole pool: "decode=2,prefill=8". Empty unless the layout is pooled.
ALTER TABLE deployment_topology ADD COLUMN IF NOT EXISTS roles VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';
