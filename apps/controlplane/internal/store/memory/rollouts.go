package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertRollout(r model.Rollout) error {
	if err := t.rollouts.insert(r); err != nil {
		return err
	}
	t.touch(r.AppID)
	return nil
}

func (t *tx) GetRollout(workspaceID, id string) (model.Rollout, error) {
	r, ok := t.rollouts.get(id)
	return one(r, ok && r.WorkspaceID == workspaceID, "rollout", id)
}

func (t *tx) GetFlight(workspaceID, rolloutID string) (model.Flight, error) {
	r, err := t.GetRollout(workspaceID, rolloutID)
	if err != nil {
		return model.Flight{}, err
	}
	d, ok := t.deployments.get(r.DeploymentID)
	if !ok {
		return model.Flight{}, notFound("deployment of rollout", rolloutID)
	}
	f := model.Flight{Rollout: r, Deployment: d}
	if s, ok := t.stagings.get(r.AppID); ok {
		f.Staging = &s
	}
	return f, nil
}

func (t *tx) GetRollouts(ids []string) ([]model.Rollout, error) {
	var rows []model.Rollout
	for _, id := range distinct(ids) {
		if r, ok := t.rollouts.get(id); ok {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// UpdateRollout leaves what the rollout is as it was made.
func (t *tx) UpdateRollout(r model.Rollout) error {
	stored, ok, err := t.rollouts.lock(r.ID)
	if err != nil {
		return err
	}
	if !ok || stored.WorkspaceID != r.WorkspaceID {
		return notFound("rollout", r.ID)
	}
	stored.Status, stored.Reason, stored.Message = r.Status, r.Reason, r.Message
	stored.CancelRequested, stored.CancelledBy, stored.CancelWhy = r.CancelRequested, r.CancelledBy, r.CancelWhy
	stored.Traceparent, stored.Attempts = r.Traceparent, r.Attempts
	stored.Deadline, stored.FinishedAt = r.Deadline, r.FinishedAt
	stored.HeldSince, stored.HeldUntil = r.HeldSince, r.HeldUntil
	stored.HeldBy, stored.HeldScope, stored.HeldWhy = r.HeldBy, r.HeldScope, r.HeldWhy
	stored.OverrideBy, stored.OverrideWhy = r.OverrideBy, r.OverrideWhy
	t.touch(stored.AppID)
	return t.rollouts.put(stored)
}

func (t *tx) ListRollouts(workspaceID, appID string, p store.Page) ([]model.Rollout, error) {
	rows := t.rollouts.list(func(r model.Rollout) bool { return r.WorkspaceID == workspaceID && r.AppID == appID })
	return pageDown(rows, p, func(r model.Rollout) string { return r.ID }), nil
}

func (t *tx) GetStagings(appIDs []string) ([]model.Staging, error) {
	var rows []model.Staging
	for _, id := range distinct(appIDs) {
		if s, ok := t.stagings.get(id); ok {
			rows = append(rows, s)
		}
	}
	return rows, nil
}

func (t *tx) PutStaging(s model.Staging) error {
	t.touch(s.AppID)
	return t.stagings.put(s)
}

// Wake locks the row also where it leaves it: a step that clears it, and so takes
// over what this transaction asks for, must see what this transaction wrote.
func (t *tx) Wake(appIDs []string, due, now int64) error {
	in, sentAt := due-now, int64(0)
	due = time.Now().UnixMilli() + in
	if in <= 0 {
		sentAt = due
	}
	for _, id := range distinct(appIDs) {
		w, ok, err := t.wakes.lock(id)
		if err != nil {
			return err
		}
		if ok && w.Due <= due {
			continue
		}
		if err := t.wakes.put(model.Wake{AppID: id, Due: due, SentAt: sentAt}); err != nil {
			return err
		}
		if in <= 0 {
			t.woken[id] = true
		}
	}
	return nil
}

func (t *tx) ClearWake(appID string) error {
	delete(t.woken, appID)
	return t.wakes.delete(appID)
}

func (t *tx) DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error) {
	now := time.Now().UnixMilli()
	rows := t.wakes.list(func(w model.Wake) bool {
		return w.Due <= now && (w.SentAt == 0 || w.SentAt == w.Due && w.SentAt <= now-lostAfter || w.SentAt <= now-againAfter)
	})
	slices.SortFunc(rows, func(a, b model.Wake) int { return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.AppID, b.AppID)) })
	return first(rows, limit), nil
}

func (t *tx) UnsendWakes() (n int64, err error) {
	for _, w := range t.wakes.list(func(w model.Wake) bool { return w.SentAt > 0 }) {
		w, ok, err := t.wakes.lock(w.AppID)
		if err != nil {
			return 0, err
		}
		if !ok || w.SentAt == 0 {
			continue
		}
		w.SentAt = 0
		if err := t.wakes.put(w); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

func (t *tx) MarkWakesSent(appIDs []string, dueBy int64) error {
	at := time.Now().UnixMilli()
	for _, id := range distinct(appIDs) {
		w, ok, err := t.wakes.lock(id)
		if err != nil {
			return err
		}
		if !ok || w.Due > min(dueBy, at) {
			continue
		}
		w.SentAt = at
		if err := t.wakes.put(w); err != nil {
			return err
		}
	}
	return nil
}
