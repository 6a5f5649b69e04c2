package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A region restarts an instance before the restart can be recorded. So a call first claims its idempotency key in the
// database. While the claim exists, no other call with the key, in any process, sends the request to the region:
//
//	claimed, and the region restarts it    the record of the key replaces the claim
//	the request was not sent, or refused   the claim is deleted, and the key is free
//	no answer, or the process is gone      the claim stays, because the instance may have been restarted
//
// Calls with a claimed key wait for the record. After claimFor they fail, because the outcome is unknown.
const (
	// claimPrefix distinguishes claims from records. Keys of callers have only printable characters.
	claimPrefix = "\x00restart\x00"
	// recordTimeout is the timeout for recording a restart.
	recordTimeout = 20 * time.Second
	claimFor      = askTimeout + recordTimeout
)

// claimPoll is how often a call checks whether the call that has claimed its key is done.
var claimPoll = backoff.Policy{Min: 50 * time.Millisecond, Max: time.Second}

// RestartInstance sends the restart to the instance's region, and records it after the agent has agreed.
func (a deploymentService) RestartInstance(ctx context.Context, req *windlassv1.RestartInstanceRequest) (*windlassv1.RestartInstanceResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	claim := model.Idempotency{WorkspaceID: by.WorkspaceID, Procedure: by.Procedure}
	if key := req.GetMutation().GetIdempotencyKey(); key != "" {
		claim.Key = claimPrefix + key
		if claim.RequestHash, err = requestHash(by.Procedure, req); err != nil {
			return nil, err
		}
	}
	instance, begins, err := a.beginRestart(ctx, by, req, claim)
	if err != nil {
		return nil, err
	}
	if begins {
		// The restart continues if the caller leaves, so that the caller can find the outcome with its key.
		ctx = context.WithoutCancel(ctx)
		if err := a.restartInstance(ctx, instance, claim); err != nil {
			return nil, err
		}
		recording, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		ctx = recording
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RestartInstanceResponse, error) {
		if !begins {
			return nil, a.unknownRestart(req.GetInstance()) // the record was deleted meanwhile
		}
		if claim.Key != "" {
			if err := c.DeleteIdempotencyKey(claim.WorkspaceID, claim.Key); err != nil {
				return nil, fmt.Errorf("end claim of restart of instance %s: %w", instance.ID, err)
			}
		}
		c.log(model.App{ID: instance.AppID, WorkspaceID: instance.WorkspaceID}, model.History{
			What: "InstanceRestarted", Why: "a person requested it: " + instance.ID, DeploymentID: instance.DeploymentID, RegionID: instance.RegionID,
		})
		return &windlassv1.RestartInstanceResponse{}, c.auditChange("instance", instance.ID, nil, nil)
	})
	return res, err
}

// beginRestart claims the key and takes a token. If another call with the key is running, it waits for that call.
// begins is false if another call has done the restart.
func (a deploymentService) beginRestart(ctx context.Context, by caller, req *windlassv1.RestartInstanceRequest, claim model.Idempotency) (instance model.Instance, begins bool, err error) {
	record := model.Idempotency{WorkspaceID: by.WorkspaceID, Key: req.GetMutation().GetIdempotencyKey()}
	for n := 0; ; n++ {
		var done, other *model.Idempotency
		err := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
			if done, err = a.earlierRecord(tx, record); err != nil || done != nil {
				return err
			}
			if other, err = a.earlierRecord(tx, claim); err != nil || other != nil {
				return err
			}
			instance, err = a.findInstance(tx, by.WorkspaceID, req.GetInstance())
			return err
		})
		switch {
		case err != nil || done != nil:
			return instance, false, err
		case other == nil:
			if instance.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
				return instance, false, apierr.NothingToDo(fmt.Sprintf("instance %s has ended", instance.ID), "`windlass list instances APP` shows the current instances.")
			}
			if begins, err := a.claimRestart(ctx, by, claim, record); begins || err != nil {
				return instance, begins, err
			}
		case !bytes.Equal(other.RequestHash, claim.RequestHash):
			return instance, false, keyMismatch()
		case nowMillis()-other.CreatedAt > claimFor.Milliseconds():
			return instance, false, a.unknownRestart(req.GetInstance())
		}
		if err := backoff.Sleep(ctx, claimPoll.Delay(n, nil)); err != nil {
			return instance, false, err
		}
	}
}

// claimRestart stores the claim, unless its key is empty, and takes a token for the restart. It returns false if another
// call has claimed the key or recorded its restart meanwhile.
func (a deploymentService) claimRestart(ctx context.Context, by caller, claim, record model.Idempotency) (bool, error) {
	if err := a.turnAway(by.WorkspaceID); err != nil {
		return false, err
	}
	var c *mutation
	err := a.cfg.Store.Update(ctx, func(tx Tx) error {
		c = a.newMutation(ctx, tx, by, true)
		if claim.Key != "" {
			claim.CreatedAt = c.at
			if err := c.InsertIdempotency(claim); err != nil {
				return err
			}
			// The record is looked up after the insertion, because the insertion waits for the transaction that ends
			// an earlier claim.
			if done, err := a.earlierRecord(tx, record); err != nil || done != nil {
				return cmp.Or(err, model.ErrExists)
			}
		}
		return c.admitUsage()
	})
	a.learnLimits(by.WorkspaceID, c)
	if errors.Is(err, model.ErrExists) {
		a.limiter.Leave(by.WorkspaceID)
		return false, nil
	}
	return err == nil, a.storeError(err)
}

// restartInstance sends the request to the region. If the region has certainly not restarted the instance, restart ends the
// claim.
func (a deploymentService) restartInstance(ctx context.Context, instance model.Instance, claim model.Idempotency) error {
	_, err := a.askRegion(ctx, instance, &agentv1.Request{Kind: &agentv1.Request_Restart{Restart: &agentv1.RestartRequest{
		InstanceId: instance.ID,
	}}})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, model.ErrNoAnswer):
		return unansweredError(instance, "Check whether the region is connected and the instance was restarted. If not, try again with a new key.")
	}
	refusal := askError(instance, err)
	if claim.Key == "" {
		return refusal
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	err = a.cfg.Store.Update(ctx, func(tx Tx) error { return tx.DeleteIdempotencyKey(claim.WorkspaceID, claim.Key) })
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "cannot free the idempotency key of a restart that was not done", "instance", instance.ID, "error", err)
	}
	return refusal
}

func (a deploymentService) unknownRestart(instance string) error {
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Field: "mutation.idempotency_key",
		Fix: "Check whether the instance was restarted. If not, call again with a new key.",
	}, fmt.Sprintf("an earlier call with this key requested a restart of instance %s, and its outcome is not known", instance))
}
