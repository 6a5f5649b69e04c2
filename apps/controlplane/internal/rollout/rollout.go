// Package rollout runs the apps' workflows: it reads the state, lets plan decide the next step, writes that,
// and ensures that the app is checked again.
//
//	api, ingest, fleet      one transaction: what happened, and app_wake(app, now)
//	      |
//	   Waker                notified of the commit, sends a step     (fast):
//	                        at once, or soon if no request waits for it
//	   Sweeper              sends wake-ups that are due or were lost  (sure)
//	      v
//	   Driver               one step of an app at a time, tried until it passes
//	      v
//	   Stepper.Step         clear the wake; read; plan; write; app_wake(app, next),
//	                        in one transaction for all apps whose steps have come
//
// Nothing is lost when any arrow is cut. The transaction that writes an event also writes the app's wake-up
// row. Only a step clears the row, in the transaction that reads the event. A step that dies before its
// commit has changed nothing, and its commit also writes the next wake-up. So a Driver may lose, duplicate,
// delay and reorder wake-ups, or lose all its data: the row brings the app back.
//
// Two steps of one app never interleave. A step locks the app's row and begins with a compare-and-set on its
// step number, which fails in a process that was stalled meanwhile.
package rollout

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// Tx has the queries of a step.
type Tx interface {
	topology.Tx
	planinput.Tx

	LockApps(ids []string) ([]model.App, error)
	StepApps(steps []model.AppStep) error
	UpdateDeployment(...model.Deployment) error
	UpdateRollout(...model.Rollout) error
	PutRolloutState(model.RolloutState) error
	PutPin(model.Pin) error
	DeletePin(appID, deploymentID string) error
	LockTopology(appIDs ...string) ([]model.Topology, error)
	InsertHistory([]model.History) error

	WakeAt(due map[string]int64, now int64) error
	ClearWakes(appIDs []string) error
}

// Store runs transactions that are repeated as a whole if the database requires it.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
}

// Step checks one app, carries out what is due, and writes a row with the time of the next check. It may be called at
// any time, any number of times.
type Step func(ctx context.Context, appID string) error

// Driver calls a Step, one at a time for each app.
type Driver interface {
	// Wake makes a step of each app begin soon, and not before the call. It returns when the driver has accepted
	// them. After an error, some may not be accepted. The package comment says why that is safe.
	Wake(ctx context.Context, appIDs []string) error
}

// StepTimeout bounds one step without the resolution of an image. It includes the wait for earlier steps, the queries,
// and the wait for a lock that another step of an app may hold.
const StepTimeout = 30 * time.Second

// pauseFor waits for d, and reports whether it ended before ctx did.
func pauseFor(ctx context.Context, d time.Duration) bool { return backoff.Sleep(ctx, d) == nil }

func nowMillis() int64 { return time.Now().UnixMilli() }
