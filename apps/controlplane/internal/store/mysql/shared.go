package mysql

import (
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// shared is the state of a transaction that several requests share (see UpdateBatched). It is nil in a
// transaction of a single request.
//
// Rows of the most frequent kinds are deferred, and written for all requests in one statement for each kind. They are
// written before a statement that reads one of these tables, unless none of the deferred rows concerns the statement. A
// read that is the same for all requests runs once. A read that each request makes of its own app runs once for all
// apps.
type shared struct {
	// member is the index of the request that runs now.
	member int
	late   late
	// about has the subjects of deferred rows: ids of apps, deployments and rollouts, and names of apps.
	about map[string]bool
	// apart means that the current statement does not concern deferred rows. writing means that the statement writes them.
	apart, writing bool
	// bound are members with writes that were not deferred. They cannot be removed from the transaction.
	bound map[int]bool
	// admissions are the admissions of locked workspaces, with the values after the deferred writes.
	admissions map[string]model.Admission
	// read has the answers that all members share, by query.
	read map[string]any
	// prefetched answers queries of members about their own apps. nil: each member runs its own queries.
	prefetched *prefetched
	// failed is the error of writing deferred rows.
	failed error
}

func newShared(t *tx, requests []*request) *shared {
	return &shared{
		prefetched: newPrefetched(requests),
		about:      map[string]bool{}, bound: map[int]bool{}, admissions: map[string]model.Admission{}, read: map[string]any{},
		late: late{
			apps:        kept[model.App]{table: "apps", write: t.insertApps},
			updated:     kept[model.App]{table: "apps", write: t.updateApps},
			deployments: kept[model.Deployment]{table: "deployments", write: t.insertDeployments},
			rollouts:    kept[model.Rollout]{table: "rollouts", write: t.insertRollouts},
			added:       kept[model.Topology]{table: "deployment_topology", write: t.addTopology},
			replaced:    kept[model.Topology]{table: "deployment_topology", write: t.replaceTopology},
			history:     kept[model.History]{table: "history", write: t.insertHistory},
			audit:       kept[model.Audit]{table: "audit", write: t.insertAudit},
			keys:        kept[model.Idempotency]{table: "idempotency", write: t.insertIdempotency},
			claims:      kept[model.Claim]{table: "app_claims", write: t.putClaims},
			standings:   kept[model.Admission]{table: "workspace_starts", write: t.putStandings},
			wakes:       kept[wake]{table: "app_wake", write: t.writeWakes},
		},
	}
}

// late are the deferred rows.
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
}

// allRows returns the deferred rows of each kind, in the order in which they are written.
func (l *late) allRows() []rows {
	return []rows{
		&l.apps, &l.updated, &l.deployments, &l.rollouts, &l.added, &l.replaced,
		&l.history, &l.audit, &l.keys, &l.claims, &l.standings, &l.wakes,
	}
}

// rows are deferred rows of one kind.
type rows interface {
	// memberNumbers returns the members that wrote the rows, one for each row.
	memberNumbers() []int
	dropMember(member int)
	// concernsQuery reports whether there are rows and the statement may read their table.
	concernsQuery(query string) bool
	flush() error
}

// kept are deferred rows of a table, and the members that wrote them.
type kept[R any] struct {
	table string
	write func([]R) error
	rows  []R
	by    []int
}

func (k *kept[R]) memberNumbers() []int { return k.by }

func (k *kept[R]) concernsQuery(query string) bool {
	return len(k.rows) > 0 && strings.Contains(query, k.table)
}

func (k *kept[R]) dropMember(member int) {
	n := 0
	for i, by := range k.by {
		if by != member {
			k.rows[n], k.by[n] = k.rows[i], by
			n++
		}
	}
	k.rows, k.by = k.rows[:n], k.by[:n]
}

func (k *kept[R]) flush() error {
	rows := k.rows
	k.rows, k.by = nil, nil
	return k.write(rows)
}

// wake is a wake-up of an app, in milliseconds from now, or at once.
type wake struct {
	appID string
	in    int64
}

// keepRows defers rows. about are the ids and names that the rows concern.
func keepRows[R any](c *shared, k *kept[R], about []string, rows ...R) {
	for _, id := range about {
		c.about[id] = true
	}
	for _, r := range rows {
		k.rows, k.by = append(k.rows, r), append(k.by, c.member)
	}
}

// dropMember removes a member's deferred rows from the transaction. It reports whether the member could be removed.
func (c *shared) dropMember(member int) bool {
	if c.bound[member] {
		return false
	}
	for _, k := range c.late.allRows() {
		k.dropMember(member)
	}
	return true
}

// bindMember records that the current member cannot be removed from the transaction.
func (t *tx) bindMember() {
	if c := t.shared; c != nil {
		c.bound[c.member] = true
	}
}

// ignoreDeferred makes statements ignore deferred rows until done is called, unless a deferred row concerns one of
// the subjects in about.
func (t *tx) ignoreDeferred(about ...string) (done func()) {
	c := t.shared
	if c == nil || slices.ContainsFunc(about, func(id string) bool { return c.about[id] }) {
		return func() {}
	}
	c.apart = true
	return func() { c.apart = false }
}

// writeAhead writes the deferred rows before a statement that may concern them.
func (t *tx) writeAhead(query string) error {
	c := t.shared
	if c == nil || c.writing || c.apart || !slices.ContainsFunc(c.late.allRows(), func(k rows) bool { return k.concernsQuery(query) }) {
		return nil
	}
	return t.flush()
}

// askOnce runs a query that is the same for every member, and keeps the answer.
func askOnce[M any](t *tx, question string, ask func() (M, error)) (M, error) {
	c := t.shared
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

// onceList is once for rows. Each member gets its own list, which it may sort and cut.
func onceList[R any](t *tx, question string, ask func() ([]R, error)) ([]R, error) {
	rows, err := askOnce(t, question, ask)
	return slices.Clone(rows), err
}

// flush writes the deferred rows.
func (t *tx) flush() error {
	c := t.shared
	if c == nil {
		return nil
	}
	clear(c.about)
	c.writing = true
	defer func() { c.writing = false }()
	for _, k := range c.late.allRows() {
		for _, m := range k.memberNumbers() {
			c.bound[m] = true
		}
		if err := k.flush(); err != nil {
			c.failed = err
			return err
		}
	}
	return nil
}
