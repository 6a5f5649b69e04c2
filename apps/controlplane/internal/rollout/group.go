package rollout

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/joint"
)

// # Steps together
//
// While one transaction of steps runs, the steps that come queue up and become the next
// one: groups grow with load and no step waits for a timer. The statements of a group are
// as many as those of one step, so what a step costs the database falls as more of them
// come at once. What fails, because of one of its apps or because they reach into more
// regions than a transaction may hold, is tried again in two halves, so that in the end an
// app fails alone.
const (
	// maxGroups run at once, of which each but the last has taken longer than patience: one
	// that waits for a row that somebody holds holds up no other app. Two at any time would have
	// half as many apps each, and a third more statements for each deployment.
	maxGroups = 4
	patience  = 250 * time.Millisecond
	// maxGroup apps are in one. They wait for each other's rows, and keep theirs locked until
	// all are written. Their statements are a thirtieth each by then; and apps of one region
	// each are in as many as a transaction may change.
	maxGroup = 32
)

// groups are the steps of one process that wait to be decided.
type groups struct {
	decide func(context.Context, []*member) error

	mu      sync.Mutex
	waiting []*member
	// running are all, late those of them that have taken longer than patience.
	running, late int
}

// member is one step that waits for its turn.
type member struct {
	ctx     context.Context
	appID   string
	answers plan.Input
	jitter  float64

	decision decision
	spans    *stepSpans
	err      error
	done     chan struct{}
}

// join has the step be decided, and waits for that also when its context has ended: what is
// under way for others goes on, and its end is known.
func (g *groups) join(m *member) {
	m.done = make(chan struct{})
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	g.begin()
	g.mu.Unlock()
	<-m.done
}

// begin has a worker begin if somebody waits and all that there are are late. Called with mu
// held.
func (g *groups) begin() {
	if len(g.waiting) > 0 && g.running == g.late && g.running < maxGroups {
		g.running++
		go g.work()
	}
}

// work until no request waits, or other workers do it.
func (g *groups) work() {
	for {
		group := g.take()
		if len(group) == 0 {
			return
		}
		done, late := false, false
		timer := time.AfterFunc(patience, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !done {
				late = true
				g.late++
				g.begin()
			}
		})
		g.run(group)
		timer.Stop()
		g.mu.Lock()
		if done = true; late {
			g.late--
		}
		g.mu.Unlock()
	}
}

// take returns those whose turn it is, of an app the first. None ends a worker.
func (g *groups) take() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > g.late+1 {
		g.running--
		return nil
	}
	var group, later []*member
	apps := map[string]bool{}
	for _, m := range g.waiting {
		if len(group) == maxGroup || apps[m.appID] {
			later = append(later, m)
			continue
		}
		apps[m.appID] = true
		group = append(group, m)
	}
	if g.waiting = later; len(group) == 0 {
		g.running--
	}
	return group
}

// run decides the group, or the parts of it that can be.
func (g *groups) run(group []*member) {
	var here []*member
	for _, m := range group {
		if m.err = m.ctx.Err(); m.err != nil {
			close(m.done)
			continue
		}
		here = append(here, m)
	}
	if len(here) == 0 {
		return
	}
	err := g.attempt(here)
	if err != nil && len(here) > 1 {
		g.run(here[:len(here)/2])
		g.run(here[len(here)/2:])
		return
	}
	for _, m := range here {
		m.err = err
		close(m.done)
	}
}

// attempt decides the group whole or not at all. It ends when no request waits for it any more.
func (g *groups) attempt(group []*member) (err error) {
	var all []context.Context
	for _, m := range group {
		all = append(all, m.ctx)
	}
	ctx, cancel := joint.Context(StepTimeout, all...)
	defer cancel()
	// A plan that panics is a bug that one app has, and is that app's alone.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return g.decide(ctx, group)
}

// decide is one pass over the apps of a group, each once, in one transaction.
func (s *Stepper) decide(ctx context.Context, group []*member) error {
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
		return err
	}
	for _, m := range all {
		s.tell(m.ctx, m.decision) //nolint:contextcheck // a step is told of as its own, not as its group's
	}
	return nil
}

// pass decides once about an app, together with others. answers are what the plan before it
// asked for.
func (s *Stepper) pass(ctx context.Context, appID string, answers plan.Input) (decision, error) {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	// One draw for all tries of the transaction, so that they plan alike.
	m := &member{ctx: ctx, appID: appID, answers: answers, jitter: s.cfg.Random()}
	s.groups.join(m) //nolint:contextcheck // it is m's; a group has one that outlasts any one of its members
	return m.decision, m.err
}
