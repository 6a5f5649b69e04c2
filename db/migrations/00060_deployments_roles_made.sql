-- +goose NO TRANSACTION
-- +goose Up
-- For a version with several roles: a hash for each role of the fields that its instances see, as a
-- windlass.agent.v1.Deployment with only role_templates. Empty: one role, or a version of an earlier release.
ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS roles_made VARBINARY(1024) NOT NULL DEFAULT '';
