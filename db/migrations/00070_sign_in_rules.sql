-- +goose NO TRANSACTION
-- +goose Up
-- Rules that give roles to members. conditions is JSON. An empty issuer is the issuer at which people sign in. Rules
-- of the platform have an empty workspace. family_id is the family of the key that set the rule, empty for operators.
CREATE TABLE IF NOT EXISTS sign_in_rules (
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    issuer       VARCHAR(512) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    role         INT NOT NULL,
    conditions   MEDIUMBLOB NOT NULL,
    family_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    set_by       VARCHAR(255) NOT NULL,
    set_at       BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, name),
    KEY sign_in_rules_of_issuer (issuer)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
