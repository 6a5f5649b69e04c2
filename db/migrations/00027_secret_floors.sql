-- +goose NO TRANSACTION
-- +goose Up
-- The highest version of any deleted secret of an environment. A secret that is created again
-- begins with a higher version, because agents cache values by version. There is one row per
-- environment, not per name, so that deleted names need no rows.
CREATE TABLE IF NOT EXISTS secret_floors (
    environment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version        INT NOT NULL,
    PRIMARY KEY (environment_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
