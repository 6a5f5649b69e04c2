-- +goose NO TRANSACTION
-- +goose Up
-- How many keys an app has: what the planner need not look for it does not.
ALTER TABLE apps
    ADD COLUMN IF NOT EXISTS app_keys INT NOT NULL DEFAULT 0;
