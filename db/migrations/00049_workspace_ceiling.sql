-- +goose NO TRANSACTION
-- +goose Up
-- What a workspace has at most: what it had at counted_at, in unix microseconds on this
-- database's clock, and all that was asked for since. 0: it was not added up. Beside the bucket,
-- which changes with the same calls. A release before this one leaves the columns as they are,
-- which is why nobody goes by them for long.
ALTER TABLE workspace_starts
    ADD COLUMN IF NOT EXISTS counted_at  BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS apps        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS deployments BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS instances   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS gpus        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS rollouts    BIGINT NOT NULL DEFAULT 0;
