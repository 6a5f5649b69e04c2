package report

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// shortestRefusal is how long a report that was refused is held back at least.
const shortestRefusal = 100 * time.Millisecond

// longestSilence is how long a report without instances that was refused is held back at
// most, however long it was refused for and how often: as long as after any other failure.
const longestSilence = 4 * time.Second

// holds say before when nothing is sent.
type holds struct {
	parts    time.Time // with instances
	all      time.Time // but signs of life
	refusals int       // of parts, one after the other
}

// talk is what a session has said and has yet to say.
type talk struct {
	pass    *pass
	flushed time.Time // when all facts were told last, or a pass ended
	spoke   time.Time
	beat    time.Duration // to the next sign of life
	resync  time.Time
	// held ends a wait for what the region should run; nil: there is no wait. until ends it in
	// any case.
	held  <-chan struct{}
	until time.Time
	// begun is when the last look for what to report began. next is when the next one may begin.
	begun, next time.Time
}

// A look for what to report takes time for every deployment, however few of them changed. It is
// followed by a rest that is lookShare times as long, so that a region of thousands of deployments
// spends a small part of a processor on looks.
const (
	lookShare   = 10
	longestRest = 200 * time.Millisecond
)

// awaitLook waits until another look may begin, and records its beginning.
func (t *talk) awaitLook(ctx context.Context) {
	if wait := time.Until(t.next); wait > 0 {
		_ = backoff.Sleep(ctx, wait) // the caller sees the end of ctx
	}
	t.begun = time.Now()
}

// noteLook records the end of a look.
func (t *talk) noteLook() {
	now := time.Now()
	t.next = now.Add(backoff.Rest(now.Sub(t.begun), lookShare, 0, longestRest))
}

// pass tells, in parts, of the instances that changed up to a picture.
type pass struct {
	to    picture
	rest  []told // still to be told
	begun bool   // a part was answered
	// inventory: it names everything. since is the sequence of its first report.
	inventory bool
	since     int64
}

