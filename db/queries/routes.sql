-- name: ListRoutesOfApps :many
SELECT * FROM app_routes WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY region, app_id;

-- name: RoutesOfRegion :many
SELECT * FROM app_routes WHERE region = ? ORDER BY app_id;

-- name: GetRoutes :many
SELECT * FROM app_routes
WHERE app_id IN (sqlc.slice(app_ids)) AND region IN (sqlc.slice(regions))
ORDER BY app_id, region;
