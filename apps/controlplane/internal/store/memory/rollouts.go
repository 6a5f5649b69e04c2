package memory

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertRollout(r model.Rollout) error {
	if err := rolloutTable.overlayIn(t).insert(r); err != nil {
		return err
	}
	t.touchApp(r.AppID)
	return nil
}

func (t *tx) GetRollout(workspaceID, id string) (model.Rollout, error) {
	r, ok := rolloutTable.overlayIn(t).get(id)
	return oneRow(r, ok && r.WorkspaceID == workspaceID, "rollout", id)
}

func (t *tx) GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error) {
	var rows []model.ActiveRollout
	for _, id := range sortDistinct(rolloutIDs) {
		r, ok := rolloutTable.overlayIn(t).get(id)
		if !ok {
			continue
		}
		d, ok := deploymentTable.overlayIn(t).get(r.DeploymentID)
		if !ok {
			continue
		}
		f := model.ActiveRollout{Rollout: r, Deployment: d}
		if s, ok := rolloutStateTable.overlayIn(t).get(r.AppID); ok {
			f.RolloutState = &s
		}
		rows = append(rows, f)
	}
	return rows, nil
}

func (t *tx) GetRollouts(ids []string) ([]model.Rollout, error) {
	var rows []model.Rollout
	for _, id := range sortDistinct(ids) {
		if r, ok := rolloutTable.overlayIn(t).get(id); ok {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// UpdateRollout does not change the immutable fields of a rollout.
func (t *tx) UpdateRollout(rollouts ...model.Rollout) error {
	for _, r := range rollouts {
		if err := t.updateRollout(r); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) updateRollout(r model.Rollout) error {
	stored, ok, err := rolloutTable.overlayIn(t).lock(r.ID)
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
	stored.FrozenSince, stored.FrozenUntil = r.FrozenSince, r.FrozenUntil
	stored.FrozenBy, stored.FrozenScope, stored.FrozenWhy = r.FrozenBy, r.FrozenScope, r.FrozenWhy
	stored.OverrideBy, stored.OverrideWhy = r.OverrideBy, r.OverrideWhy
	stored.StartGate = r.StartGate
	t.touchApp(stored.AppID)
	return rolloutTable.overlayIn(t).put(stored)
}

func (t *tx) ListRollouts(workspaceID, appID string, p store.Page) ([]model.Rollout, error) {
	rows := rolloutTable.overlayIn(t).list(func(r model.Rollout) bool { return r.WorkspaceID == workspaceID && r.AppID == appID })
	return pageDown(rows, p, func(r model.Rollout) string { return r.ID }), nil
}

func (t *tx) GetRolloutStates(appIDs []string) ([]model.RolloutState, error) {
	var rows []model.RolloutState
	for _, id := range sortDistinct(appIDs) {
		if s, ok := rolloutStateTable.overlayIn(t).get(id); ok {
			rows = append(rows, s)
		}
	}
	return rows, nil
}

func (t *tx) PutRolloutState(s model.RolloutState) error {
	t.touchApp(s.AppID)
	return rolloutStateTable.overlayIn(t).put(s)
}

// WakeAt also locks a row that it does not change, because a step that clears the row must see what this
// transaction wrote.
func (t *tx) WakeAt(due map[string]int64, now int64) error {
	at := time.Now().UnixMilli()
	for _, id := range slices.Sorted(maps.Keys(due)) {
		w, ok, err := wakeTable.overlayIn(t).lock(id)
		if err != nil {
			return err
		}
		in := due[id] - now
		if ok && w.Due <= at+in {
			continue
		}
		w = model.Wake{AppID: id, Due: at + in}
		if in <= 0 {
			w.SentAt = w.Due
		}
		if in <= store.WakeWindow.Milliseconds() {
			t.woken[id] = max(time.Duration(in)*time.Millisecond, 0)
		}
		if err := wakeTable.overlayIn(t).put(w); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) Wake(appIDs []string, due, now int64) error {
	each := make(map[string]int64, len(appIDs))
	for _, id := range appIDs {
		each[id] = due
	}
	return t.WakeAt(each, now)
}

func (t *tx) ClearWakes(appIDs []string) error {
	for _, id := range sortDistinct(appIDs) {
		delete(t.woken, id)
		if err := wakeTable.overlayIn(t).delete(id); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error) {
	now := time.Now().UnixMilli()
	rows := wakeTable.overlayIn(t).list(func(w model.Wake) bool {
		return w.Due <= now && (w.SentAt == 0 || w.SentAt == w.Due && w.SentAt <= now-lostAfter || w.SentAt <= now-againAfter)
	})
	slices.SortFunc(rows, func(a, b model.Wake) int { return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.AppID, b.AppID)) })
	return firstRows(rows, limit), nil
}

func (t *tx) UnsendWakes() (n int64, err error) {
	for _, w := range wakeTable.overlayIn(t).list(func(w model.Wake) bool { return w.SentAt > 0 }) {
		w, ok, err := wakeTable.overlayIn(t).lock(w.AppID)
		if err != nil {
			return 0, err
		}
		if !ok || w.SentAt == 0 {
			continue
		}
		w.SentAt = 0
		if err := wakeTable.overlayIn(t).put(w); err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

func (t *tx) MarkWakesSent(appIDs []string, dueBy int64) error {
	at := time.Now().UnixMilli()
	for _, id := range sortDistinct(appIDs) {
		w, ok, err := wakeTable.overlayIn(t).lock(id)
		if err != nil {
			return err
		}
		if !ok || w.Due > min(dueBy, at) {
			continue
		}
		w.SentAt = at
		if err := wakeTable.overlayIn(t).put(w); err != nil {
			return err
		}
	}
	return nil
}
