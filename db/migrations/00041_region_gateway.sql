-- +goose NO TRANSACTION
-- +goose Up
-- Where gateways of other regions reach this one's, as its agent told last; empty, as in
-- every row of before: they do not.
ALTER TABLE regions
    ADD COLUMN IF NOT EXISTS gateway_url VARCHAR(512) NOT NULL DEFAULT '';
