-- +goose NO TRANSACTION
-- +goose Up
-- Desired state: where a deployment runs. Rows change only under the app's lock. What regions
-- report is in deployment_observed, because two writers that share rows slow down the feed and
-- cause deadlocks.
CREATE TABLE IF NOT EXISTS deployment_topology (
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    replicas      INT NOT NULL,
    status        INT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation    BIGINT NOT NULL,
    weight        INT NOT NULL,
    reason        VARCHAR(255) NOT NULL,
    traceparent   VARCHAR(128) NOT NULL,
    PRIMARY KEY (deployment_id, region),
    KEY topology_by_app (app_id, deployment_id, region),
    KEY topology_by_region (region, status),
    KEY topology_stopped (status, updated_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
