package report

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// minRefusal replaces a shorter time that a refusal names.
const minRefusal = 100 * time.Millisecond

// maxFactsDelay is the longest delay of a refused report without instances, whatever time the
// refusals name. It equals the longest time between retries after other errors.
const maxFactsDelay = 4 * time.Second

// delays has the times until which content is not sent.
type delays struct {
	instances  time.Time // for instances
	everything time.Time // for all reports except signs of life
	refusals   int       // refusals since instances were last answered
}

// sessionState has what a session has sent, and what it must still send.
type sessionState struct {
	pass      *pass
	factsSent time.Time // when all facts were last sent, or a pass ended
	lastSent  time.Time
	untilBeat time.Duration // time to the next sign of life
	resync    time.Time
	// held ends the wait for the region's desired state. Nil: there is no wait. The wait ends at
	// until in any case.
	held  <-chan struct{}
	until time.Time
	// lookBegan is when the last look for changes began. nextLook is when the next one may begin.
	lookBegan, nextLook time.Time
}

// The duration of a look for changes grows with the number of deployments, even if none of them
// changed. After a look comes a rest that is lookShare times as long. So a region with thousands of
// deployments spends only a small part of a processor on looks.
const (
	lookShare = 10
	maxRest   = 200 * time.Millisecond
)

// awaitLook waits until another look may begin, and records its beginning.
func (t *sessionState) awaitLook(ctx context.Context) {
	if wait := time.Until(t.nextLook); wait > 0 {
		_ = backoff.Sleep(ctx, wait) // the caller notices the end of ctx
	}
	t.lookBegan = time.Now()
}

// noteLook records the end of a look.
func (t *sessionState) noteLook() {
	now := time.Now()
	t.nextLook = now.Add(backoff.Rest(now.Sub(t.lookBegan), lookShare, 0, maxRest))
}

// pass sends, in parts, the instances that have changed up to a picture.
type pass struct {
	to        picture
	remaining []instanceChange // still unsent
	answered  bool             // a part was answered
	// inventory means that the pass has all instances. firstSequence is the sequence of its first
	// report.
	inventory     bool
	firstSequence int64
}

