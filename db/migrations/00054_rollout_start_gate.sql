-- +goose NO TRANSACTION
-- +goose Up
-- The gate before the rollout's start with its approvals, as JSON. NULL, as in older rows, or
-- empty: none.
ALTER TABLE rollouts
    ADD COLUMN IF NOT EXISTS start_gate BLOB NULL;
