-- +goose NO TRANSACTION
-- +goose Up
-- A request for a step of an app's workflow at the time due. It is written in the transaction that
-- causes it. sent_at is when a step was last sent for it.
CREATE TABLE IF NOT EXISTS app_wake (
    app_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due     BIGINT NOT NULL,
    sent_at BIGINT NOT NULL,
    PRIMARY KEY (app_id),
    KEY app_wake_due (due)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
