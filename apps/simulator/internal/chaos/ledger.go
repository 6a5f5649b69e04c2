package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The ledger is a table in the database under test. Triggers add a row for each change of a row's count, each
// decision of the scaler and each rollout that begins or ends. They do so in the transaction of the change.
// Transactions of one app never overlap, because each holds the app's lock. So the rows of an app are in the order in
// which its transactions committed, and the decision that made a change follows the change, by the same connection.
const (
	ledgerCount    = 1
	ledgerDecision = 2
	ledgerRollout  = 3
)

var ledgerSchema = []string{
	`CREATE TABLE IF NOT EXISTS simulator_ledger (
		id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, kind INT NOT NULL, by_connection BIGINT NOT NULL,
		app_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, region VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
		deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', moving INT NOT NULL DEFAULT 0,
		was_generation BIGINT NOT NULL DEFAULT 0, generation BIGINT NOT NULL DEFAULT 0, was_replicas INT NOT NULL DEFAULT 0, replicas INT NOT NULL DEFAULT 0,
		was_roles VARCHAR(1024) NOT NULL DEFAULT '', roles VARCHAR(1024) NOT NULL DEFAULT '', decision BLOB NOT NULL DEFAULT '')`,
	`CREATE OR REPLACE TRIGGER simulator_counts AFTER UPDATE ON deployment_topology FOR EACH ROW
		IF (OLD.replicas <> NEW.replicas OR OLD.roles <> NEW.roles) AND OLD.status IN (1, 2) AND NEW.status IN (1, 2) THEN
			INSERT INTO simulator_ledger (kind, by_connection, app_id, region, deployment_id, moving, was_generation, generation, was_replicas, replicas, was_roles, roles)
			VALUES (1, CONNECTION_ID(), NEW.app_id, NEW.region, NEW.deployment_id, (SELECT COUNT(*) FROM apps a WHERE a.id = NEW.app_id AND a.rollout_id <> ''),
				OLD.generation, NEW.generation, OLD.replicas, NEW.replicas, OLD.roles, NEW.roles);
		END IF`,
	`CREATE OR REPLACE TRIGGER simulator_decisions AFTER INSERT ON scaling_decisions FOR EACH ROW
		INSERT INTO simulator_ledger (kind, by_connection, app_id, region, moving, decision)
		VALUES (2, CONNECTION_ID(), NEW.app_id, NEW.region, (SELECT COUNT(*) FROM apps a WHERE a.id = NEW.app_id AND a.rollout_id <> ''), NEW.decision)`,
	`CREATE OR REPLACE TRIGGER simulator_rollouts AFTER UPDATE ON apps FOR EACH ROW
		IF OLD.rollout_id <> NEW.rollout_id THEN
			INSERT INTO simulator_ledger (kind, by_connection, app_id, region) VALUES (3, CONNECTION_ID(), NEW.id, '');
		END IF`,
}

// openLedger makes the ledger. Backups of the database have it, too.
func openLedger(ctx context.Context, db *bare.DB) error {
	for _, statement := range ledgerSchema {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("make the ledger of counts: %w", err)
		}
	}
	return nil
}

// entry is a row of the ledger.
type entry struct {
	kind                int
	connection          int64
	app                 string
	place               place // without the deployment for a decision
	moving              bool
	wasGeneration, isAt int64
	was, is             counts
	from, to            counts // of a decision
	decidesRoles        bool
	// aside means that the change may belong to a transaction that ends a rollout.
	aside bool
}

// counts are the replicas of an app in a region, or the instances of each role of its pool there.
type counts struct {
	replicas int
	roles    map[string]int
}

// runningRoles returns how many instances of each role run. A pool at zero keeps the numbers with which it starts again.
func (c counts) runningRoles() map[string]int {
	out := map[string]int{}
	for role, n := range c.roles {
		out[role] = pool.Units(c.replicas, n)
	}
	return out
}

