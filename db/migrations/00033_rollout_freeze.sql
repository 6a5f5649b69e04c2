-- +goose NO TRANSACTION
-- +goose Up
-- The freeze that holds the rollout or held it last, and the person who overrode the freeze.
ALTER TABLE rollouts
    ADD COLUMN IF NOT EXISTS held_since   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS held_until   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS held_by      VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS held_scope   VARCHAR(255) NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS held_why     VARCHAR(1024) NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS override_by  VARCHAR(255) NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS override_why VARCHAR(1024) NOT NULL DEFAULT '';
