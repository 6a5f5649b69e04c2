-- +goose NO TRANSACTION
-- +goose Up
-- Whether the freeze comes from the app's file, which then also removes it.
ALTER TABLE freezes ADD COLUMN IF NOT EXISTS from_file BOOLEAN NOT NULL DEFAULT FALSE;
