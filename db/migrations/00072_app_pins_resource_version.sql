-- +goose NO TRANSACTION
-- +goose Up
-- Changes with each change that a person makes, so that a change of an outdated pin is refused. 0: an earlier release
-- wrote the row.
ALTER TABLE app_pins ADD COLUMN IF NOT EXISTS resource_version BIGINT NOT NULL DEFAULT 0;
