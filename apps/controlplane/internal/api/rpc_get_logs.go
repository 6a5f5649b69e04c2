package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// askTimeout is the timeout for an agent's answer.
	askTimeout = 10 * time.Second
	// defaultTail is the default number of lines of output.
	defaultTail = 100
)

// GetLogs gets the instance's output from its region.
func (a deploymentService) GetLogs(ctx context.Context, req *windlassv1.GetLogsRequest) (*windlassv1.GetLogsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var instance model.Instance
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		instance, err = a.findInstance(tx, by.WorkspaceID, req.GetInstance())
		return err
	})
	if err != nil {
		return nil, err
	}
	data, err := a.sendRequest(ctx, instance, &agentv1.Request{Kind: &agentv1.Request_Logs{Logs: &agentv1.LogsRequest{
		InstanceId: instance.ID, TailLines: cmp.Or(req.GetTailLines(), defaultTail),
	}}})
	if err != nil {
		return nil, err
	}
	a.cfg.Trail.Note(trail.Entry{
		WorkspaceID: by.WorkspaceID, Actor: by.Name, ActorID: by.ID, Source: admission.ClientKey(rpc.ClientOf(ctx)), Procedure: by.Procedure,
		ResourceKind: "instance", ResourceID: instance.ID, Outcome: trail.Done,
	}, nowMillis())
	return &windlassv1.GetLogsResponse{Instance: instance.ID, Data: data}, nil
}

func (a deploymentService) findInstance(tx Tx, workspaceID, id string) (i model.Instance, err error) {
	if !plainID(id) {
		return i, apierr.Missing("instance", "instance", id, "Name it by its id.")
	}
	i, err = tx.GetInstance(workspaceID, id)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return i, apierr.Missing("instance", "instance", id, "`windlass list instances APP` shows the instances.")
	case err != nil:
		return i, fmt.Errorf("read instance %s: %w", id, err)
	}
	return i, nil
}

// sendRequest sends the request to the instance's region, and returns the answer.
func (a deploymentService) sendRequest(ctx context.Context, i model.Instance, req *agentv1.Request) ([]byte, error) {
	data, err := a.askRegion(ctx, i, req)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return data, askError(i, err)
}

// askRegion is ask without the translation of errors, which askError does later. An error that is not
// model.ErrAgentUnreachable is the agent's answer.
func (a deploymentService) askRegion(ctx context.Context, i model.Instance, req *agentv1.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	data, err := a.cfg.Agents.Ask(ctx, i.RegionID, req)
	if err != nil && ctx.Err() != nil && !errors.Is(err, model.ErrAgentUnreachable) {
		err = fmt.Errorf("%w: %w", model.ErrNoAnswer, err)
	}
	return data, err
}

// askError returns the API's error for an error of askRegion.
func askError(i model.Instance, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, model.ErrAgentUnreachable):
		return unansweredError(i, "Check whether the region is connected, then try again.")
	}
	// The agent refused the request, for example because it does not have the instance. The error is its text.
	return rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "instance", err.Error())
}

func unansweredError(i model.Instance, fix string) error {
	return rpc.ErrorWith(connect.CodeUnavailable, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Field: "instance", Fix: fix,
	}, fmt.Sprintf("the region of instance %s did not answer within %d s", i.ID, int(askTimeout.Seconds())))
}