// runTalk tells everything once, and then changes and signs of life, until the session ends.
func (r *Reporter) runTalk(ctx context.Context) error {
	t := &talk{spoke: time.Now(), beat: r.nextBeat(), held: r.session.Held}
	t.resync, t.until = r.nextInventory(t.spoke), t.spoke.Add(longestHeld)
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
		// A region gives signs of life although its runtime does not answer yet.
		if now, ok := r.currentPicture(); ok {
			if said, err := r.sayOnce(ctx, t, now); said || err != nil {
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

// sayOnce sends one report, if there is one to send now.
func (r *Reporter) sayOnce(ctx context.Context, t *talk, now picture) (said bool, err error) {
	at := time.Now()
	if at.Before(r.holds.all) {
		t.noteLook()
		return false, nil
	}
	if t.pass == nil && (!r.complete || r.owed || !at.Before(t.resync)) {
		everything, _ := compareInstances(emptyPicture(), now)
		r.owed = false
		t.pass, t.resync = &pass{to: now, rest: everything, inventory: true}, r.nextInventory(at)
	}
	pace, free := r.currentPace(), !at.Before(r.holds.parts)
	facts, due := r.factsToTell(t, now), at.Sub(t.flushed) >= pace.interval
	if t.pass == nil && free {
		list, edge := compareInstances(r.reported, now)
		switch {
		case len(list) == 0:
			// Changes that were undone need not be compared again.
			r.reported.deployments = now.deployments
		case edge || facts.edge || due || len(list) >= pace.size:
			t.pass = &pass{to: now, rest: list}
		}
	}

	t.noteLook()

	var part []told
	switch p := t.pass; {
	case p != nil && free:
		part = p.rest[:min(pace.size, len(p.rest))]
		due = due || !p.begun
	case p != nil && p.inventory && !p.begun:
		due = true // the facts of an inventory may go first
	case facts.isEmpty() || !due && !facts.edge:
		return false, nil
	}
	if !due {
		facts = facts.urgentParts()
	}
	// Until all of it is answered, what the control plane holds is between two
	// pictures: only an inventory would tell it of what vanishes meanwhile.
	complete, previous := r.complete, r.previous
	r.complete = false
	err = r.sendReport(ctx, r.newRequest(t, &facts, part))
	if no, ok := errors.AsType[*refusal](err); ok {
		r.delayRefused(ctx, no, len(part) > 0)
		if t.pass != nil && !t.pass.begun {
			r.owed = r.owed || t.pass.inventory
			t.pass = nil // the next pass tells the state of that time
		}
		r.complete, r.previous = complete, previous
		return true, nil
	}
	if err != nil {
		return false, err
	}
	r.noteAnswered(t, now, &facts, due, part)
	return true, nil
}

// factsToTell returns the facts to tell: those that changed, or all of them at the beginning of an inventory.
func (r *Reporter) factsToTell(t *talk, now picture) diff {
	if t.pass == nil || !t.pass.inventory || t.pass.begun {
		return compareFacts(r.reported, now)
	}
	all := compareFacts(emptyPicture(), now)
	all.capacity, all.quarantine, all.quarantined = now.capacity, now.judged, now.quarantined
	// Notices are events and not states: those that were told are not told again.
	all.notices = newNotices(r.reported.notices, now.notices)
	return all
}

func (r *Reporter) newRequest(t *talk, facts *diff, part []told) *agentv1.ReportRequest {
	req := facts.newRequest(part)
	p := t.pass
	if p == nil || !p.inventory {
		return req
	}
	if !p.begun {
		req.InventoryBegin, p.since, r.previous = true, r.sequence+1, 0
	}
	if len(part) == len(p.rest) {
		req.InventoryEnd, req.InventorySince = true, p.since
	}
	return req
}

// noteAnswered updates the picture of what the control plane knows.
func (r *Reporter) noteAnswered(t *talk, now picture, facts *diff, all bool, part []told) {
	t.spoke, t.beat = time.Now(), r.nextBeat()
	if all {
		now.deployments = r.reported.deployments
		r.reported = now
		t.flushed = t.spoke
	} else {
		facts.learnFacts(&r.reported)
	}
	if p := t.pass; p != nil && (len(part) > 0 || !p.begun) {
		p.begun = true
		if p.rest = p.rest[len(part):]; len(p.rest) == 0 {
			r.reported.deployments, t.pass, t.flushed = p.to.deployments, nil, t.spoke
			if p.inventory {
				t.flushed = time.Time{} // what is new after it need not wait
			}
		}
	}
	r.complete = t.pass == nil
	if len(part) > 0 {
		r.holds = holds{}
		if pause := r.currentPace().pause; pause > 0 {
			r.holds.parts = t.spoke.Add(r.randomAround(pause))
		}
	}
}

// delayRefused delays what was refused, longer with each refusal.
func (r *Reporter) delayRefused(ctx context.Context, no *refusal, parts bool) {
	after := r.randomAround(no.after << min(r.holds.refusals, 3))
	r.cfg.Log.InfoContext(ctx, "the control plane is behind; will report later", "error", no.cause, "retry_in", after)
	r.holds.refusals++
	now := time.Now()
	r.holds.parts = now.Add(after)
	if !parts {
		// A rollout may wait for it.
		r.holds.all = now.Add(min(after, longestSilence))
	}
}

// randomAround returns a random time around d, so that regions that were refused together do not come back together.
func (r *Reporter) randomAround(d time.Duration) time.Duration {
	return time.Duration((0.75 + 0.5*r.cfg.Rand()) * float64(d))
}

// awaitNews waits until there may be something to say. Then it sends loads that are due, and
// gives a sign of life if one is due. That is at a fixed time, because a source that signals
// often must not delay it, or earlier in answer to one (see Heard).
func (r *Reporter) awaitNews(ctx context.Context, t *talk) error {
	wait := time.Until(t.spoke.Add(t.beat))
	changed := r.cfg.Source.Changed()
	if t.held != nil {
		changed = nil // an inventory tells all of it after the wait
	}
	for _, at := range []time.Time{t.resync, t.until, r.holds.parts, r.holds.all, t.flushed.Add(r.currentPace().interval)} {
		if d := time.Until(at); d > 0 {
			wait = min(wait, d)
		}
	}
	due := t.beat
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
	if len(loads) == 0 && time.Since(t.spoke) < due {
		return nil
	}
	err := r.sendReport(ctx, &agentv1.ReportRequest{Loads: loads})
	t.spoke, t.beat = time.Now(), r.nextBeat()
	if no, ok := errors.AsType[*refusal](err); ok {
		r.delayRefused(ctx, no, false)
		return nil
	}
	return err
}

// loadsChanged returns a channel that is signalled when there may be loads to send; nil: none may be sent now.
func (r *Reporter) loadsChanged(t *talk) <-chan struct{} {
	if r.cfg.Loads == nil || t.held != nil || time.Now().Before(r.holds.all) {
		return nil
	}
	return r.cfg.Loads.Changed()
}

// learnFacts records in reported that the facts of d were told.
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
