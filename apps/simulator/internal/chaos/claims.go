package chaos

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// claims are statements of the database at one moment that must always be true.
type claims struct {
	heads     []head
	ready     []instance
	claims    []claim
	decisions []decision
}

// decision is the newest decision of the scaler about an app in a region, or about a role of a pool there.
type decision struct {
	app, region, role string
	at                int64
	from, to          int32
	limit             string
}

type head struct {
	region          string
	epoch, revision int64
}

type instance struct {
	id    string
	place place
}

// claim is a deployment that was ready, with its regions.
type claim struct {
	app, deployment string
	regions         []string
}

func readClaims(ctx context.Context, db *bare.DB) (c claims, err error) {
	rows, err := db.Rows(ctx, "SELECT r.name, h.epoch, h.revision FROM region_heads h JOIN regions r ON r.id = h.region")
	if err != nil {
		return c, err
	}
	for _, r := range rows {
		c.heads = append(c.heads, head{r.Text(0), r.Int(1), r.Int(2)})
	}
	rows, err = db.Rows(ctx, `SELECT i.id, r.name, i.deployment_id FROM instances i JOIN regions r ON r.id = i.region
		LEFT JOIN apps a ON a.id = i.app_id WHERE i.status = ? AND COALESCE(a.name, '') NOT LIKE 'model-%'`, // the runtime says nothing about models
		int32(windlassv1.InstanceStatus_INSTANCE_STATUS_READY))
	if err != nil {
		return c, err
	}
	for _, r := range rows {
		c.ready = append(c.ready, instance{r.Text(0), place{r.Text(1), r.Text(2)}})
	}
	rows, err = db.Rows(ctx, "SELECT a.name, d.id, GROUP_CONCAT(r.name) FROM deployments d JOIN apps a ON a.id = d.app_id "+
		"JOIN deployment_topology t ON t.deployment_id = d.id JOIN regions r ON r.id = t.region WHERE d.ready_at > 0 GROUP BY a.name, d.id")
	for _, r := range rows {
		c.claims = append(c.claims, claim{r.Text(0), r.Text(1), strings.Split(r.Text(2), ",")})
	}
	if err != nil {
		return c, err
	}
	c.decisions, err = readDecisions(ctx, db)
	return c, err
}

func readDecisions(ctx context.Context, db *bare.DB) (out []decision, err error) {
	rows, err := db.Rows(ctx, "SELECT a.name, r.name, s.decided_at, s.decision FROM scaling_decisions s JOIN apps a ON a.id = s.app_id JOIN regions r ON r.id = s.region WHERE s.decided_at > 0")
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		var d windlassv1.RegionScaling
		if err := proto.Unmarshal([]byte(r.Text(3)), &d); err != nil {
			return nil, err
		}
		parts := d.GetRoles()
		if len(parts) == 0 {
			parts = []*windlassv1.RegionScaling{&d}
		}
		for _, p := range parts {
			out = append(out, decision{r.Text(0), r.Text(1), p.GetRole(), r.Int(2), p.GetReplicas(), p.GetWanted(), p.GetLimit()})
		}
	}
	return out, nil
}

// row is the row of a place in the database.
type row struct {
	place
	app                  string
	status               windlassv1.TopologyStatus
	replicas             int
	roles                map[string]int // the instances of each role when the pool is whole; nil: the app is no pool
	generation           int64
	appliedGeneration    int64
	countsGeneration     int64
	readyReplicas, count int
	// says contains the reason that the region's agent gave for unfinished work, and the state of the region.
	says string
}

// moving is a deployment, a rollout or an app that is still changing.
type moving struct{ app, deployment, text string }

// books are all rows of the database that must agree with the running instances.
type books struct {
	rows        []row
	instances   []instance               // that are alive, without those of models
	replicas    []modelReplica           // of models, that are alive
	roles       map[place]map[string]int // how many of them have a role
	groups      map[place][]int          // their groups
	quarantined map[place]bool
	moving      []moving
	decisions   []decision
	// holes are regions whose feed lacks a revision.
	holes       []string
	deployments map[string]bool
}

// modelReplica is a row of an instance that is a model on a server.
type modelReplica struct {
	id, app, server string
	place           place
}

// parseRoles parses the roles of a pool's row: "decode=2,prefill=8".
func parseRoles(text string) map[string]int {
	if text == "" {
		return nil
	}
	out := map[string]int{}
	for one := range strings.SplitSeq(text, ",") {
		name, count, _ := strings.Cut(one, "=")
		out[name], _ = strconv.Atoi(count) // the control plane wrote it
	}
	return out
}

// wantedInstances returns how many instances the row wants while no rollout is under way.
func (r row) wantedInstances() (n int) {
	if r.roles == nil {
		return r.replicas * instancesEach(r.app)
	}
	for _, count := range r.roles {
		n += pool.Units(r.replicas, count)
	}
	return n
}

