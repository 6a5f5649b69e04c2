-- name: InsertMember :exec
INSERT INTO members (
    id, workspace_id, identity, issuer, subject, name, email, claims, hash, created_at, signed_in_at, removed_at, removed_by
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateMember :execrows
UPDATE members SET name = ?, email = ?, claims = ?, signed_in_at = ?, removed_at = ?, removed_by = ?
WHERE workspace_id = ? AND id = ?;

-- name: GetMember :one
SELECT * FROM members WHERE workspace_id = ? AND id = ?;

-- name: GetMemberByHash :one
-- This read cannot name the workspace, because the row determines it.
SELECT * FROM members WHERE hash = ?;

-- name: LockMemberByIdentity :one
SELECT * FROM members WHERE workspace_id = ? AND identity = ? FOR UPDATE;

-- name: LockMember :one
SELECT * FROM members WHERE workspace_id = ? AND id = ? FOR UPDATE;

-- name: ListMembersNamed :many
SELECT * FROM members WHERE workspace_id = ? AND name = ? ORDER BY id LIMIT ?;

-- name: ListMembers :many
SELECT * FROM members WHERE workspace_id = ? AND id > sqlc.arg(after) ORDER BY id LIMIT ?;

-- name: CountMembers :one
SELECT COUNT(*) FROM members WHERE workspace_id = ?;

-- name: DeleteMembersOfWorkspace :exec
DELETE FROM members WHERE workspace_id = ?;

-- name: PutSignInRule :exec
REPLACE INTO sign_in_rules (workspace_id, name, issuer, role, conditions, family_id, set_by, set_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: ListSignInRules :many
SELECT * FROM sign_in_rules WHERE workspace_id = ? ORDER BY name;

-- name: ListSignInRulesOfIssuer :many
-- This read cannot name the workspace, because it finds the workspaces in which someone has a role.
SELECT * FROM sign_in_rules WHERE issuer = ? ORDER BY workspace_id, name;

-- name: DeleteSignInRule :execrows
DELETE FROM sign_in_rules WHERE workspace_id = ? AND name = ?;

-- name: DeleteSignInRulesOfWorkspace :exec
DELETE FROM sign_in_rules WHERE workspace_id = ?;

-- name: InsertUsedSignIn :exec
INSERT INTO used_sign_ins (hash, expires_at) VALUES (?, ?);
