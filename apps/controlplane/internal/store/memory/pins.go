package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func (t *tx) ListPins(appIDs []string) ([]model.Pin, error) {
	of := setOf(appIDs)
	rows := pinTable.overlayIn(t).list(func(p model.Pin) bool { return of[p.AppID] })
	slices.SortFunc(rows, func(a, b model.Pin) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.Version, b.Version))
	})
	return rows, nil
}

func (t *tx) PutPin(p model.Pin) error {
	t.touchApp(p.AppID)
	return pinTable.overlayIn(t).put(p)
}

func (t *tx) DeletePin(appID, deploymentID string) error {
	t.touchApp(appID)
	key := pair{appID, deploymentID}
	if _, ok, err := pinTable.overlayIn(t).lock(key); err != nil || !ok {
		return err
	}
	return pinTable.overlayIn(t).delete(key)
}
