-- name: ListRoutesOfApps :many
SELECT * FROM app_routes WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY region, app_id;

-- name: RoutesOfRegion :many
SELECT * FROM app_routes FORCE INDEX (routes_by_region)
WHERE region = ? AND app_id > sqlc.arg(after)
ORDER BY app_id LIMIT ?;

-- name: GetRoutes :many
SELECT * FROM app_routes
WHERE app_id IN (sqlc.slice(app_ids)) AND region IN (sqlc.slice(regions))
ORDER BY app_id, region;

-- name: CrossRegion :many
-- Returns every app whose requests may go to other regions, with each region that routes its hosts. A
-- row has the numbers of ready instances and of desired replicas in the region, or -1 if no version
-- serves. 1 and 2 are starting and started.
SELECT r.app_id, r.region, r.workspace_id, r.hosts, a.name AS app_name, g.name, g.gateway_url,
  g.workspace_id AS owner, g.approved_gateway_url,
  CAST(COALESCE(SUM(o.ready), 0) AS SIGNED) AS ready,
  CAST(COALESCE(MAX(t.replicas), -1) AS SIGNED) AS replicas
FROM app_routes r
JOIN regions g ON g.id = r.region
JOIN apps a ON a.id = r.app_id
LEFT JOIN deployment_topology t ON t.app_id = r.app_id AND t.region = r.region AND t.weight > 0 AND t.status IN (1, 2)
LEFT JOIN deployment_observed o ON o.deployment_id = t.deployment_id AND o.region = t.region AND o.deleted = FALSE
WHERE r.cross_region > 1
GROUP BY r.app_id, r.region, r.workspace_id, r.hosts, a.name, g.name, g.gateway_url, g.workspace_id, g.approved_gateway_url
ORDER BY r.app_id, r.region;
