-- +goose NO TRANSACTION
-- +goose Up
-- Notifications to endpoints, each with the facts at the time of its event. due_at is the time of
-- the next try of a pending notification, or the time when a finished row is deleted. tries_since
-- is when the tries began. apps and events are the numbers of apps and events in the notification.
-- app_names has the first of these apps.
CREATE TABLE IF NOT EXISTS notification_deliveries (
    endpoint_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    message_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind          INT NOT NULL,
    at            BIGINT NOT NULL,
    what          VARCHAR(128) NOT NULL,
    why           VARCHAR(1024) NOT NULL,
    who           VARCHAR(255) NOT NULL,
    workspace     VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    project       VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    environment   VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app           VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       INT NOT NULL,
    rollout_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region        VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    events        INT NOT NULL,
    apps          INT NOT NULL,
    app_names     VARCHAR(4096) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state         INT NOT NULL,
    attempts      INT NOT NULL,
    due_at        BIGINT NOT NULL,
    tries_since   BIGINT NOT NULL,
    done_at       BIGINT NOT NULL,
    problem       VARCHAR(1024) NOT NULL,
    PRIMARY KEY (endpoint_id, message_id),
    KEY deliveries_by_due (state, due_at),
    KEY deliveries_by_workspace (workspace_id, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
