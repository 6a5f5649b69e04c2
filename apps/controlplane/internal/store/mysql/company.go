package mysql

import (
	"cmp"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// company is what a transaction keeps of works that share it (see Together); nil where it
// has one work alone.
//
// What a work writes of the commonest kinds is kept back and written for all of them, in a
// statement of each kind; a statement that reads one of those tables has it written before,
// unless it is about rows of which nothing is kept back. What is read for every work alike is
// read once.
type company struct {
	// member whose turn it is.
	member int
	late   late
	// about are what rows that are kept back are about: ids of apps, deployments and rollouts,
	// and names of apps.
	about map[string]bool
	// apart: the statement at hand has nothing to do with them. writing: it is one of theirs.
	apart, writing bool
	// bound are members of whom something is in the transaction that is not kept back: it
	// cannot be without it.
	bound map[int]bool
	// admissions are those of workspaces that are locked, as they are to become.
	admissions map[string]model.Admission
	// read is what is read once, by question.
	read map[string]any
	// failed is why what was kept back could not be written.
	failed error
}

func newCompany() *company {
	return &company{
		about: map[string]bool{}, bound: map[int]bool{}, admissions: map[string]model.Admission{}, read: map[string]any{},
	}
}

// late are rows that are kept back, by table.
type late struct {
	apps, updated   kept[model.App]
	deployments     kept[model.Deployment]
	rollouts        kept[model.Rollout]
	added, replaced kept[model.Topology]
	history         kept[model.History]
	audit           kept[model.Audit]
	keys            kept[model.Idempotency]
	claims          kept[model.Claim]
	standings       kept[model.Admission]
	wakes           kept[wake]
	any             bool
}

// lateTables are where they go.
var lateTables = []string{
	"apps", "deployments", "rollouts", "deployment_topology", "history", "audit", "idempotency", "app_claims", "workspace_starts", "app_wake",
}

// wake is in so many ms from now, or at once.
type wake struct {
	appID string
	in    int64
}

// kept are rows, and the members that wrote them.
type kept[R any] struct {
	rows []R
	by   []int
}

func (k *kept[R]) drop(member int) {
	n := 0
	for i, by := range k.by {
		if by != member {
			k.rows[n], k.by[n] = k.rows[i], by
			n++
		}
	}
	k.rows, k.by = k.rows[:n], k.by[:n]
}

// keep keeps rows back that are about something.
func keep[R any](c *company, k *kept[R], about []string, rows ...R) {
	for _, id := range about {
		c.about[id] = true
	}
	for _, r := range rows {
		k.rows, k.by, c.late.any = append(k.rows, r), append(k.by, c.member), true
	}
}

// drop takes a member's work out of the transaction, and tells whether it could.
func (c *company) drop(member int) bool {
	if c.bound[member] {
		return false
	}
	l := &c.late
	l.apps.drop(member)
	l.updated.drop(member)
	l.deployments.drop(member)
	l.rollouts.drop(member)
	l.added.drop(member)
	l.replaced.drop(member)
	l.history.drop(member)
	l.audit.drop(member)
	l.keys.drop(member)
	l.claims.drop(member)
	l.standings.drop(member)
	l.wakes.drop(member)
	return true
}

// bind says that the member whose turn it is cannot be taken out any more.
func (t *tx) bind() {
	if c := t.company; c != nil {
		c.bound[c.member] = true
	}
}

// beside has the statements until the function that it returns is called not wait for what
// is kept back, unless that is about one of these.
func (t *tx) beside(about ...string) (done func()) {
	c := t.company
	if c == nil || slices.ContainsFunc(about, func(id string) bool { return c.about[id] }) {
		return func() {}
	}
	c.apart = true
	return func() { c.apart = false }
}

// ahead of a statement what is kept back is written, if the statement may be about it.
func (t *tx) ahead(query string) error {
	c := t.company
	if c == nil || c.writing || c.apart || !c.late.any ||
		!slices.ContainsFunc(lateTables, func(table string) bool { return strings.Contains(query, table) }) {
		return nil
	}
	return t.flush()
}

// once asks what every member asks alike.
func once[M any](t *tx, question string, ask func() (M, error)) (M, error) {
	c := t.company
	if c == nil {
		return ask()
	}
	if known, ok := c.read[question].(M); ok {
		return known, nil
	}
	m, err := ask()
	if err == nil {
		c.read[question] = m
	}
	return m, err
}

// flush writes what is kept back.
func (t *tx) flush() error {
	c := t.company
	if c == nil || !c.late.any {
		return nil
	}
	l := c.late
	c.late = late{}
	clear(c.about)
	for _, members := range [][]int{
		l.apps.by, l.updated.by, l.deployments.by, l.rollouts.by, l.added.by, l.replaced.by,
		l.history.by, l.audit.by, l.keys.by, l.claims.by, l.standings.by, l.wakes.by,
	} {
		for _, m := range members {
			c.bound[m] = true
		}
	}
	c.writing = true
	defer func() { c.writing = false }()
	for _, write := range []func() error{
		func() error { return t.insertApps(l.apps.rows) },
		func() error { return t.updateApps(l.updated.rows) },
		func() error { return t.insertDeployments(l.deployments.rows) },
		func() error { return t.insertRollouts(l.rollouts.rows) },
		func() error { return t.addTopology(l.added.rows) },
		func() error { return t.replaceTopology(l.replaced.rows) },
		func() error { return t.insertHistory(l.history.rows) },
		func() error { return t.insertAudit(l.audit.rows) },
		func() error { return t.insertIdempotency(l.keys.rows) },
		func() error { return t.putClaims(l.claims.rows) },
		func() error { return t.putStandings(l.standings.rows) },
		func() error { return t.wake(l.wakes.rows) },
	} {
		if err := write(); err != nil {
			c.failed = cmp.Or(c.failed, err)
			return err
		}
	}
	return nil
}
