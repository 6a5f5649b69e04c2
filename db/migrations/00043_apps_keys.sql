-- +goose NO TRANSACTION
-- +goose Up
-- Number of the app's keys, so that the planner reads app_keys only for apps with keys.
ALTER TABLE apps
    ADD COLUMN IF NOT EXISTS app_keys INT NOT NULL DEFAULT 0;
