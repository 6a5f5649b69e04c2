package rollout

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
)

// read returns the input of the apps' steps, by app. It leaves out deleted apps. An app's row is locked before its
// wake-up is cleared, in the same order as in every transaction that changes an app and then wakes it. After that,
// read reads the changes of those transactions.
func (s *Stepper) read(tx Tx, appIDs []string) (map[string]*plan.Input, error) {
	apps, err := tx.LockApps(appIDs)
	if err != nil {
		return nil, err
	}
	if err := tx.ClearWakes(appIDs); err != nil {
		return nil, err
	}
	var there []model.App
	for _, app := range apps {
		if app.DeletedAt == 0 {
			there = append(there, app)
		}
	}
	inputs, err := planinput.Load(lockingTx{tx}, there, s.cfg.Domain)
	if err != nil {
		return nil, err
	}
	of := map[string]*plan.Input{}
	for _, in := range inputs {
		of[in.App.ID] = in
	}
	return of, nil
}

// lockingTx locks the rows that a step reads, because the step changes them.
type lockingTx struct{ Tx }

// ListTopology implements planinput.Tx.
func (t lockingTx) ListTopology(appIDs []string) ([]model.Topology, error) {
	return t.LockTopology(appIDs...)
}
