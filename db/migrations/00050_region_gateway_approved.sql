-- +goose NO TRANSACTION
-- +goose Up
-- The gateway_url that an operator approved for gateways of platform regions. Empty, as in older
-- rows: no URL is approved.
ALTER TABLE regions
    ADD COLUMN IF NOT EXISTS approved_gateway_url VARCHAR(512) NOT NULL DEFAULT '';
