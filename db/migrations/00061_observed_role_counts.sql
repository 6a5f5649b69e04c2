-- +goose NO TRANSACTION
-- +goose Up
-- For a deployment with several roles: groups and counts of each role, as a windlass.agent.v1.DeploymentRollup
-- without other fields. Empty: one role.
ALTER TABLE deployment_observed
    ADD COLUMN IF NOT EXISTS role_counts VARBINARY(8192) NOT NULL DEFAULT '';
