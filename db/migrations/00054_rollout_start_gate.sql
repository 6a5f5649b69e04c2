-- +goose NO TRANSACTION
-- +goose Up
-- JSON of the gate before the rollout starts, with its approvals; NULL, as in every row of before,
-- or empty: none.
ALTER TABLE rollouts
    ADD COLUMN IF NOT EXISTS start_gate BLOB NULL;
