// Package logs answers the control plane's requests for the output of instances.
//
// A request names instances and positions. The answer has their output since these positions.
// Nothing is stored between two requests, so a caller can continue with the next request after a
// restart of the agent.
package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// look is the interval at which instances are read while a request waits.
	look = 500 * time.Millisecond
	// maxWait is the maximum time that a request waits.
	maxWait = 5 * time.Second
	// maxInstances is the maximum number of instances in a request. maxBytes is the maximum size of
	// an answer, and perInstance the maximum size of one instance's part. An answer may be larger than
	// maxBytes, because each instance's part may always have 4 KiB.
	maxInstances = 200
	maxBytes     = 512 << 10
	perInstance  = 64 << 10
)

// Reader reads the output of an instance.
type Reader interface {
	ReadLog(ctx context.Context, instanceID string, q runtime.LogQuery) (runtime.LogPage, error)
}

// Follow answers a request as soon as one of its instances has written something, or does not exist
// any more, and at the latest when the request's wait is over.
func Follow(ctx context.Context, r Reader, req *agentv1.FollowRequest) (*agentv1.FollowResponse, error) {
	if len(req.Instances) > maxInstances {
		return nil, fmt.Errorf("%d instances are requested: request %d at most", len(req.Instances), maxInstances)
	}
	until := time.Now().Add(min(max(req.Wait.AsDuration(), 0), maxWait))
	for {
		res, news := read(ctx, r, req)
		left := time.Until(until)
		if news || left <= 0 {
			return res, nil
		}
		select {
		case <-time.After(min(look, left)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// read reads each instance once. news reports whether the answer has anything that the caller does
// not know yet.
func read(ctx context.Context, r Reader, req *agentv1.FollowRequest) (res *agentv1.FollowResponse, news bool) {
	res = &agentv1.FollowResponse{}
	left := min(int(req.MaxBytes), maxBytes)
	for i, in := range req.Instances {
		log := &agentv1.InstanceLog{InstanceId: in.InstanceId}
		page, err := r.ReadLog(ctx, in.InstanceId, queryOf(in, min(left/(len(req.Instances)-i), perInstance)))
		switch {
		case errors.Is(err, runtime.ErrUnknownInstance):
			log.Gone, news = true, true
		case err != nil:
			log.Error = err.Error()
		default:
			log.Next = &windlassv1.LogPosition{Offset: page.Next.Offset, Line: page.Next.Line}
			log.Lost, log.LostMore = page.Lost, page.LostMore
			for _, l := range page.Lines {
				left -= len(l.Text)
				log.Lines = append(log.Lines, &windlassv1.LogLine{At: l.At.UnixMilli(), Text: l.Text, Offset: l.End})
			}
			news = news || len(page.Lines) > 0 || page.Lost > 0 || page.LostMore || in.After == nil
		}
		res.Logs = append(res.Logs, log)
		left = max(left, 0)
	}
	return res, news
}

func queryOf(in *agentv1.FollowedInstance, limit int) runtime.LogQuery {
	q := runtime.LogQuery{Tail: int(in.TailLines), Limit: max(limit, 4<<10)}
	if in.After != nil {
		q.After = &runtime.LogPosition{Offset: in.After.Offset, Line: in.After.Line}
	}
	if in.Since > 0 {
		q.Since = time.UnixMilli(in.Since)
	}
	return q
}
