-- +goose NO TRANSACTION
-- +goose Up
-- Upper bound of a workspace's usage: the usage at counted_at, in unix microseconds of the
-- database's clock, plus everything requested since. 0: not counted yet. The columns are in the
-- row of the bucket, because the same calls change both. An earlier release does not update these columns, so
-- they are only trusted for a short time.
ALTER TABLE workspace_starts
    ADD COLUMN IF NOT EXISTS counted_at  BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS apps        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS deployments BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS instances   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS gpus        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS rollouts    BIGINT NOT NULL DEFAULT 0;
