-- +goose NO TRANSACTION
-- +goose Up
-- Pinned versions. regions has the state of the pin in each region, in the control plane's own
-- format. While a deployment has a row here, its weights in the topology are percent of all
-- traffic. The weights of the app's other deployments are relative to the traffic that pins leave.
-- Rows change only under the app's lock.
CREATE TABLE IF NOT EXISTS app_pins (
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       INT NOT NULL,
    weight        INT NOT NULL,
    removing      BOOLEAN NOT NULL,
    pinned_by     VARCHAR(255) NOT NULL,
    why           VARCHAR(1024) NOT NULL,
    regions       MEDIUMBLOB NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    PRIMARY KEY (app_id, deployment_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
