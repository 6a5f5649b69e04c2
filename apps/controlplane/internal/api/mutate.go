package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/telemetry"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	w "github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// request is the request of a mutation.
type request interface {
	proto.Message
	GetMutation() *windlassv1.Mutation
}

// mutation is a running mutation of a caller, in its transaction. It collects history, claims and wake-ups, which
// finish writes at the end.
type mutation struct {
	Tx
	api *server
	// by is the caller. at is the time of the call, in unix ms. traceparent is the trace that the call continues.
	by          caller
	workspaceID string
	at          int64
	traceparent string
	history     []model.History
	ended       []model.Rollout
	// woken apps get a step at once. expected apps get a step when their regions report, or after silence.
	woken, expected []string
	// starts means that the mutation starts work. asked is the change of an app's claim, nil for none. The new claims
	// of further apps are in also.
	starts bool
	asked  *asked
	also   []model.Claim
	// grown is how much the new claims of further apps add to the usage.
	grown model.Usage
	// pinned is the usage of the changed app's pins.
	pinned  model.Usage
	learned learned
	// freezes is a cache of the freezes that may apply to one app. freezesAre is the app's id. The mutation does not
	// change these freezes.
	freezes    []model.Freeze
	freezesAre string
	// dry is the transaction of a dry run, else nil.
	dry *dryTx
}

// mutate runs fn in one transaction with the record of the request's idempotency key. replayed means that the answer
// is the answer of an earlier call, and that nothing of fn was stored. The record has no secrets. The caller of
// mutate adds them to an answer that is not replayed.
func mutate[R proto.Message](ctx context.Context, a *server, req request, fn func(*mutation) (R, error)) (res R, replayed bool, err error) {
	by, err := callerOf(ctx)
	if err != nil {
		return res, false, err
	}
	record, err := recordOf(by, req)
	if err != nil {
		return res, false, err
	}
	begins, entered := access[by.Procedure].Starts, false
	var earlier *model.Idempotency
	var c *mutation
	attempt := func(tx Tx) (last func() error, err error) {
		var none R
		res, c = none, nil
		if !tx.Batched() {
			if earlier, err = a.earlierRecord(tx, record); err != nil || earlier != nil {
				return nil, err
			}
		}
		c = a.newMutation(ctx, tx, by, begins)
		if res, err = fn(c); err != nil {
			return nil, err
		}
		return func() error { return c.finish(record, res) }, nil
	}
	if begins {
		err = a.turnAway(by.WorkspaceID)
	}
	if err == nil {
		batch, app := "", ""
		if locksApp, ok := batched[by.Procedure]; ok {
			batch = by.WorkspaceID
			if about, ok := any(req).(interface{ GetApp() string }); ok && locksApp {
				_, app = splitApp(about.GetApp())
			}
		}
		err = a.cfg.Store.UpdateBatched(ctx, batch, app, attempt)
		a.learnLimits(by.WorkspaceID, c)
		entered = begins
	}
	// The call may have failed because another call with this key did the work meanwhile. Then both calls have the
	// same answer.
	if err != nil && record.Key != "" && ctx.Err() == nil && earlier == nil {
		viewErr := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
			earlier, err = a.earlierRecord(tx, record)
			return err
		})
		if viewErr != nil {
			return res, false, a.storeError(err)
		}
	}
	if earlier != nil {
		if entered {
			a.limiter.Leave(by.WorkspaceID)
		}
		res, err = replayResponse[R](*earlier, record)
		return res, true, err
	}
	if err != nil {
		var none R
		return none, false, a.storeError(err)
	}
	for _, r := range c.ended {
		a.cfg.RolloutEnded(r)
	}
	return res, false, nil
}

// batched are mutations of one app that often come in large numbers. They share transactions with other mutations of
// their workspace. The value is true if the mutation locks its app first, so that UpdateBatched can lock the apps of
// a batch.
var batched = map[string]bool{
	w.AppServiceDeployProcedure:   false,
	w.AppServiceScaleProcedure:    true,
	w.AppServiceRollbackProcedure: false,
}

// silence is how long an expected app waits for reports of its regions before it gets a step without them.
const silence = time.Second

// turnAway returns an error without a transaction if the limiter knows that the workspace's bucket has no token.
func (a *server) turnAway(workspaceID string) error {
	if rate, wait := a.limiter.Enter(workspaceID, time.Now().UnixMicro()); wait > 0 {
		return a.countRefusal(tooFast(workspaceID, rate, wait))
	}
	return nil
}