// readLedger returns the entries about scaled apps, in order.
func readLedger(ctx context.Context, db *bare.DB) (out []entry, err error) {
	rows, err := db.Rows(ctx, `SELECT l.kind, l.by_connection, a.name, COALESCE(r.name, ''), l.deployment_id, l.moving, l.was_generation, l.generation,
		l.was_replicas, l.replicas, l.was_roles, l.roles, l.decision
		FROM simulator_ledger l JOIN apps a ON a.id = l.app_id LEFT JOIN regions r ON r.id = l.region WHERE a.name IN (?, ?, ?) ORDER BY l.id`,
		scaledName, zeroName, poolName)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		e := entry{
			kind: int(r.Int(0)), connection: r.Int(1), app: r.Text(2), place: place{r.Text(3), r.Text(4)}, moving: r.Int(5) > 0,
			wasGeneration: r.Int(6), isAt: r.Int(7), was: counts{int(r.Int(8)), parseRoles(r.Text(10))}, is: counts{int(r.Int(9)), parseRoles(r.Text(11))},
		}
		if e.kind == ledgerDecision {
			var d windlassv1.RegionScaling
			if err := proto.Unmarshal([]byte(r.Text(12)), &d); err != nil {
				return nil, err
			}
			e.from, e.to = counts{replicas: int(d.GetReplicas())}, counts{replicas: int(d.GetWanted())}
			if e.decidesRoles = len(d.GetRoles()) > 0; e.decidesRoles {
				e.from.roles, e.to.roles = map[string]int{}, map[string]int{}
			}
			for _, one := range d.GetRoles() {
				e.from.roles[one.GetRole()], e.to.roles[one.GetRole()] = int(one.GetReplicas()), int(one.GetWanted())
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// unexplained is a change of a count without a decision.
type unexplained struct {
	app   string
	place place
	text  string
}

// audit is the result about changes of counts outside of rollouts. Rollouts plan the counts of two versions by
// themselves.
type audit struct {
	// decided counts changes that a decision made in its own transaction. delayed counts changes that the planner
	// made after a decision, because the region lags behind its rollout. woken counts changes that a request caused.
	decided, delayed, woken int
	bad                     []unexplained
	// near are the last entries about the first region with an unexplained change.
	near string
}

// auditLedger finds the decision of each change of a count: the decision in the same transaction, or else the last
// decision before the change. A change without a decision is right only if a request woke an app at zero.
func auditLedger(entries []entry) (a audit) {
	byRegion := map[appRegion][]entry{}
	for _, e := range entries {
		if e.kind != ledgerRollout {
			byRegion[appRegion{e.app, e.place.region}] = nil
		}
	}
	for _, e := range entries {
		if e.kind == ledgerRollout {
			// A rollout concerns all regions of the app.
			for at := range byRegion {
				if at.app == e.app {
					byRegion[at] = append(byRegion[at], e)
				}
			}
			continue
		}
		at := appRegion{e.app, e.place.region}
		byRegion[at] = append(byRegion[at], e)
	}
	for _, at := range slices.SortedFunc(maps.Keys(byRegion), appRegion.compare) {
		a.auditRegion(byRegion[at])
	}
	return a
}

// auditRegion audits the entries about one app in one region.
func (a *audit) auditRegion(entries []entry) {
	var changes []entry // of one connection, since the last decision
	var last *entry     // decision
	for i, e := range entries {
		if len(changes) > 0 && changes[0].connection != e.connection {
			a.auditChanges(changes, nil, nil, last)
			changes = nil
		}
		switch e.kind {
		case ledgerCount:
			before, after := besideRollout(entries, i)
			if e.aside = after; !e.moving && !before {
				changes = append(changes, e)
			}
		case ledgerDecision:
			a.auditChanges(changes, changesAfter(entries, i), &e, last)
			changes, last = nil, &e
		}
	}
	a.auditChanges(changes, nil, nil, last)
	if len(a.bad) > 0 && a.near == "" {
		for _, e := range entries[max(0, len(entries)-14):] {
			a.near += "\n" + e.String()
		}
	}
}

// String describes the entry to a person who investigates a violation.
func (e entry) String() string {
	by := fmt.Sprintf("connection %d, moving %v", e.connection, e.moving)
	switch e.kind {
	case ledgerCount:
		return fmt.Sprintf("%s: %s: %v became %v, generation %d", by, e.place, e.was, e.is, e.isAt)
	case ledgerDecision:
		return fmt.Sprintf("%s: decided on %v instead of %v", by, e.to, e.from)
	}
	return by + ": a rollout begins or ends"
}

// besideRollout reports whether a change may belong to a transaction that begins or ends a rollout. before: the
// connection's next entries have a rollout before any decision. after: the connection's last entries have a rollout
// after any decision.
func besideRollout(entries []entry, at int) (before, after bool) {
	same := func(i int) bool {
		return i >= 0 && i < len(entries) && entries[i].connection == entries[at].connection && entries[i].kind != ledgerDecision
	}
	for i := at - 1; same(i); i-- {
		after = after || entries[i].kind == ledgerRollout
	}
	for i := at + 1; same(i); i++ {
		before = before || entries[i].kind == ledgerRollout
	}
	return before, after
}

// changesAfter returns the changes of the same connection that follow a decision. A transaction may write its decision
// before the last of its changes.
func changesAfter(entries []entry, at int) []entry {
	end := at + 1
	for end < len(entries) && entries[end].connection == entries[at].connection && entries[end].kind == ledgerCount {
		end++
	}
	return entries[at+1 : end]
}

// auditChanges audits changes of one connection. next is the connection's decision after them, later are its changes after
// next, and last is the decision before them. Any of these may be nil.
func (a *audit) auditChanges(changes, later []entry, next, last *entry) {
	for i, c := range changes {
		rest := changes[i+1:]
		switch {
		case next != nil && next.matchesDecision(c, rest, later):
			a.decided++
		case c.isWake():
			a.woken++
		case c.aside:
		case last != nil && last.matchesDecision(c, nil, nil):
			a.delayed++
		default:
			a.bad = append(a.bad, unexplained{c.app, c.place, fmt.Sprintf("%v became %v with generation %d, and no decision says so", c.was, c.is, c.isAt)})
		}
	}
}

// isWake reports whether the change can be the effect of a request to an app at zero.
func (e entry) isWake() bool {
	to := wakeTo
	if e.is.roles != nil {
		to = pool.Whole
	}
	return e.app != scaledName && e.was.replicas == 0 && e.is.replicas == to && maps.Equal(e.was.roles, e.is.roles) && e.isAt == e.wasGeneration+1
}

// matchesDecision reports whether the decision made the change c. rest are the changes between c and the decision, and later are
// the changes after the decision. A decision for zero may first change the numbers with which a pool starts again,
// and then take the pool to zero.
func (e entry) matchesDecision(c entry, rest, later []entry) bool {
	here := func(o entry) bool { return o.place == c.place }
	if !slices.ContainsFunc(rest, here) && e.followsDecision(c) {
		return true
	}
	after := slices.Concat(rest, later)
	next := slices.IndexFunc(after, here)
	return c.isAt == c.wasGeneration+1 && c.is.roles != nil && next >= 0 && after[next].is.replicas == 0 && e.followsDecision(after[next])
}

// followsDecision reports whether the change c leads to the numbers of the decision, with the next generation.
func (e entry) followsDecision(c entry) bool {
	if c.isAt != c.wasGeneration+1 {
		return false
	}
	if !e.decidesRoles {
		return c.is.replicas == e.to.replicas
	}
	is := c.is.runningRoles()
	for role, n := range e.to.roles {
		if is[role] != n {
			return false
		}
	}
	return true
}

func (at appRegion) compare(o appRegion) int {
	return slices.Compare([]string{at.app, at.region}, []string{o.app, o.region})
}

// checkLedger audits all changes of counts since the database began.
func (c *checker) checkLedger(ctx context.Context) error {
	entries, err := readLedger(ctx, c.w.DB)
	if err != nil {
		return err
	}
	a := auditLedger(entries)
	c.mu.Lock()
	c.audited = a
	c.mu.Unlock()
	for _, bad := range a.bad {
		c.recordViolationf(anotherWriter, bad.app, bad.place, "%s%s", bad.text, a.near)
	}
	return nil
}