// runSession sends an inventory, and then changes and signs of life, until the session ends.
func (r *Reporter) runSession(ctx context.Context) error {
	t := &sessionState{lastSent: time.Now(), untilBeat: r.nextBeat(), held: r.session.Held}
	t.resync, t.until = r.nextInventory(t.lastSent), t.lastSent.Add(longestHeld)
	for ctx.Err() == nil {
		if t.held != nil && !time.Now().Before(t.until) {
			t.held = nil
		}
		if t.held != nil {
			if err := r.awaitNews(ctx, t); err != nil {
				return err
			}
			continue
		}
		t.awaitLook(ctx)
		// The region sends signs of life even while its runtime does not answer yet.
		if now, ok := r.currentPicture(); ok {
			if sent, err := r.sendOnce(ctx, t, now); sent || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := r.awaitNews(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// nextInventory returns when the next inventory is due.
func (r *Reporter) nextInventory(now time.Time) time.Time {
	return now.Add(r.cfg.Resync + time.Duration(r.cfg.Rand()*float64(r.cfg.Resync)))
}

// sendOnce sends one report if one is due. sent is true if the report was answered or refused.
func (r *Reporter) sendOnce(ctx context.Context, t *sessionState, now picture) (sent bool, err error) {
	at := time.Now()
	if at.Before(r.delays.everything) {
		t.noteLook()
		return false, nil
	}
	if t.pass == nil && (!r.inventoryStored || r.inventoryOwed || !at.Before(t.resync)) {
		everything, _ := compareInstances(emptyPicture(), now)
		r.inventoryOwed = false
		t.pass, t.resync = &pass{to: now, remaining: everything, inventory: true}, r.nextInventory(at)
	}
	pace, free := r.currentPace(), !at.Before(r.delays.instances)
	facts, due := r.factsToSend(t, now), at.Sub(t.factsSent) >= pace.interval
	if t.pass == nil && free {
		list, edge := compareInstances(r.reported, now)
		switch {
		case len(list) == 0:
			// If changes were undone, the lists differ but the instances do not. The next look must
			// not compare them again.
			r.reported.deployments = now.deployments
		case edge || facts.edge || due || len(list) >= pace.size:
			t.pass = &pass{to: now, remaining: list}
		}
	}

	t.noteLook()

	var part []instanceChange
	switch p := t.pass; {
	case p != nil && free:
		part = p.remaining[:min(pace.size, len(p.remaining))]
		due = due || !p.answered
	case p != nil && p.inventory && !p.answered:
		due = true // the facts of an inventory may go first
	case facts.isEmpty() || !due && !facts.edge:
		return false, nil
	}
	if !due {
		facts = facts.urgentParts()
	}
	// Until the whole pass is answered, the control plane has a state between two pictures. If the
	// session ends now, only an inventory reports the instances that vanish meanwhile.
	complete, previous := r.inventoryStored, r.previous
	r.inventoryStored = false
	err = r.sendReport(ctx, r.newRequest(t, &facts, part))
	if refused, ok := errors.AsType[*refusal](err); ok {
		r.delayRefused(ctx, refused, len(part) > 0)
		if t.pass != nil && !t.pass.answered {
			r.inventoryOwed = r.inventoryOwed || t.pass.inventory
			t.pass = nil // the next pass sends the state of that time
		}
		r.inventoryStored, r.previous = complete, previous
		return true, nil
	}
	if err != nil {
		return false, err
	}
	r.noteAnswered(t, now, &facts, due, part)
	return true, nil
}

// factsToSend returns the facts that changed. At the beginning of an inventory, it returns all
// facts.
func (r *Reporter) factsToSend(t *sessionState, now picture) diff {
	if t.pass == nil || !t.pass.inventory || t.pass.answered {
		return compareFacts(r.reported, now)
	}
	all := compareFacts(emptyPicture(), now)
	all.capacity, all.quarantine, all.quarantined = now.capacity, now.quarantineKnown, now.quarantined
	// Notices are events, not states, so each notice is sent once.
	all.notices = newNotices(r.reported.notices, now.notices)
	return all
}

// newRequest makes a report with facts and a part of the pass. If the pass is an inventory, the
// report has the marks of an inventory.
func (r *Reporter) newRequest(t *sessionState, facts *diff, part []instanceChange) *agentv1.ReportRequest {
	req := facts.newRequest(part)
	p := t.pass
	if p == nil || !p.inventory {
		return req
	}
	if !p.answered {
		req.InventoryBegin, p.firstSequence, r.previous = true, r.sequence+1, 0
	}
	if len(part) == len(p.remaining) {
		req.InventoryEnd, req.InventorySince = true, p.firstSequence
	}
	return req
}

// noteAnswered updates the picture of the control plane's knowledge. all is true if the report had
// all changed facts.
func (r *Reporter) noteAnswered(t *sessionState, now picture, facts *diff, all bool, part []instanceChange) {
	t.lastSent, t.untilBeat = time.Now(), r.nextBeat()
	if all {
		now.deployments = r.reported.deployments
		r.reported = now
		t.factsSent = t.lastSent
	} else {
		facts.learnFacts(&r.reported)
	}
	if p := t.pass; p != nil && (len(part) > 0 || !p.answered) {
		p.answered = true
		if p.remaining = p.remaining[len(part):]; len(p.remaining) == 0 {
			r.reported.deployments, t.pass, t.factsSent = p.to.deployments, nil, t.lastSent
			if p.inventory {
				t.factsSent = time.Time{} // later changes need not wait
			}
		}
	}
	r.inventoryStored = t.pass == nil
	if len(part) > 0 {
		r.delays = delays{}
		if pause := r.currentPace().pause; pause > 0 {
			r.delays.instances = t.lastSent.Add(r.randomAround(pause))
		}
	}
}

// delayRefused delays the next report with instances. The delay grows with each refusal. If the
// refused report had no instances, all reports are delayed.
func (r *Reporter) delayRefused(ctx context.Context, refused *refusal, hadInstances bool) {
	after := r.randomAround(refused.after << min(r.delays.refusals, 3))
	r.cfg.Log.InfoContext(ctx, "the control plane is behind; will report later", "error", refused.cause, "retry_in", after)
	r.delays.refusals++
	now := time.Now()
	r.delays.instances = now.Add(after)
	if !hadInstances {
		// A rollout may wait for a fact, so this delay is limited.
		r.delays.everything = now.Add(min(after, maxFactsDelay))
	}
}

// randomAround returns a random time around d. So regions that were refused at the same time retry
// at different times.
func (r *Reporter) randomAround(d time.Duration) time.Duration {
	return time.Duration((0.75 + 0.5*r.cfg.Rand()) * float64(d))
}

// awaitNews waits until there may be something to report. Then it sends loads that are due, or a
// sign of life if one is due. A sign of life is due at a fixed time, because a source that signals
// often must not delay it. It is sent earlier in answer to the control plane's sign of life; see
// Heard.
func (r *Reporter) awaitNews(ctx context.Context, t *sessionState) error {
	wait := time.Until(t.lastSent.Add(t.untilBeat))
	changed := r.cfg.Source.Changed()
	if t.held != nil {
		changed = nil // the inventory after the wait reports everything
	}
	for _, at := range []time.Time{t.resync, t.until, r.delays.instances, r.delays.everything, t.factsSent.Add(r.currentPace().interval)} {
		if d := time.Until(at); d > 0 {
			wait = min(wait, d)
		}
	}
	due := t.untilBeat
	var loads []*agentv1.LoadReport
	select {
	case <-ctx.Done():
		return nil
	case <-changed:
	case <-r.heard:
		due /= 2
	case <-t.held:
		t.held = nil
	case <-r.loadsChanged(t):
		loads = r.cfg.Loads.Due()
	case <-time.After(wait):
	}
	if len(loads) == 0 && time.Since(t.lastSent) < due {
		return nil
	}
	err := r.sendReport(ctx, &agentv1.ReportRequest{Loads: loads})
	t.lastSent, t.untilBeat = time.Now(), r.nextBeat()
	if refused, ok := errors.AsType[*refusal](err); ok {
		r.delayRefused(ctx, refused, false)
		return nil
	}
	return err
}

// loadsChanged returns a channel that is signalled when there may be loads to send. Nil: no loads
// may be sent now.
func (r *Reporter) loadsChanged(t *sessionState) <-chan struct{} {
	if r.cfg.Loads == nil || t.held != nil || time.Now().Before(r.delays.everything) {
		return nil
	}
	return r.cfg.Loads.Changed()
}

// learnFacts stores the facts of d in reported.
func (d *diff) learnFacts(reported *picture) {
	if len(d.applied) > 0 {
		reported.applied = maps.Clone(reported.applied)
	}
	for _, a := range d.applied {
		reported.applied[key{a.Kind, a.Key}] = a
	}
	if len(d.rollups) > 0 {
		reported.rollups = maps.Clone(reported.rollups)
	}
	for _, c := range d.rollups {
		reported.rollups[c.DeploymentId] = c
	}
}
