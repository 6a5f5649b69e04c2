package rollout

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/batch"
)

// # Group commit
//
// Steps that arrive while a transaction of steps runs share the next one. The statements of a group
// are as many as those of one step, so the cost of a step falls as more of them come at once. A group
// fails because of one of its apps, or because its apps change more regions than a transaction may.
// Then its halves are tried, so that in the end an app fails alone.
const (
	// maxGroups is how many groups run at once. Each but the last has taken longer than patience, so
	// a step that waits for a row's lock delays no other app. Two groups at any time would have half
	// as many apps each, and a third more statements for each deployment.
	maxGroups = 4
	patience  = 250 * time.Millisecond
	// maxGroup is how many apps are in a group. They wait for each other's rows, and lock theirs until
	// all are written. Their statements are a thirtieth each by then, and apps of one region each are
	// in as many regions as a transaction may change.
	maxGroup = 32
)

// groups batch the steps of one process.
type groups = batch.Group[int, *member, decision]

// newGroups returns groups that decide about the members of each together, or fail with nothing written.
// committed is told of each transaction.
func newGroups(decide func(context.Context, []*member) ([]decision, error), committed func(batch.Outcome)) *groups {
	return batch.New(batch.Config[int, *member, decision]{
		Commit: decide,
		Limits: func(int) batch.Limits { return batch.Limits{Size: maxGroup, Commits: maxGroups, Patience: patience} },
		// The second step of an app goes by what the first one wrote.
		Key:     func(m *member) string { return m.appID },
		Split:   batch.Halves,
		Timeout: StepTimeout,
		Observe: committed,
	})
}

// member is one step in a group.
type member struct {
	ctx     context.Context
	appID   string
	answers plan.Input
	jitter  float64

	decision decision
	spans    *stepSpans
}

// decide is one pass over the apps of a group, each once, in one transaction.
func (s *Stepper) decide(ctx context.Context, group []*member) ([]decision, error) {
	ids := make([]string, len(group))
	for i, m := range group {
		ids[i] = m.appID
	}
	var all []*member
	err := s.cfg.Store.Update(ctx, func(tx Tx) error {
		at := nowMillis()
		found, err := s.read(tx, ids)
		if err != nil {
			return err
		}
		all = all[:0]
		for _, m := range group {
			m.decision = decision{at: at}
			in := found[m.appID]
			if in == nil {
				continue
			}
			in.Resolved, in.Measurements, in.Jitter = m.answers.Resolved, m.answers.Measurements, m.jitter
			m.decision.in, m.decision.out = *in, plan.Next(*in, at)
			if m.spans == nil {
				m.spans = s.startSpans(m.ctx, m.decision)
			}
			all = append(all, m)
		}
		return s.write(tx, all)
	})
	for _, m := range group {
		m.spans.end(err)
		m.spans = nil
	}
	if err != nil {
		return nil, err
	}
	decisions := make([]decision, len(group))
	for i, m := range group {
		decisions[i] = m.decision
	}
	for _, m := range all {
		s.record(m.ctx, m.decision) //nolint:contextcheck // a step is logged as its own, not as its group's
	}
	return decisions, nil
}

// pass decides once about an app, in a group with others. answers are what the plan before it
// asked for.
func (s *Stepper) pass(ctx context.Context, appID string, answers plan.Input) (decision, error) {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	// One draw for all tries of the transaction, so that they plan alike.
	return s.groups.Do(ctx, &member{ctx: ctx, appID: appID, answers: answers, jitter: s.cfg.Random()})
}
