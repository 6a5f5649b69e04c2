package api

import (
	"context"
	"fmt"
	"sync"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RestartInstance asks the instance's region to restart it, and records the restart after the agent has
// agreed. Calls for one instance take turns in this process, so that of two calls with the same key the
// second finds the record of the first.
func (a deploymentService) RestartInstance(ctx context.Context, req *windlassv1.RestartInstanceRequest) (*windlassv1.RestartInstanceResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	done, err := a.restarts.take(ctx, by.WorkspaceID+"/"+req.GetInstance())
	if err != nil {
		return nil, err
	}
	defer done()

	var instance model.Instance
	key := req.GetMutation().GetIdempotencyKey()
	repeated := false
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		earlier, err := a.earlier(tx, model.Idempotency{WorkspaceID: by.WorkspaceID, Key: key})
		if err != nil {
			return err
		}
		repeated = earlier != nil
		instance, err = a.instance(tx, by.WorkspaceID, req.GetInstance())
		return err
	})
	if err != nil {
		return nil, err
	}
	if !repeated {
		if err := a.start(ctx, by); err != nil {
			return nil, err
		}
		if instance.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			return nil, apierr.NothingToDo(fmt.Sprintf("instance %s has ended", instance.ID), "List the instances that there are now.")
		}
		if _, err := a.ask(ctx, instance, &agentv1.Request{Kind: &agentv1.Request_Restart{Restart: &agentv1.RestartRequest{
			InstanceId: instance.ID,
		}}}); err != nil {
			return nil, err
		}
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RestartInstanceResponse, error) {
		c.log(model.App{ID: instance.AppID, WorkspaceID: instance.WorkspaceID}, model.History{
			What: "InstanceRestarted", Why: "asked for by a person: " + instance.ID, DeploymentID: instance.DeploymentID, RegionID: instance.RegionID,
		})
		return &windlassv1.RestartInstanceResponse{}, c.audit("instance", instance.ID, nil, nil)
	})
	return res, err
}

// start takes a token for work that begins before its transaction.
func (a deploymentService) start(ctx context.Context, by caller) error {
	if err := a.turnAway(by.WorkspaceID); err != nil {
		return err
	}
	var c *mutation
	err := a.cfg.Store.Update(ctx, func(tx Tx) error {
		c = a.newMutation(ctx, tx, by, true)
		return c.admit()
	})
	a.learn(by.WorkspaceID, c)
	return a.storeError(err)
}

// turns gives the turn of a name to one caller at a time.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{}
}

func newTurns() *turns { return &turns{taken: map[string]chan struct{}{}} }

// take waits for the turn of the name, and returns a function that ends it.
func (t *turns) take(ctx context.Context, name string) (func(), error) {
	for {
		t.mu.Lock()
		busy, ok := t.taken[name]
		if !ok {
			mine := make(chan struct{})
			t.taken[name] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.taken, name)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