func readBooks(ctx context.Context, db *bare.DB) (b books, err error) {
	b.quarantined, b.deployments, b.roles, b.groups = map[place]bool{}, map[string]bool{}, map[place]map[string]int{}, map[place][]int{}
	rows, err := db.Rows(ctx, `SELECT r.name, t.deployment_id, a.name, t.status, t.replicas, t.generation,
		COALESCE(o.applied_generation, 0), COALESCE(o.counts_generation, 0), COALESCE(o.ready_replicas, 0),
		COALESCE(o.pending + o.running + o.ready + o.draining + o.failed, 0),
		CONCAT_WS(' ', 'region', ELT(r.status, 'pending', 'connected', 'unreachable', 'unknown'), 'deployment', o.code, o.message, 'routes', u.generation, 'of', g.generation, u.code, u.message), t.roles
		FROM deployment_topology t JOIN regions r ON r.id = t.region JOIN apps a ON a.id = t.app_id
		LEFT JOIN deployment_observed o ON o.deployment_id = t.deployment_id AND o.region = t.region
		LEFT JOIN app_routes g ON g.app_id = t.app_id AND g.region = t.region
		LEFT JOIN route_observed u ON u.app_id = t.app_id AND u.region = t.region`)
	if err != nil {
		return b, err
	}
	models := map[place]string{}
	for _, r := range rows {
		if app := r.Text(2); isModel(app) {
			models[place{r.Text(0), r.Text(1)}] = app
		}
		b.rows = append(b.rows, row{
			place: place{r.Text(0), r.Text(1)}, app: r.Text(2), status: windlassv1.TopologyStatus(r.Int(3)), replicas: int(r.Int(4)),
			generation: r.Int(5), appliedGeneration: r.Int(6), countsGeneration: r.Int(7), readyReplicas: int(r.Int(8)), count: int(r.Int(9)), says: r.Text(10), roles: parseRoles(r.Text(11)),
		})
	}
	if rows, err = db.Rows(ctx, "SELECT i.id, r.name, i.deployment_id, i.role, i.runtime_name, i.group_no FROM instances i JOIN regions r ON r.id = i.region WHERE i.terminated_at = 0"); err != nil {
		return b, err
	}
	for _, r := range rows {
		p := place{r.Text(1), r.Text(2)}
		if app := models[p]; app != "" {
			b.replicas = append(b.replicas, modelReplica{r.Text(0), app, r.Text(4), p})
			continue
		}
		b.instances = append(b.instances, instance{r.Text(0), p})
		if b.roles[p] == nil {
			b.roles[p] = map[string]int{}
		}
		b.roles[p][r.Text(3)]++
		b.groups[p] = append(b.groups[p], int(r.Int(5)))
	}
	if rows, err = db.Rows(ctx, "SELECT r.name, q.workload_key FROM region_quarantine q JOIN regions r ON r.id = q.region"); err != nil {
		return b, err
	}
	for _, r := range rows {
		b.quarantined[place{r.Text(0), r.Text(1)}] = true
	}
	if rows, err = db.Rows(ctx, "SELECT d.id, d.status, a.name FROM deployments d JOIN apps a ON a.id = d.app_id"); err != nil {
		return b, err
	}
	for _, r := range rows {
		b.deployments[r.Text(0)] = true
		if s := windlassv1.DeploymentStatus(r.Int(1)); s < windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY {
			b.moving = append(b.moving, moving{r.Text(2), r.Text(0), fmt.Sprintf("deployment %s is %s", r.Text(0), s)})
		}
	}
	if rows, err = db.Rows(ctx, "SELECT o.id, a.name FROM rollouts o JOIN apps a ON a.id = o.app_id WHERE o.status = ?",
		int32(windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING)); err != nil {
		return b, err
	}
	for _, r := range rows {
		b.moving = append(b.moving, moving{app: r.Text(1), text: fmt.Sprintf("rollout %s of %s is under way", r.Text(0), r.Text(1))})
	}
	if b.decisions, err = readDecisions(ctx, db); err != nil {
		return b, err
	}
	if rows, err = db.Rows(ctx, "SELECT name, status, message FROM apps WHERE deleted_at = 0"); err != nil {
		return b, err
	}
	for _, r := range rows {
		switch s := windlassv1.AppStatus(r.Int(1)); s {
		case windlassv1.AppStatus_APP_STATUS_READY, windlassv1.AppStatus_APP_STATUS_IDLE, windlassv1.AppStatus_APP_STATUS_FAILED:
		default:
			b.moving = append(b.moving, moving{app: r.Text(0), text: fmt.Sprintf("app %s is %s: %s", r.Text(0), s, r.Text(2))})
		}
	}
	if rows, err = db.Rows(ctx, "SELECT r.name FROM region_changes c JOIN regions r ON r.id = c.region JOIN region_heads h ON h.region = c.region "+
		"GROUP BY r.name, h.revision HAVING MAX(c.revision) - MIN(c.revision) + 1 <> COUNT(*) OR MAX(c.revision) <> h.revision"); err != nil {
		return b, err
	}
	for _, r := range rows {
		b.holes = append(b.holes, r.Text(0))
	}
	return b, nil
}
