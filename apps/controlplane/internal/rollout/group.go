package rollout

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/batch"
)

// # Group commit
//
// Steps that arrive while a transaction of steps runs share the next one. A group has as many statements as a
// single step, so each step costs less as more of them arrive together. A group fails because of one of its
// apps, or because its apps change more regions than a transaction may. Then each half runs again, so that in
// the end a failing app fails alone.
const (
	// maxGroups is how many groups run at once. A further group starts only when the others have taken longer
	// than patience, so that a step that waits for a row's lock delays no other app. If groups always ran two at
	// a time, each would have half as many apps and more statements for each deployment.
	maxGroups = 4
	patience  = 250 * time.Millisecond
	// maxGroup is how many apps are in a group. They wait for each other's rows, and hold their locks until all
	// are written. Apps of one region each then change as many regions as a transaction may.
	maxGroup = 32
)

// groups batches the steps of one process.
type groups = batch.Group[int, *member, decision]

// newGroups returns groups that call decideGroup once for the members of each group. decide writes nothing if it fails.
// committed is called after each transaction.
func newGroups(decide func(context.Context, []*member) ([]decision, error), committed func(batch.Outcome)) *groups {
	return batch.New(batch.Config[int, *member, decision]{
		Commit: decide,
		Limits: func(int) batch.Limits { return batch.Limits{Size: maxGroup, Commits: maxGroups, Patience: patience} },
		// The second step of an app must see what the first one wrote.
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

// decideGroup runs one pass over the apps of a group, each once, in one transaction.
func (s *Stepper) decideGroup(ctx context.Context, group []*member) ([]decision, error) {
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
		m.spans.endSpans(err)
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
		s.recordDecision(m.ctx, m.decision) //nolint:contextcheck // a step is logged as its own, not as its group's
	}
	return decisions, nil
}

// decideApp makes one decision about an app, in a group with other apps. answers has the image and the measurements that
// the plan of the previous pass requested.
func (s *Stepper) decideApp(ctx context.Context, appID string, answers plan.Input) (decision, error) {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	// There is one random number for all tries of the transaction, so that they plan alike.
	return s.groups.Do(ctx, &member{ctx: ctx, appID: appID, answers: answers, jitter: s.cfg.Random()})
}
