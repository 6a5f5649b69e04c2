-- +goose NO TRANSACTION
-- +goose Up
-- The highest version of any deleted preset of a workspace. A preset that is created again begins with a higher
-- version, because versions of apps name the preset's version that generated them.
CREATE TABLE IF NOT EXISTS preset_floors (
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version      INT NOT NULL,
    PRIMARY KEY (workspace_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
