-- +goose NO TRANSACTION
-- +goose Up
-- The spec hash with which the version's instances are created. If the version differs from the
-- version before it only in fields that instances do not see, it is the earlier version's hash.
-- Empty, as in older rows: the version's own hash.
ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS made_as VARBINARY(64) NOT NULL DEFAULT '';
