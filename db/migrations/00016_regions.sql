-- +goose NO TRANSACTION
-- +goose Up
-- A place that runs instances, with its one current agent session. Without a workspace, the region
-- belongs to the platform and is shared by grant. labels and agent_features are JSON, capacity a
-- serialised windlass.agent.v1.Capacity. lease_expires_at is a time of the database's clock.
CREATE TABLE IF NOT EXISTS regions (
    id                    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name                  VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    labels                BLOB NOT NULL,
    status                INT NOT NULL,
    message               TEXT NOT NULL,
    session_id            VARCHAR(64) NOT NULL,
    session_epoch         BIGINT NOT NULL,
    session_fence         BIGINT NOT NULL,
    session_sequence      BIGINT NOT NULL,
    lease_expires_at      BIGINT NOT NULL,
    agent_version         VARCHAR(128) NOT NULL,
    agent_runtime         VARCHAR(64) NOT NULL,
    agent_features        BLOB NOT NULL,
    received_revision     BIGINT NOT NULL,
    last_report_at        BIGINT NOT NULL,
    capacity              MEDIUMBLOB NOT NULL,
    credential_not_before BIGINT NOT NULL,
    created_at            BIGINT NOT NULL,
    updated_at            BIGINT NOT NULL,
    resource_version      BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY regions_name (workspace_id, name),
    KEY regions_lease (status, lease_expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
