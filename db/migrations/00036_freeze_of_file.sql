-- +goose NO TRANSACTION
-- +goose Up
-- Whether the freeze came with the app's file, and goes with it.
ALTER TABLE freezes ADD COLUMN IF NOT EXISTS from_file BOOLEAN NOT NULL DEFAULT FALSE;
