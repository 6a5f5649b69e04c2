// Package rollout runs the apps' workflows: it reads what is, asks plan what is
// next, writes that, and sees to it that the app is looked at again.
//
//	api, ingest, fleet      one transaction: what happened, and app_wake(app, now)
//	      |
//	   Waker                told of the commit, sends a step          (fast):
//	                        at once, or soon where no request waits for it
//	   Sweeper              sends what is due by its row, or was lost (sure)
//	      v
//	   Driver               one step of an app at a time, tried until it passes
//	      v
//	   Stepper.Step         clear the wake; read; plan; write; app_wake(app, next),
//	                        in one transaction for all apps whose steps have come
//
// Nothing is lost when any arrow is cut. What happened is in the row that the
// same transaction left, and only a step takes it away, in the transaction that
// reads what happened. A step that dies before its commit has changed nothing; one
// that dies after it left the row for its next look. So a Driver may lose, double,
// delay and reorder wake-ups: the row brings the app back. That is also why losing
// all data of the driver behind it loses nothing.
//
// Two steps of one app never interleave: a step locks the app's row, and begins
// with a compare-and-set on its step number, which a replica that was stalled
// since cannot pass.
package rollout

import (
	"context"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// Tx is what a step needs of a transaction.
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

// Store runs transactions that retry as a whole when the database asks for it.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
}

// Step looks at one app, does what there is to do, and leaves a row that says when
// to look again. It is safe to call at any time, any number of times.
type Step func(ctx context.Context, appID string) error

// Driver calls a Step, one at a time for each app.
type Driver interface {
	// Wake has a step of each app run soon after, and not before, now. It returns
	// when the driver has taken them over; an error means that some may not have
	// been, and is no disaster, see the package comment.
	Wake(ctx context.Context, appIDs []string) error
}

// StepTimeout bounds one step, without the resolution of an image: it waits for the steps
// before it, and is a dozen queries, and a lock that another step of an app may hold.
const StepTimeout = 30 * time.Second

// pause waits, and reports whether ctx lasted as long.
func pause(ctx context.Context, d time.Duration) bool { return backoff.Sleep(ctx, d) == nil }

func nowMillis() int64 { return time.Now().UnixMilli() }
