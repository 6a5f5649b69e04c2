-- +goose NO TRANSACTION
-- +goose Up
-- The spec hash that the version's instances are created with. If the version differs from the one
-- before only in what no instance sees, it is the hash of that one. Empty, as in older rows: the
-- version's own hash.
ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS made_as VARBINARY(64) NOT NULL DEFAULT '';
