-- +goose NO TRANSACTION
-- +goose Up
-- URL at which gateways of other regions reach this region's gateways, as last reported by its
-- agent. Empty, as in older rows: other regions cannot reach them.
ALTER TABLE regions
    ADD COLUMN IF NOT EXISTS gateway_url VARCHAR(512) NOT NULL DEFAULT '';