// recordOf returns the record of the request's idempotency key, without an answer. The key may be empty.
func recordOf(by caller, req request) (record model.Idempotency, err error) {
	record = model.Idempotency{WorkspaceID: by.WorkspaceID, Key: req.GetMutation().GetIdempotencyKey(), Procedure: by.Procedure}
	if record.Key != "" {
		record.RequestHash, err = requestHash(by.Procedure, req)
	}
	return record, err
}

// earlierOr returns the answer of an earlier call with the request's idempotency key, or failed if there was no such
// call. failed is the error of this call before its transaction. The earlier call may have succeeded although this
// call fails, because the state changed since.
func earlierOr[R proto.Message](ctx context.Context, a *server, req request, failed error) (R, error) {
	var none R
	by, err := callerOf(ctx)
	if err != nil {
		return none, err
	}
	record, err := recordOf(by, req)
	if err != nil {
		return none, err
	}
	var earlier *model.Idempotency
	if record.Key != "" && ctx.Err() == nil {
		err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
			earlier, err = a.earlierRecord(tx, record)
			return err
		})
	}
	if err != nil || earlier == nil {
		return none, failed
	}
	return replayResponse[R](*earlier, record)
}

// earlierRecord returns the stored record with the key of record, or nil.
func (a *server) earlierRecord(tx Tx, record model.Idempotency) (*model.Idempotency, error) {
	if record.Key == "" {
		return nil, nil
	}
	found, err := tx.GetIdempotency(record.WorkspaceID, record.Key)
	if errors.Is(err, model.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up idempotency key: %w", err)
	}
	return &found, nil
}

func (a *server) newMutation(ctx context.Context, tx Tx, by caller, begins bool) *mutation {
	return &mutation{
		Tx: tx, api: a, by: by, workspaceID: by.WorkspaceID, at: nowMillis(), traceparent: telemetry.Inject(ctx), starts: begins,
	}
}

// finish writes the collected history, claims and wake-ups, and the record of the key, if any. It locks the workspace
// after all other writes, to hold that lock for the shortest time. It writes wake-ups last, because a call that waits
// for the workspace's lock must not block reports and steps of the woken apps.
func (c *mutation) finish(record model.Idempotency, res proto.Message) (err error) {
	if len(c.history) > 0 {
		if err := c.InsertHistory(c.history); err != nil {
			return fmt.Errorf("write history: %w", err)
		}
	}
	if record.Key != "" {
		record.CreatedAt = c.at
		if record.Response, err = proto.Marshal(res); err != nil {
			return fmt.Errorf("encode response: %w", err)
		}
		if err := c.InsertIdempotency(record); err != nil {
			return err
		}
	}
	if err := c.admitUsage(); err != nil {
		return err
	}
	if err := c.Wake(c.woken, c.at, c.at); err != nil {
		return fmt.Errorf("wake %d apps: %w", len(c.woken), err)
	}
	if err := c.Wake(c.expected, c.at+silence.Milliseconds(), c.at); err != nil {
		return fmt.Errorf("wake %d apps later: %w", len(c.expected), err)
	}
	return nil
}

// learnLimits tells the limiter which rate and wait the last attempt of a call has read. c is nil if there was no attempt.
func (a *server) learnLimits(workspaceID string, c *mutation) {
	if c != nil && c.learned.known {
		a.limiter.Learn(workspaceID, c.learned.rate, c.learned.missing, time.Now().UnixMicro())
	}
}

func replayResponse[R proto.Message](earlier, record model.Idempotency) (R, error) {
	var none R
	if earlier.Procedure != record.Procedure || !bytes.Equal(earlier.RequestHash, record.RequestHash) {
		return none, keyMismatch()
	}
	res, ok := none.ProtoReflect().New().Interface().(R)
	if !ok {
		return none, fmt.Errorf("replay %s: the response has another type", record.Procedure)
	}
	if err := proto.Unmarshal(earlier.Response, res); err != nil {
		return none, fmt.Errorf("replay %s: %w", record.Procedure, err)
	}
	return res, nil
}

func keyMismatch() error {
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH,
		Field:  "mutation.idempotency_key",
		Fix:    "Use a new key for each new request. Use the same key only to repeat an unchanged request.",
	}, "the idempotency key was used for another request")
}

// storeError translates errors of the store to which the caller can react.
func (a *server) storeError(err error) error {
	switch {
	case errors.Is(err, model.ErrTooManyRegions):
		return apierr.OverLimit("", "the change affects more regions than one transaction may change", "Split it by region.")
	case errors.Is(err, model.ErrOutcomeUnknown):
		return rpc.ErrorWith(connect.CodeUnavailable, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
			Fix:    "Repeat the call with the same idempotency key. Without a key, first check whether the change was made.",
		}, "the connection to the database was lost during the commit, so the change was made either completely or not at all")
	}
	return err
}
