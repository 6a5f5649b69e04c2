-- +goose NO TRANSACTION
-- +goose Up
-- The spec hash by which the version's instances are made: that of the version before it, where
-- the two differ only in what no instance sees. Empty, as in every row of before: its own.
ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS made_as VARBINARY(64) NOT NULL DEFAULT '';
