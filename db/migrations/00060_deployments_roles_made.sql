-- +goose NO TRANSACTION
-- +goose Up
-- Of a version with several roles: a hash of what instances of each role are made of, as a windlass.agent.v1.Deployment
-- with only role_templates. Empty: one role, or a version of a release before.
ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS roles_made VARBINARY(1024) NOT NULL DEFAULT '';
